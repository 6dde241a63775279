#include "cohort/runtime/runtime.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "cohort/runtime/bootstrap/host_identity.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/black_box.h"
#include "tests/runtime/bootstrap/news.h"
#include "tests/runtime/child.h"
#include "tests/runtime/file_store.h"
#include "tests/support/temporary_folder.h"

namespace cohort::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Child;
using testing::FileStore;
using testing::News;

Deadline Soon() { return Deadline::After(seconds(20)); }

TEST(WorldOfOneTest, AWorldOfOneKnowsItsIdentity) {
  auto runtime = Runtime::Init();
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  Runtime& one = **runtime;
  EXPECT_EQ(one.rank(), 0);
  EXPECT_EQ(one.world_size(), 1);
  EXPECT_EQ(one.local_world_size(), 1);
  EXPECT_EQ(one.node_count(), 1);
  EXPECT_EQ(one.node_of(0), 0);
  EXPECT_EQ(one.local_rank_of(0), 0);
  EXPECT_TRUE(one.rank_status(0).ok());
  for (const int rank : {-1, 1, std::numeric_limits<int>::max()}) {
    EXPECT_EQ(one.rank_status(rank).code(), absl::StatusCode::kInvalidArgument) << rank;
  }
  EXPECT_TRUE(one.segment().Allocate(100'000).ok());
  EXPECT_TRUE(one.Finalize().ok());
  EXPECT_TRUE(one.Finalize().ok());
}

TEST(WorldOfOneTest, KeysAreWrittenOnce) {
  auto runtime = Runtime::Init();
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  Runtime& one = **runtime;
  EXPECT_TRUE(one.Put("a", "1", Soon()).ok());
  EXPECT_EQ(one.Put("a", "2", Soon()).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(*one.Get("a", Soon()), "1");
  EXPECT_EQ(one.Get("b", Deadline::After(milliseconds(5))).status().code(), absl::StatusCode::kNotFound);
  std::thread late([&one] { EXPECT_TRUE(one.Put("c", "3", Soon()).ok()); });
  EXPECT_EQ(*one.Get("c", Soon()), "3");
  late.join();
}

TEST(WorldOfOneTest, FinalizeReportsWhatNoCallDid) {
  auto runtime = Runtime::Init({.progress_thread = true});
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  (*runtime)->NoteUnreportedFailure(absl::InternalError("a call has told of it"));
  (*runtime)->NoteReportedFailure(absl::InternalError("another"));
  (*runtime)->NoteReportedFailure(absl::InternalError("a call has told of it"));
  (*runtime)->NoteUnreportedFailure(absl::FailedPreconditionError("first"));
  (*runtime)->NoteUnreportedFailure(absl::AbortedError("second"));
  EXPECT_EQ((*runtime)->Finalize().message(), "first");
  EXPECT_TRUE((*runtime)->Finalize().ok());
}

TEST(WorldOfOneTest, RefusesAnImpossibleTimeout) {
  EXPECT_EQ(Runtime::Init({.init_timeout = seconds(0)}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(HostIdentityTest, ConsecutiveRanksShareANode) {
  const auto places = [](const std::string& hosts) {
    std::vector<RankPlace> result;
    for (char host : hosts) result.push_back(RankPlace{std::string(1, host), std::string("n") + host, 7});
    return result;
  };
  auto nodes = NodesOf(places("aabbb"));
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[1].first_rank, 2);
  EXPECT_EQ(nodes[1].rank_count, 3);
  EXPECT_EQ(nodes[1].name, "nb");
  EXPECT_FALSE(NodesShareHost(places("aabbb"), nodes));
  nodes = NodesOf(places("abab"));
  EXPECT_EQ(nodes.size(), 4u);
  EXPECT_TRUE(NodesShareHost(places("abab"), nodes));
}

TEST(HostIdentityTest, PlacesSurviveTheStoreAndNonsenseDoesNot) {
  const RankPlace here = ThisPlace();
  const auto parsed = ParsePlace(FormatPlace(here));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->host, here.host);
  EXPECT_EQ(parsed->pid, getpid());
  for (const char* text : {"", "a", "a b", "a b c", "a b -3", "a b 3 4", "a b 99999999999"}) {
    EXPECT_FALSE(ParsePlace(text).ok()) << text;
  }
}

// Ranks as processes that share a store.
class StoreTest : public ::testing::Test {
 protected:
  using Body = std::function<int(Runtime&)>;
  Child Start(int rank, int world_size, const Body& body) {
    return Child([this, rank, world_size, &body] {
      FileStore store(folder_.path());
      auto runtime =
          Runtime::Init({.init_timeout = seconds(20), .bootstrap = BootstrapFromStore(&store, rank, world_size)});
      if (!runtime.ok()) {
        std::fprintf(stderr, "rank %d: %s\n", rank, runtime.status().ToString().c_str());
        return 100;
      }
      return body(**runtime);
    });
  }
  std::vector<Child> StartAll(int world_size, const Body& body) {
    std::vector<Child> ranks;
    for (int rank = 0; rank < world_size; ++rank) ranks.push_back(Start(rank, world_size, body));
    return ranks;
  }
  TemporaryFolder folder_;
};

uint64_t MakeCall(Runtime& runtime, uint16_t kind, uint64_t count, const char* site) {
  CallRecord record;
  record.signature = {.group = 9, .sequence = 4, .count = count, .epoch = 1, .kind = kind, .dtype = 11};
  std::strncpy(record.site, site, sizeof record.site - 1);
  return runtime.segment().black_box().Start(record);
}

TEST_F(StoreTest, RanksOfANodeShareASegment) {
  auto ranks = StartAll(4, [](Runtime& runtime) {
    if (runtime.world_size() != 4 || runtime.local_world_size() != 4 || runtime.node_count() != 1) return 1;
    if (runtime.local_rank() != runtime.rank() || runtime.identity().job_secret.size() != 32) return 2;
    const auto block = runtime.segment().Allocate(4096);
    if (!block.ok()) return 3;
    auto* memory = static_cast<std::atomic<int>*>(*runtime.segment().Map(*block));
    memory->store(runtime.rank() + 10);
    if (!runtime.segment().Publish(77, *block).ok()) return 4;
    if (!runtime.Put("ready/" + std::to_string(runtime.rank()), "yes", Soon()).ok()) return 5;
    for (int peer = 0; peer < 4; ++peer) {
      if (!runtime.Get("ready/" + std::to_string(peer), Soon()).ok()) return 6;
      const auto theirs = runtime.segment().LookUp(peer, 77);
      if (!theirs.has_value()) return 7;
      if (static_cast<std::atomic<int>*>(*runtime.segment().Map(*theirs))->load() != peer + 10) return 8;
    }
    if (!runtime.Put("seen/" + std::to_string(runtime.rank()), "yes", Soon()).ok()) return 9;
    for (int peer = 0; peer < 4; ++peer) {
      if (!runtime.Get("seen/" + std::to_string(peer), Soon()).ok()) return 10;
    }
    return runtime.Finalize().ok() ? 0 : 11;
  });
  for (Child& rank : ranks) EXPECT_EQ(rank.Wait(), 0);
}

TEST_F(StoreTest, AKilledRankIsNamedWithItsCause) {
  auto ranks = StartAll(3, [](Runtime& runtime) {
    News news(runtime);
    if (runtime.rank() == 1) {
      runtime.Put("ready", "yes", Soon()).IgnoreError();
      runtime.engine().DriveUntil([] { return false; }, Deadline::After(seconds(60)));
      return 1;
    }
    MakeCall(runtime, 9, 0, "train.cc:88");
    // All survivors are in the call before the death.
    runtime.Put("called/" + std::to_string(runtime.rank()), "yes", Soon()).IgnoreError();
    for (const char* key : {"ready", "called/0", "called/2"}) {
      if (!runtime.Get(key, Soon()).ok()) return 2;
    }
    if (runtime.rank() == 0) kill(runtime.segment().control(1).pid.load(), SIGKILL);
    if (!news.Await()) return 3;
    if (news.lost != std::vector<int>{1}) return 4;
    const std::string text(runtime.rank_status(1).message());
    const bool named = text.find("rank 1 (") == 0 && text.find("killed by SIGKILL") != std::string::npos;
    if (!named) std::fprintf(stderr, "%s\n", text.c_str());
    if (!named || !absl::IsUnavailable(runtime.rank_status(1))) return 5;
    if (!runtime.rank_status(0).ok() || !runtime.rank_status(2).ok()) return 6;
    return 0;
  });
  EXPECT_EQ(ranks[0].Wait(), 0);
  EXPECT_EQ(ranks[2].Wait(), 0);
  EXPECT_EQ(ranks[1].Wait(), 128 + SIGKILL);
}

TEST_F(StoreTest, OrderlyEndsAreNoNews) {
  auto ranks = StartAll(2, [](Runtime& runtime) {
    News news(runtime);
    if (runtime.rank() == 1) return runtime.Finalize().ok() ? 0 : 1;
    const int peer = runtime.segment().control(1).pid.load();
    const Deadline deadline = Soon();
    while (kill(peer, 0) == 0 && runtime.segment().control(1).state.load() != 2) {
      if (deadline.passed()) return 2;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return news.Await(milliseconds(100)) ? 3 : 0;
  });
  EXPECT_EQ(ranks[1].Wait(), 0);
  EXPECT_EQ(ranks[0].Wait(), 0);
}

// Without a next epoch, a rank that asks for it must not stay behind as a peer that lives and says nothing.
TEST_F(StoreTest, ARankThatAsksForANextEpochLeavesInOrder) {
  std::vector<Child> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([this, rank] {
      FileStore store(folder_.path());
      auto runtime =
          Runtime::Init({.init_timeout = seconds(20), .bootstrap = BootstrapFromStore(&store, rank, 2), .stays = true});
      if (!runtime.ok()) return 1;
      if (rank == 1) {
        const Deadline deadline = Soon();
        while ((*runtime)->segment().control(0).state.load() != kRankFinalised) {
          if (deadline.passed()) return 2;
          std::this_thread::sleep_for(milliseconds(1));
        }
        return 0;
      }
      const absl::Status status = Runtime::NextEpoch(*std::move(runtime)).status();
      return status.code() == absl::StatusCode::kUnimplemented ? 0 : 3;
    });
  }
  for (Child& rank : ranks) EXPECT_EQ(rank.Wait(), 0);
}

TEST_F(StoreTest, MismatchesAreFoundAndToldToAll) {
  auto ranks = StartAll(3, [](Runtime& runtime) {
    News news(runtime);
    MakeCall(runtime, 3, runtime.rank() == 2 ? 99 : 10, runtime.rank() == 2 ? "b.cc:2" : "a.cc:1");
    runtime.Put("called/" + std::to_string(runtime.rank()), "yes", Soon()).IgnoreError();
    for (int peer = 0; peer < 3; ++peer) {
      if (!runtime.Get("called/" + std::to_string(peer), Soon()).ok()) return 1;
    }
    // Only one rank notices the stall; all are told.
    if (runtime.rank() == 0) runtime.ReportStall(9, 4, RankSet{.everyone = true, .ranks = {}}, false);
    if (!news.Await()) return 2;
    const GroupFailure& failure = news.failures.at(0);
    const std::string text(failure.status.message());
    const bool right = failure.group == 9 && failure.status.code() == absl::StatusCode::kFailedPrecondition &&
                       failure.blamed_rank == 2 && failure.from_rank == 0 &&
                       text.find(
                           "ranks 0,1 called all_reduce(float32, 10) at a.cc:1; but rank 2 called "
                           "all_reduce(float32, 99) at b.cc:2") != std::string::npos;
    if (!right) std::fprintf(stderr, "%s\n", text.c_str());
    // A communicator that is made only now is told too.
    const News late(runtime);
    return right && late.failures.size() == 1 ? 0 : 3;
  });
  for (Child& rank : ranks) EXPECT_EQ(rank.Wait(), 0);
}

TEST_F(StoreTest, AbsenceIsAFailureOnlyWhenTimeIsOver) {
  auto ranks = StartAll(2, [](Runtime& runtime) {
    News news(runtime);
    const RankSet everyone{.everyone = true, .ranks = {}};
    if (runtime.rank() == 0) {
      MakeCall(runtime, 3, 10, "a.cc:1");
      runtime.ReportStall(9, 4, everyone, false);
      if (news.Await(milliseconds(50))) return 1;
      runtime.ReportStall(9, 4, everyone, true);
      if (!news.Await() || news.failures.at(0).sequence != 4) return 4;
      const News late(runtime);  // an answer for those who wait, no failure yet
      if (!late.failures.empty()) return 5;
      GroupFailure failure = news.failures.at(0);
      failure.sequence = 0;
      runtime.ReportGroupFailure(failure);
    } else if (!news.Await() || news.failures.at(0).sequence != 0) {
      return 2;
    }
    const absl::Status status = news.failures.at(0).status;
    const bool right = absl::IsDeadlineExceeded(status) && news.failures.at(0).blamed_rank == 1 &&
                       status.message().find("rank 1 has not made the call that rank 0 waits in") != std::string::npos;
    if (!right) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return right ? 0 : 3;
  });
  for (Child& rank : ranks) EXPECT_EQ(rank.Wait(), 0);
}

TEST_F(StoreTest, GroupFailuresReachOnlyTheirMembers) {
  auto ranks = StartAll(3, [](Runtime& runtime) {
    News news(runtime);
    runtime.Put("listening/" + std::to_string(runtime.rank()), "yes", Soon()).IgnoreError();
    for (int peer = 0; peer < 3; ++peer) {
      if (!runtime.Get("listening/" + std::to_string(peer), Soon()).ok()) return 1;
    }
    if (runtime.rank() == 0) {
      GroupFailure failure;
      failure.group = 5;
      failure.members.ranks = {0, 1};
      failure.status = absl::AbortedError(std::string(5000, 'x'));
      failure.from_rank = 0;
      runtime.ReportGroupFailure(failure);
      runtime.Put("reported", "yes", Soon()).IgnoreError();
      return runtime.Get("heard", Soon()).ok() ? 0 : 2;
    }
    if (runtime.rank() == 1) {
      const bool heard = news.Await() && absl::IsAborted(news.failures.at(0).status) &&
                         news.failures.at(0).members.ranks == std::vector<int>({0, 1});
      runtime.Put("heard", "yes", Soon()).IgnoreError();
      return heard ? 0 : 3;
    }
    if (!runtime.Get("heard", Soon()).ok()) return 4;
    return news.Await(milliseconds(1)) ? 5 : 0;
  });
  for (Child& rank : ranks) EXPECT_EQ(rank.Wait(), 0);
}

TEST_F(StoreTest, ARankThatNeverComesIsNamed) {
  FileStore store(folder_.path());
  const auto runtime = Runtime::Init({.init_timeout = milliseconds(50), .bootstrap = BootstrapFromStore(&store, 0, 2)});
  EXPECT_EQ(runtime.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(runtime.status().message().find("rank 1 of 2 has not come"), std::string::npos) << runtime.status();
}

TEST_F(StoreTest, RefusesImpossibleRanks) {
  FileStore store(folder_.path());
  EXPECT_EQ(Runtime::Init({.bootstrap = BootstrapFromStore(&store, 2, 2)}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cohort::runtime
