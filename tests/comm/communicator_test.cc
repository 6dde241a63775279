// Communicators as values: identity, order, asynchrony, callbacks, groups of one, and a steady state without memory.
#include "cohort/comm/communicator.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "cohort/comm/batch.h"
#include "cohort/runtime/base/status_macros.h"
#include "tests/support/count_allocations.h"
#include "tests/support/process_cluster.h"
#include "tests/support/sim_cluster.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::Communicator;
using comm::ConstBuffer;
using comm::ReduceOp;
using runtime::Work;

// Every kind of call among two ranks, in blocks of `count` elements, and a batch. `in` and `out` have 2 * count + 1.
absl::Status CallEveryKind(Communicator& world, comm::Batch& batch, const float* in, float* out, int64_t count) {
  const int peer = 1 - world.rank();
  const ConstBuffer block(in, count), blocks(in, 2 * count);
  const Buffer to_block(out, count), to_blocks(out, 2 * count);
  COHORT_RETURN_IF_ERROR(world.AllReduce(block, to_block, ReduceOp::kAvg).Wait());
  COHORT_RETURN_IF_ERROR(world.Reduce(block, to_block, ReduceOp::kSum, 0).Wait());
  COHORT_RETURN_IF_ERROR(world.Broadcast(to_block, 1).Wait());
  COHORT_RETURN_IF_ERROR(world.Gather(block, to_blocks, 0).Wait());
  COHORT_RETURN_IF_ERROR(world.Scatter(blocks, to_block, 1).Wait());
  COHORT_RETURN_IF_ERROR(world.AllGather(block, to_blocks).Wait());
  COHORT_RETURN_IF_ERROR(world.ReduceScatter(blocks, to_block, ReduceOp::kMax).Wait());
  COHORT_RETURN_IF_ERROR(world.AllToAll(blocks, to_blocks).Wait());
  Work receive = world.Recv(to_block, peer);
  COHORT_RETURN_IF_ERROR(world.Send(block, peer).Wait());
  COHORT_RETURN_IF_ERROR(receive.Wait());

  const int64_t unequal[] = {count, count + 1}, equal[] = {count, count};
  const int64_t mine = unequal[world.rank()], all = 2 * count + 1;
  COHORT_RETURN_IF_ERROR(world.GatherV(ConstBuffer(in, mine), Buffer(out, all), {unequal, {}}, 0).Wait());
  COHORT_RETURN_IF_ERROR(world.ScatterV(ConstBuffer(in, all), {unequal, {}}, Buffer(out, mine), 0).Wait());
  COHORT_RETURN_IF_ERROR(world.AllGatherV(ConstBuffer(in, mine), Buffer(out, all), {unequal, {}}).Wait());
  COHORT_RETURN_IF_ERROR(
      world.ReduceScatterV(ConstBuffer(in, all), {unequal, {}}, Buffer(out, mine), ReduceOp::kSum).Wait());
  COHORT_RETURN_IF_ERROR(world.AllToAllV(blocks, {equal, {}}, to_blocks, {equal, {}}).Wait());

  batch.AllReduce(block, to_block, ReduceOp::kSum).Send(block, peer).Recv(Buffer(out + count, count), peer);
  COHORT_RETURN_IF_ERROR(batch.Submit().Wait());
  return world.Barrier().Wait();
}

class CommunicatorNodesTest : public ::testing::TestWithParam<int> {};

TEST_P(CommunicatorNodesTest, SteadyStateAllocatesNothing) {
  ProcessClusterOptions options;
  options.ranks = 2;
  options.nodes = GetParam();
  if (const std::string why = WhyHostsCannotTalk(); options.nodes > 1 && !why.empty()) GTEST_SKIP() << why;
  const std::vector<RankResult> results = RunProcesses(options, [](ProcessRank& rank) -> std::string {
    std::vector<float> in(8193, 1);
    std::vector<float> out(8193);
    comm::Batch batch(*rank.world);
    const auto round = [&]() -> absl::Status {
      for (const int64_t count : {1, 100, 4096}) {
        COHORT_RETURN_IF_ERROR(CallEveryKind(*rank.world, batch, in.data(), out.data(), count));
      }
      return absl::OkStatus();
    };
    for (int i = 0; i < 20; ++i) {
      if (const absl::Status status = round(); !status.ok()) return status.ToString();
    }
    // Handles of old calls that somebody keeps cost what they hold and no more.
    std::vector<Work> kept;
    for (int i = 0; i < 6; ++i) kept.push_back(rank.world->Barrier());
    for (Work& work : kept) {
      if (!work.Wait().ok()) return "barrier";
    }
    // Now and then more operations overlap than ever before, and one more is made: but not for every call.
    int64_t fewest = 1;
    for (int window = 0; window < 5; ++window) {
      const int64_t before = Allocations();
      for (int i = 0; i < 100; ++i) {
        if (const absl::Status status = round(); !status.ok()) return status.ToString();
      }
      fewest = std::min(fewest, Allocations() - before);
    }
    return fewest == 0 ? "" : "allocations in each of 5 times 100 rounds";
  });
  for (const RankResult& result : results) EXPECT_EQ(result.text, "");
}

INSTANTIATE_TEST_SUITE_P(SharedMemoryAndTcp, CommunicatorNodesTest, ::testing::Values(1, 2));

TEST(CommunicatorTest, GroupsOfOneCopy) {
  SimClusterOptions options;
  options.ranks = 1;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    const std::vector<int32_t> in = {1, 2, 3};
    std::vector<int32_t> out(3);
    EXPECT_TRUE(rank.world->AllReduce(ConstBuffer(in.data(), 3), Buffer(out.data(), 3), ReduceOp::kAvg).Wait().ok());
    EXPECT_EQ(out, in);
    EXPECT_TRUE(rank.world->Barrier().Wait().ok());
    EXPECT_NE(rank.world->Explain(comm::CollectiveKind::kAllReduce, 3, comm::DataType::kInt32).find("one rank"),
              std::string::npos);
  });
}

TEST(CommunicatorTest, CallbacksMaySubmit) {
  SimClusterOptions options;
  options.ranks = 3;
  options.network.seed = 5;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    std::vector<int64_t> value(1000, 1);
    std::atomic<int> left{5};
    std::function<void(const absl::Status&)> again = [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      if (--left == 0) return;
      rank.world->AllReduce(Buffer(value.data(), 1000), Buffer(value.data(), 1000), ReduceOp::kSum).Then(again);
    };
    rank.world->AllReduce(Buffer(value.data(), 1000), Buffer(value.data(), 1000), ReduceOp::kSum).Then(again);
    rank.WaitUntil([&] { return left.load() == 0; });
    EXPECT_EQ(value[999], 243);
    // The others' last operation may still need this rank.
    EXPECT_TRUE(rank.world->Barrier().Wait().ok());
  });
}

TEST(CommunicatorTest, DestructionCancelsWhatIsPending) {
  SimClusterOptions options;
  options.ranks = 2;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    const std::vector<int> both = {0, 1};
    auto group = rank.world->Subgroup(both);
    ASSERT_TRUE(group.ok());
    if (rank.rank == 0) {
      std::vector<float> data(1000);
      Work work = (*group)->AllReduce(Buffer(data.data(), 1000), Buffer(data.data(), 1000), ReduceOp::kSum);
      Work copy = work;
      EXPECT_FALSE(work.Done());
      group->reset();
      EXPECT_TRUE(copy.Done());
      EXPECT_TRUE(absl::IsCancelled(work.Wait())) << work.status();
    }
    EXPECT_TRUE(rank.world->Barrier().Wait().ok());
  });
}

// A callback that always submits the next operation when one is done learns that there is no next one.
TEST(CommunicatorTest, CallbacksOfCancelledWorksAreRefusedNewOnes) {
  SimClusterOptions options;
  options.ranks = 2;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    const std::vector<int> both = {0, 1};
    auto group = rank.world->Subgroup(both);
    ASSERT_TRUE(group.ok());
    Communicator* const communicator = group->get();
    std::vector<float> data(1000);
    int calls = 0;
    std::function<void(const absl::Status&)> again = [&](const absl::Status& status) {
      EXPECT_TRUE(absl::IsCancelled(status)) << status;
      if (++calls < 10) communicator->Barrier().Then(again);
    };
    if (rank.rank == 0) {
      communicator->AllReduce(Buffer(data.data(), 1000), Buffer(data.data(), 1000), ReduceOp::kSum).Then(again);
      communicator->Send(ConstBuffer(data.data(), 1000), 1).Then(again);
      group->reset();
      EXPECT_EQ(calls, 11);
    }
    EXPECT_TRUE(rank.world->Barrier().Wait().ok());
  });
}

// Makes a call of two ranks for which rank 0 has no memory at its allocation `number`. "" where no rank waits in vain,
// and *failed tells rank 0 whether it came so far.
std::string CallWithoutMemory(ProcessRank& rank, int64_t number, bool in_batch, bool* failed) {
  absl::StatusOr<std::unique_ptr<Communicator>> pair = rank.world->Duplicate();
  if (!pair.ok()) return pair.status().ToString();
  // A failure is no news to a rank that has no such group yet.
  if (const absl::Status met = rank.world->Barrier().Wait(); !met.ok()) return met.ToString();
  comm::CallOptions options;
  options.timeout = std::chrono::seconds(20);
  const std::array<int64_t, 4> in = {1, 2, 3, 4};
  std::array<int64_t, 4> out = {};
  std::array<int64_t, 4> received = {};
  const auto call = [&]() -> Work {
    const ConstBuffer from(in.data(), 4);
    const Buffer to(out.data(), 4);
    if (!in_batch) return (*pair)->AllReduce(from, to, ReduceOp::kSum, options);
    const int peer = 1 - rank.rank;
    comm::Batch batch(**pair);
    batch.Broadcast(to, 0, options).Send(from, peer, options).Recv(Buffer(received.data(), 4), peer, options);
    return batch.Submit();
  };
  Work work;
  bool thrown = false;
  FailAllocation(rank.rank == 0 ? number : 0);
  try {
    work = call();
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  *failed = FailAllocation(0) == 0 && rank.rank == 0;
  if (thrown && (*pair)->status().ok()) work = call();  // nothing had begun
  absl::Status status = thrown && !(*pair)->status().ok() ? (*pair)->status() : work.Wait();
  // A rank whose part was over learns of a failure by its next call.
  if (status.ok()) status = (*pair)->Barrier(options).Wait();
  return absl::IsDeadlineExceeded(status) ? "waits in vain: " + status.ToString() : "";
}

// The same at kNumbers allocations from `first` on, in one job: what a group in the midst of being made has taken of
// the segment stays taken. False where the call needs no more of them.
bool CallsWithoutMemory(int64_t first, bool in_batch) {
  constexpr int64_t kNumbers = 40;
  ProcessClusterOptions options;
  options.ranks = 2;
  bool more = false;
  for (const RankResult& result : RunProcesses(options, [first, in_batch](ProcessRank& rank) -> std::string {
         for (int64_t number = first; number < first + kNumbers; ++number) {
           bool failed = false;
           if (const std::string wrong = CallWithoutMemory(rank, number, in_batch, &failed); !wrong.empty()) {
             return "allocation " + std::to_string(number) + ": " + wrong;
           }
           int64_t again = failed ? 1 : 0;
           if (const absl::Status told = rank.world->Broadcast(Buffer(&again, 1), 0).Wait(); !told.ok()) {
             return told.ToString();
           }
           if (again == 0) return "";
         }
         return "more";
       })) {
    EXPECT_TRUE(result.text.empty() || result.text == "more") << result.text;
    more = result.text == "more";
  }
  return more;
}

TEST(CommunicatorTest, ACallThatRunsOutOfMemoryLeavesNoRankWaiting) {
  for (const bool in_batch : {false, true}) {
    int64_t first = 1;
    while (first < 1000 && CallsWithoutMemory(first, in_batch)) first += 40;
    EXPECT_GT(first, 1) << "it allocates little";
  }
}

// A child of fork that waits for its parent's receive, whose message is there.
TEST(CommunicatorTest, AForkedChildTakesNoMessageOfItsParents) {
  ProcessClusterOptions options;
  options.ranks = 2;
  for (const RankResult& result : RunProcesses(options, [](ProcessRank& rank) -> std::string {
         std::array<int64_t, 2> data = {7, 8};
         if (rank.rank == 1) {
           if (!rank.meet("receiving", 2)) return "rank 0 did not come";
           const absl::Status sent = rank.world->Send(ConstBuffer(data.data(), 2), 0).Wait();
           return !rank.meet("sent", 2) ? "rank 0 did not come again" : sent.ok() ? "" : sent.ToString();
         }
         std::array<int64_t, 2> received = {};
         Work work = rank.world->Recv(Buffer(received.data(), 2), 1);
         if (!rank.meet("receiving", 2) || !rank.meet("sent", 2)) return "rank 1 did not come";
         const pid_t child = fork();
         if (child == 0) _exit(work.Wait().ok() || work.Done() ? 1 : 0);
         int status = -1;
         waitpid(child, &status, 0);
         const absl::Status ended = work.Wait(std::chrono::seconds(20));
         if (!ended.ok()) return ended.ToString();
         return status == 0 && received == data ? "" : "the child's wait moved something";
       })) {
    EXPECT_EQ(result.text, "");
  }
}

TEST(CommunicatorTest, ExplainRefusesWhatIsNoCall) {
  SimClusterOptions options;
  options.ranks = 2;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    for (const int64_t count : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
      const std::string text = rank.world->Explain(comm::CollectiveKind::kAllReduce, count, comm::DataType::kFloat64);
      EXPECT_NE(text.find("no such call"), std::string::npos) << text;
    }
  });
}

TEST(CommunicatorTest, SubgroupsRefuseBadLists) {
  SimClusterOptions options;
  options.ranks = 3;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    if (rank.rank != 0) return;
    EXPECT_TRUE(absl::IsInvalidArgument(rank.world->Subgroup(std::vector<int>{0, 3}).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(rank.world->Subgroup(std::vector<int>{0, 0}).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(rank.world->Subgroup(std::vector<int>{1, 2}).status()));
  });
}

TEST(CommunicatorTest, GroupIdsAgreeBetweenRanksAndDifferBetweenGroups) {
  SimClusterOptions options;
  options.ranks = 4;
  SimCluster cluster(options);
  std::vector<std::vector<uint64_t>> ids(4);
  cluster.Run([&](SimRank& rank) {
    const std::vector<int> all = {0, 1, 2, 3};
    const std::vector<int> reversed = {3, 2, 1, 0};
    std::vector<uint64_t>& mine = ids[static_cast<size_t>(rank.rank)];
    mine.push_back(rank.world->id());
    for (const auto& list : {all, all, reversed}) mine.push_back((*rank.world->Subgroup(list))->id());
    mine.push_back((*rank.world->Split(7, 0))->id());
    mine.push_back((*rank.world->Split(7, 0))->id());
    EXPECT_EQ(*rank.world->Split(-1, 0), nullptr);
  });
  for (const auto& of_rank : ids) EXPECT_EQ(of_rank, ids[0]);
  for (size_t i = 0; i < ids[0].size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(ids[0][i], ids[0][j]);
  }
}

TEST(CommunicatorTest, MessagesKeepTheirOrder) {
  SimClusterOptions options;
  options.ranks = 3;
  options.network.seed = 11;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    constexpr int kMessages = 20;
    const int to = (rank.rank + 1) % 3;
    const int from = (rank.rank + 2) % 3;
    std::vector<std::vector<int32_t>> out, in;
    std::vector<Work> works;
    for (int i = 0; i < kMessages; ++i) {
      out.emplace_back(1 + i * 17, rank.rank * 1000 + i);
      in.emplace_back(1 + i * 17);
    }
    for (int i = 0; i < kMessages; ++i) {
      const auto count = static_cast<int64_t>(out[static_cast<size_t>(i)].size());
      works.push_back(rank.world->Recv(Buffer(in[static_cast<size_t>(i)].data(), count), from));
      works.push_back(rank.world->Send(ConstBuffer(out[static_cast<size_t>(i)].data(), count), to));
    }
    for (Work& work : works) EXPECT_TRUE(work.Wait().ok());
    for (int i = 0; i < kMessages; ++i) EXPECT_EQ(in[static_cast<size_t>(i)].back(), from * 1000 + i);
  });
}

TEST(CommunicatorTest, BuffersAreMadeOfRanges) {
  SimClusterOptions options;
  options.ranks = 2;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    const std::vector<int32_t> in = {1, 2, rank.rank};
    std::vector<int32_t> out(3);
    EXPECT_TRUE(rank.world->AllReduce(in, out, ReduceOp::kSum).Wait().ok());
    EXPECT_EQ(out, std::vector<int32_t>({2, 4, 1}));
    std::array<double, 2> block = {static_cast<double>(rank.rank), 7};
    EXPECT_TRUE(rank.world->Broadcast(block, 1).Wait().ok());
    EXPECT_EQ(block[0], 1);
    EXPECT_TRUE(rank.world->Broadcast({out.data(), out.size()}, 0).Wait().ok());
    EXPECT_TRUE(rank.world->Broadcast(std::span(out).first(2), 0).Wait().ok());
  });
  static_assert(!std::is_constructible_v<ConstBuffer, std::vector<int32_t>>);  // it would be gone before the call is
}

TEST(CommunicatorTest, UnknownAlgorithmsAreRefusedWithTheList) {
  for (const int ranks : {1, 2}) {
    SimClusterOptions options;
    options.ranks = ranks;
    SimCluster cluster(options);
    cluster.Run([](SimRank& rank) {
      comm::CallOptions call;
      call.algorithm = "no such thing";
      const absl::Status status = rank.world->Barrier(call).Wait();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_NE(status.ToString().find("flat"), std::string::npos) << status;
      EXPECT_TRUE(rank.world->Barrier().Wait().ok());  // nothing was sent
    });
  }
}

TEST(CommunicatorTest, SetTuningGivesAllRanksTheTableOfRankZero) {
  SimClusterOptions options;
  options.ranks = 3;
  SimCluster cluster(options);
  std::vector<std::string> tables(3);
  cluster.Run([&](SimRank& rank) {
    const std::string text = rank.rank == 0 ? "all_reduce:*=ring; remote.alpha_us=21.5" : "not looked at";
    ASSERT_TRUE(rank.world->SetTuning(text).ok());
    tables[static_cast<size_t>(rank.rank)] = rank.world->tuning();
    EXPECT_NE(rank.world->Explain(comm::CollectiveKind::kAllReduce, 8, comm::DataType::kFloat32).find("a rule of the"),
              std::string::npos);
    auto later = rank.world->Duplicate();
    ASSERT_TRUE(later.ok()) << later.status();
    EXPECT_EQ((*later)->tuning(), rank.world->tuning());
    for (Communicator* group : {rank.world, later->get()}) {
      int32_t value = 1;
      EXPECT_TRUE(group->AllReduce(Buffer(&value, 1), Buffer(&value, 1), ReduceOp::kSum).Wait().ok());
      EXPECT_EQ(value, 3);
    }
  });
  for (const std::string& table : tables) EXPECT_EQ(table, tables[0]);
  EXPECT_NE(tables[0].find("remote.alpha_us=21.5"), std::string::npos) << tables[0];
}

TEST(CommunicatorTest, SetTuningIsRefusedOnAllRanksOrNone) {
  SimClusterOptions options;
  options.ranks = 3;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    const std::string before = rank.world->tuning();
    const absl::Status status = rank.world->SetTuning(rank.rank == 0 ? "all_reduce:*=rings" : "all_reduce:*=ring");
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(rank.world->tuning(), before);
    EXPECT_TRUE(rank.world->Barrier().Wait().ok());
  });
}

TEST(CommunicatorTest, WorldsTakeATableThatIsEqualOnAllRanks) {
  SimClusterOptions options;
  options.ranks = 2;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    comm::CommunicatorOptions with;
    with.tuning = "no_such_figure=1";
    EXPECT_TRUE(absl::IsInvalidArgument(Communicator::World(*rank.runtime, with).status()));
    with.tuning = "max_pieces=7";
    const auto equal = Communicator::World(*rank.runtime, with);
    ASSERT_TRUE(equal.ok()) << equal.status();
    EXPECT_NE((*equal)->tuning().find("max_pieces=7"), std::string::npos) << (*equal)->tuning();
    with.tuning = rank.rank == 0 ? "max_pieces=7" : "max_pieces=8";
    const auto different = Communicator::World(*rank.runtime, with);
    ASSERT_TRUE(different.ok()) << different.status();
    const absl::Status status = (*different)->Barrier().Wait();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_NE(status.ToString().find("tuning"), std::string::npos) << status;
    EXPECT_TRUE((*equal)->Barrier().Wait().ok());  // the other group is as it was
  });
}

}  // namespace
}  // namespace cohort::testing
