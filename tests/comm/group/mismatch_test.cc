// Calls that do not match: every rank gets an error that names both calls and their places, wherever their messages
// meet, and also where they never do.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <source_location>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/process_cluster.h"
#include "tests/support/sim_cluster.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::CallOptions;
using comm::Communicator;
using comm::ConstBuffer;
using comm::ReduceOp;
using runtime::Work;

constexpr auto kBound = std::chrono::seconds(10);  // the promise is 1 s

// The call of one rank, with its own memory.
struct Calls {
  std::vector<float> in = std::vector<float>(4096, 1.0f);
  std::vector<float> out = std::vector<float>(4096);
  std::vector<int32_t> integers = std::vector<int32_t>(4096);

  Work AllReduce(Communicator& world, int64_t count, ReduceOp op = ReduceOp::kSum, const std::string& algorithm = "",
                 uint64_t tag = 0) {
    CallOptions options;
    options.algorithm = algorithm;
    options.tag = tag;
    return world.AllReduce(ConstBuffer(in.data(), count), Buffer(out.data(), count), op, options);
  }

  // Variable-count forms whose blocks all have `count` elements.
  Work GatherV(Communicator& world, int64_t count) {
    const std::vector<int64_t> counts(static_cast<size_t>(world.size()), count);
    return world.GatherV(ConstBuffer(in.data(), count), Buffer(out.data(), 4096), {counts, {}}, 0);
  }
  Work AllGatherV(Communicator& world, int64_t count) {
    const std::vector<int64_t> counts(static_cast<size_t>(world.size()), count);
    return world.AllGatherV(ConstBuffer(in.data(), count), Buffer(out.data(), 4096), {counts, {}});
  }
  Work AllToAllV(Communicator& world, int64_t count) {
    const std::vector<int64_t> counts(static_cast<size_t>(world.size()), count);
    return world.AllToAllV(ConstBuffer(in.data(), 4096), {counts, {}}, Buffer(out.data(), 4096), {counts, {}});
  }
};

struct Mismatch {
  const char* name;
  // The call of rank `odd`, and the call of all others.
  std::function<Work(Communicator&, Calls&)> wrong;
  std::function<Work(Communicator&, Calls&)> right;
  // Words that every rank's error must hold.
  std::vector<std::string> words;
};

std::vector<Mismatch> Mismatches() {
  const auto all_reduce = [](Communicator& world, Calls& calls) { return calls.AllReduce(world, 16); };
  const auto broadcast = [](Communicator& world, Calls& calls) {
    return world.Broadcast(Buffer(calls.out.data(), 16), 0);
  };
  return {
      {"Kind", broadcast, all_reduce, {"broadcast", "all_reduce"}},
      {"KindBarrier",
       [](Communicator& world, Calls&) { return world.Barrier(); },
       all_reduce,
       {"barrier", "all_reduce"}},
      {"Count", [](Communicator& world, Calls& calls) { return calls.AllReduce(world, 17); }, all_reduce, {"16", "17"}},
      {"LargeCount",
       [](Communicator& world, Calls& calls) { return calls.AllReduce(world, 4000); },
       [](Communicator& world, Calls& calls) { return calls.AllReduce(world, 4001); },
       {"4000", "4001"}},
      {"Root",
       [](Communicator& world, Calls& calls) { return world.Broadcast(Buffer(calls.out.data(), 16), 1); },
       broadcast,
       {"root 0", "root 1"}},
      {"Type",
       [](Communicator& world, Calls& calls) {
         return world.AllReduce(ConstBuffer(calls.integers.data(), 16), Buffer(calls.integers.data(), 16),
                                ReduceOp::kSum);
       },
       all_reduce,
       {"int32", "float32"}},
      {"Op",
       [](Communicator& world, Calls& calls) { return calls.AllReduce(world, 16, ReduceOp::kMax); },
       all_reduce,
       {"sum", "max"}},
      {"Tag",  // a repeated call
       [](Communicator& world, Calls& calls) { return calls.AllReduce(world, 8, ReduceOp::kSum, "", 7ull << 32 | 3); },
       [](Communicator& world, Calls& calls) { return calls.AllReduce(world, 8, ReduceOp::kSum, "", 8ull << 32 | 3); },
       {"tag 7/3", "tag 8/3"}},
      {"TagOfAnother",
       [](Communicator& world, Calls& calls) { return calls.AllReduce(world, 4000, ReduceOp::kSum, "", 1); },
       [](Communicator& world, Calls& calls) { return calls.AllReduce(world, 4000); },
       {"tag 0/1", "4000)"}},
      {"GatherVCount",
       [](Communicator& world, Calls& calls) { return calls.GatherV(world, 17); },
       [](Communicator& world, Calls& calls) { return calls.GatherV(world, 16); },
       {"gather_v", "16", "17", "elements from rank"}},
      {"AllToAllVCount",
       [](Communicator& world, Calls& calls) { return calls.AllToAllV(world, 0); },
       [](Communicator& world, Calls& calls) { return calls.AllToAllV(world, 600); },
       {"all_to_all_v", "expects", "600"}},
      {"AllGatherVCounts",
       [](Communicator& world, Calls& calls) { return calls.AllGatherV(world, 17); },
       [](Communicator& world, Calls& calls) { return calls.AllGatherV(world, 16); },
       {"all_gather_v"}},
      {"Empty", [](Communicator& world, Calls& calls) { return calls.AllReduce(world, 0); }, all_reduce, {"0", "16"}},
  };
}

// "" when the status is as it must be.
std::string CheckError(const absl::Status& status, const std::vector<std::string>& words) {
  const std::string text(status.message());
  if (!absl::IsFailedPrecondition(status)) return "not kFailedPrecondition: " + status.ToString();
  for (const std::string& word : words) {
    if (text.find(word) == std::string::npos) return "\"" + word + "\" is missing in: " + text;
  }
  if (text.find("mismatch_test.cc:") == std::string::npos) return "no call site in: " + text;
  return "";
}

// A rank whose call had already returned success gets the error at its next call.
absl::Status CallsUntilError(Communicator& world, Work first) {
  absl::Status status = first.Wait();
  const auto deadline = std::chrono::steady_clock::now() + kBound;
  while (status.ok() && std::chrono::steady_clock::now() < deadline) {
    CallOptions options;
    options.timeout = kBound;
    status = world.Barrier(options).Wait();
  }
  return status;
}

struct Setting {
  Mismatch mismatch;
  int ranks;
  int nodes;
  int odd;
};

class MismatchTest : public ::testing::TestWithParam<Setting> {};

TEST_P(MismatchTest, EveryRankIsToldBothCallsOfAMismatch) {
  const Setting& setting = GetParam();
  ProcessClusterOptions options;
  options.ranks = setting.ranks;
  options.nodes = setting.nodes;
  const std::vector<RankResult> results = RunProcesses(options, [&](ProcessRank& rank) -> std::string {
    Calls calls;
    if (const absl::Status status = calls.AllReduce(*rank.world, 8).Wait(); !status.ok()) return status.ToString();
    if (!rank.meet("first", rank.size)) return "not all have done the first call";
    const auto start = std::chrono::steady_clock::now();
    const auto& call = rank.rank == setting.odd ? setting.mismatch.wrong : setting.mismatch.right;
    const absl::Status status = CallsUntilError(*rank.world, call(*rank.world, calls));
    if (std::chrono::steady_clock::now() - start > kBound) return "too late: " + status.ToString();
    if (rank.world->status() != status) return "not sticky";
    std::string wrong = CheckError(status, setting.mismatch.words);
    rank.meet("end", rank.size);  // a rank that ends must not be the reason of another's error
    return wrong;
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.text, "");
    EXPECT_TRUE(result.exited);
  }
}

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  for (const Mismatch& mismatch : Mismatches()) {
    settings.push_back({mismatch, 2, 1, 1});
    settings.push_back({mismatch, 4, 1, 0});
    settings.push_back({mismatch, 5, 1, 3});
  }
  return settings;
}

std::string NameOf(const ::testing::TestParamInfo<Setting>& info) {
  return std::string(info.param.mismatch.name) + "_ranks" + std::to_string(info.param.ranks) + "_odd" +
         std::to_string(info.param.odd);
}

INSTANTIATE_TEST_SUITE_P(Calls, MismatchTest, ::testing::ValuesIn(Settings()), NameOf);

// The wire finds it between hosts too, where nobody can look into the other's black box.
TEST(MismatchBetweenHostsTest, BothRanksAreToldBothCallsOfAMismatch) {
  if (const std::string why = WhyHostsCannotTalk(); !why.empty()) GTEST_SKIP() << why;
  ProcessClusterOptions options;
  options.ranks = 2;
  options.nodes = 2;
  const std::vector<RankResult> results = RunProcesses(options, [](ProcessRank& rank) -> std::string {
    Calls calls;
    if (const absl::Status status = calls.AllReduce(*rank.world, 8).Wait(); !status.ok()) return status.ToString();
    if (!rank.meet("first", 2)) return "not all have done the first call";
    const absl::Status status = CallsUntilError(*rank.world, calls.AllReduce(*rank.world, 16 + rank.rank));
    rank.meet("end", 2);
    return CheckError(status, {"16", "17"});
  });
  for (const RankResult& result : results) EXPECT_EQ(result.text, "");
}

// As those of a caller in C that gives none.
TEST(MismatchTest, CallsWithoutAPlaceAreToldWithoutOne) {
  ProcessClusterOptions options;
  options.ranks = 2;
  const std::vector<RankResult> results = RunProcesses(options, [](ProcessRank& rank) -> std::string {
    Calls calls;
    const int64_t count = 16 + rank.rank;
    const Work work = rank.world->AllReduce(ConstBuffer(calls.in.data(), count), Buffer(calls.out.data(), count),
                                            ReduceOp::kSum, {}, std::source_location());
    const absl::Status status = CallsUntilError(*rank.world, work);
    rank.meet("end", 2);
    const std::string text(status.message());
    if (text.find("float32, 16)") == std::string::npos) return "another error: " + text;
    return text.find(" at :") == std::string::npos ? "" : "a place that is none: " + text;
  });
  for (const RankResult& result : results) EXPECT_EQ(result.text, "");
}

// Rank 2's wrong call waits for nobody and succeeds; the communicator goes before another call can report it.
TEST(MismatchTest, FinalizeReportsTheMismatchOfADestroyedCommunicator) {
  ProcessClusterOptions options;
  options.ranks = 3;
  for (const RankResult& result : RunProcesses(options, [](ProcessRank& rank) -> std::string {
         auto group = rank.world->Duplicate();
         if (!group.ok()) return group.status().ToString();
         Calls calls;
         if (rank.rank != 2) {
           const absl::Status status = calls.AllReduce(**group, 8).Wait();
           rank.meet("failed", 3);
           return CheckError(status, {"broadcast", "all_reduce"});
         }
         const absl::Status status = (*group)->Broadcast(Buffer(calls.out.data(), 8), 2).Wait();
         if (!status.ok()) return "the broadcast knew: " + status.ToString();
         if (!rank.meet("failed", 3)) return "the others did not fail";
         group->reset();
         return CheckError(rank.runtime->Finalize(), {"broadcast", "all_reduce"});
       })) {
    EXPECT_EQ(result.text, "");
  }
}

// Rank 0 sends to rank 1 and rank 1 to rank 2; rank 2's call waits for nobody who sends: the messages never meet, so
// the calls are compared when nothing moves.
TEST(SecondNetTest, MismatchesAreFoundWhereMessagesNeverMeet) {
  ProcessClusterOptions options;
  options.ranks = 3;
  const std::vector<RankResult> results = RunProcesses(options, [](ProcessRank& rank) -> std::string {
    Calls calls;
    // Each waits for the next one's root: nobody has anything to send.
    Work work = rank.world->Broadcast(Buffer(calls.out.data(), 4000), (rank.rank + 1) % 3);
    const absl::Status status = work.Wait(kBound);
    rank.meet("end", 3);
    return CheckError(status, {"broadcast", "root 0", "root 1", "root 2"});
  });
  for (const RankResult& result : results) EXPECT_EQ(result.text, "");
}

TEST(AbsentCallTest, TheDeadlineNamesTheMissingRank) {
  ProcessClusterOptions options;
  options.ranks = 3;
  const std::vector<RankResult> results = RunProcesses(options, [](ProcessRank& rank) -> std::string {
    Calls calls;
    CallOptions call_options;
    call_options.timeout = std::chrono::seconds(1);
    absl::Status status;
    if (rank.rank != 2) status = rank.world->Barrier(call_options).Wait(kBound);
    rank.meet("expired", 3);
    if (rank.rank == 2) status = CallsUntilError(*rank.world, rank.world->Barrier(call_options));
    const std::string text(status.message());
    if (!absl::IsDeadlineExceeded(status)) return "not kDeadlineExceeded: " + status.ToString();
    if (text.find("rank 2") == std::string::npos) return "rank 2 is not named: " + text;
    return "";
  });
  for (const RankResult& result : results) EXPECT_EQ(result.text, "");
}

// The answer to who is late may come when nobody is any more: a group whose calls were all OK must not fail by it.
TEST(AbsentCallTest, ADeadlineFailsTheGroupOnlyIfACallDid) {
  static constexpr int kLastTurn = 15;  // where rank 2 is late for certain
  int failed = 0;
  for (int turn = 0; turn <= kLastTurn; ++turn) {
    ProcessClusterOptions options;
    options.ranks = 3;
    const std::vector<RankResult> results = RunProcesses(options, [turn](ProcessRank& rank) -> std::string {
      absl::Status work;
      for (int i = 0; i < 20 && work.ok(); ++i) {
        CallOptions call_options;
        if (i == 10) call_options.timeout = std::chrono::nanoseconds(0);
        const bool last = i == 10 && turn == kLastTurn;
        if (i == 10 && rank.rank == 2) std::this_thread::sleep_for(std::chrono::microseconds(turn % 4 * 300));
        if (last && rank.rank == 2) rank.meet("expired", 3);
        work = rank.world->Barrier(call_options).Wait(kBound);
        if (last && rank.rank != 2) rank.meet("expired", 3);
      }
      rank.meet("end", 3);
      const absl::Status next = rank.world->Barrier().Wait(kBound);
      if (!next.ok() && !absl::IsDeadlineExceeded(next)) return next.ToString();
      return std::string(work.ok() ? "all were OK" : "one failed") + (next.ok() ? ", goes on" : ", has ended");
    });
    const bool all_ok = std::all_of(results.begin(), results.end(),
                                    [](const RankResult& result) { return result.text.find("all were OK") == 0; });
    failed += all_ok ? 0 : 1;
    for (const RankResult& result : results) {
      EXPECT_NE(result.text.find(all_ok ? ", goes on" : ", has ended"), std::string::npos) << result.text;
    }
  }
  EXPECT_GT(failed, 0);
}

TEST(PointToPointMismatchTest, AMismatchOfSendAndRecvNamesBothSides) {
  ProcessClusterOptions options;
  options.ranks = 2;
  const std::vector<RankResult> results = RunProcesses(options, [](ProcessRank& rank) -> std::string {
    Calls calls;
    Work work = rank.rank == 0 ? rank.world->Send(ConstBuffer(calls.in.data(), 5), 1)
                               : rank.world->Recv(Buffer(calls.out.data(), 6), 0);
    const absl::Status status = CallsUntilError(*rank.world, work);
    rank.meet("end", 2);
    return CheckError(status, {"recv(float32, 6, from 0)", "send(float32, 5, to 1)"});
  });
  for (const RankResult& result : results) EXPECT_EQ(result.text, "");
}

TEST(AbortTest, AbortFailsAllMembersWithTheReason) {
  SimClusterOptions options;
  options.ranks = 4;
  options.nodes = 2;
  SimCluster cluster(options);
  std::vector<absl::Status> statuses(4);
  cluster.Run([&](SimRank& rank) {
    Calls calls;
    if (rank.rank == 2) rank.world->Abort("the loss is no number");
    statuses[static_cast<size_t>(rank.rank)] = calls.AllReduce(*rank.world, 16).Wait();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_NE(status.ToString().find("rank 2 aborted the group: the loss is no number"), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace cohort::testing
