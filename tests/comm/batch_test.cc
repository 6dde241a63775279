// Batches: many calls as one, in an order of each rank's own where the calls are messages.
#include "cohort/comm/batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/runtime/segment/black_box.h"
#include "tests/support/count_allocations.h"
#include "tests/support/process_cluster.h"
#include "tests/support/sim_cluster.h"

namespace cohort::testing {
namespace {

using comm::Batch;
using comm::Buffer;
using comm::CallOptions;
using comm::Communicator;
using comm::ConstBuffer;
using comm::ReduceOp;

std::string RunAll(int ranks, const std::function<std::string(ProcessRank&)>& program) {
  ProcessClusterOptions options;
  options.ranks = ranks;
  std::string wrong;
  for (const RankResult& result : RunProcesses(options, program)) wrong += result.text;
  return wrong;
}

// Calls of this rank in its black box.
size_t Recorded(ProcessRank& rank) { return rank.runtime->segment().black_box_of(rank.rank).All().size(); }

TEST(BatchTest, SmallAllReducesBecomeOneMessage) {
  EXPECT_EQ(RunAll(3,
                   [](ProcessRank& rank) -> std::string {
                     std::vector<std::vector<int64_t>> memory;
                     for (int i = 0; i < 100; ++i) memory.emplace_back(static_cast<size_t>(i % 7), rank.rank + i);
                     std::vector<float> other(5, 1.0f);
                     Batch batch(*rank.world);
                     for (auto& data : memory) {
                       const Buffer buffer(data.data(), static_cast<int64_t>(data.size()));
                       batch.AllReduce(buffer, buffer, ReduceOp::kSum);
                     }
                     batch.AllReduce(ConstBuffer(other.data(), 5), Buffer(other.data(), 5), ReduceOp::kMax);
                     const size_t before = Recorded(rank);
                     if (const absl::Status status = batch.Submit().Wait(); !status.ok()) return status.ToString();
                     const size_t calls = Recorded(rank) - before;
                     if (calls != 2) return "made " + std::to_string(calls) + " calls of two types";
                     for (int i = 0; i < 100; ++i) {
                       for (const int64_t value : memory[static_cast<size_t>(i)]) {
                         if (value != 3 + 3 * i) return "all-reduce " + std::to_string(i) + " is wrong";
                       }
                     }
                     return "";
                   }),
            "");
}

TEST(BatchTest, MessagesInAnyOrderDoNotStandStill) {
  EXPECT_EQ(RunAll(3,
                   [](ProcessRank& rank) -> std::string {
                     constexpr int64_t kCount = 1 << 18;  // no transport buffers that much
                     const int next = (rank.rank + 1) % 3;
                     const int previous = (rank.rank + 2) % 3;
                     std::vector<int32_t> out(kCount, rank.rank);
                     std::vector<int32_t> in(kCount, -1);
                     std::vector<int32_t> self(10, -1);
                     std::vector<int32_t> sum(1, rank.rank);
                     Batch batch(*rank.world);
                     if (rank.rank == 1) batch.Recv(Buffer(in.data(), kCount), previous);
                     batch.Send(ConstBuffer(out.data(), 10), rank.rank).Send(ConstBuffer(out.data(), kCount), next);
                     batch.AllReduce(ConstBuffer(sum.data(), 1), Buffer(sum.data(), 1), ReduceOp::kSum);
                     if (rank.rank != 1) batch.Recv(Buffer(in.data(), kCount), previous);
                     batch.Recv(Buffer(self.data(), 10), rank.rank);
                     if (const absl::Status status = batch.Submit().Wait(std::chrono::seconds(30)); !status.ok()) {
                       return status.ToString();
                     }
                     const auto all = [](const std::vector<int32_t>& values, int expected) {
                       return std::all_of(values.begin(), values.end(),
                                          [=](int32_t value) { return value == expected; });
                     };
                     if (!all(in, previous) || !all(self, rank.rank)) return "a message is wrong";
                     return sum[0] == 3 ? "" : "the sum is wrong";
                   }),
            "");
}

TEST(BatchTest, BatchesThatDoNotMatchFailEverywhere) {
  EXPECT_EQ(RunAll(2,
                   [](ProcessRank& rank) -> std::string {
                     std::vector<float> data(64, 1.0f);
                     Batch batch(*rank.world);
                     for (const int64_t count : {rank.rank + 3, 4 - rank.rank}) {  // 3 and 4, 4 and 3
                       batch.AllReduce(ConstBuffer(data.data(), count), Buffer(data.data(), count), ReduceOp::kSum);
                     }
                     const absl::Status status = batch.Submit().Wait(std::chrono::seconds(30));
                     rank.meet("end", 2);
                     return absl::IsFailedPrecondition(status) ? "" : "not kFailedPrecondition: " + status.ToString();
                   }),
            "");
}

TEST(BatchTest, ARefusedBatchStartsNothing) {
  EXPECT_EQ(RunAll(2,
                   [](ProcessRank& rank) -> std::string {
                     std::vector<float> data(64, 1.0f);
                     Batch batch(*rank.world);
                     batch.AllReduce(ConstBuffer(data.data(), 4), Buffer(data.data(), 4), ReduceOp::kSum);
                     batch.Send(ConstBuffer(data.data(), 4), 7);
                     if (rank.rank == 0 && !absl::IsInvalidArgument(batch.Submit().Wait()))
                       return "rank 7 was accepted";
                     CallOptions options;
                     options.timeout = std::chrono::seconds(20);
                     return std::string(rank.world->Barrier(options).Wait().message());
                   }),
            "");
}

TEST(BatchTest, ARefusedBatchOfAGroupOfOneStartsNothing) {
  SimClusterOptions options;
  options.ranks = 1;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    const std::vector<float> in = {1, 2};
    std::vector<float> out(2);
    CallOptions wrong;
    wrong.algorithm = "no such thing";
    Batch batch(*rank.world);
    batch.AllReduce(in, out, ReduceOp::kSum).AllReduce(in, out, ReduceOp::kSum, wrong);
    EXPECT_TRUE(absl::IsInvalidArgument(batch.Submit().Wait()));
    EXPECT_EQ(out, std::vector<float>(2));
  });
}

TEST(BatchTest, WrongCallsOfAFailedGroupEndWithItsErrorInABatchAndAlone) {
  SimClusterOptions options;
  options.ranks = 2;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    std::vector<float> data(4);
    rank.world->Abort("a test");
    const Buffer wrong(data.data(), -1);
    const absl::Status alone = rank.world->AllReduce(wrong, wrong, ReduceOp::kSum).Wait();
    Batch batch(*rank.world);
    const absl::Status batched = batch.AllReduce(wrong, wrong, ReduceOp::kSum).Submit().Wait();
    EXPECT_EQ(alone, rank.world->status());
    EXPECT_EQ(batched, rank.world->status());
    EXPECT_FALSE(alone.ok());
    EXPECT_EQ(rank.world->RegisterDeviceMemory(wrong), rank.world->status());
  });
}

// Rank r's block has r + 1 elements, and two batches are under way at once. The lists of a variable-count call need not
// outlive the call that adds it.
TEST(BatchTest, VariableCountFormsKeepTheirLists) {
  EXPECT_EQ(RunAll(3,
                   [](ProcessRank& rank) -> std::string {
                     const int64_t mine = rank.rank + 1;
                     const std::vector<int32_t> in(static_cast<size_t>(mine), rank.rank);
                     std::vector<int32_t> all(6, -1), ordered = {9, 9, 9, 9, 9, 9, 9}, sum(3, 0), ones(6, 1);
                     Batch first(*rank.world);
                     Batch second(*rank.world);
                     {
                       std::vector<int64_t> counts = {1, 2, 3};
                       std::vector<int64_t> backwards = {6, 4, 0};
                       first.AllGatherV(ConstBuffer(in.data(), mine), Buffer(all.data(), 6), {counts, {}});
                       first.AllGatherV(ConstBuffer(in.data(), mine), Buffer(ordered.data(), 7), {counts, backwards});
                       second.ReduceScatterV(ConstBuffer(ones.data(), 6), {counts, {}}, Buffer(sum.data(), mine),
                                             ReduceOp::kSum);
                       counts.assign(3, 777);
                       backwards.assign(3, -777);
                     }
                     comm::Work works[] = {first.Submit(), second.Submit()};
                     for (comm::Work& work : works) {
                       if (const absl::Status status = work.Wait(); !status.ok()) return status.ToString();
                     }
                     if (all != std::vector<int32_t>({0, 1, 1, 2, 2, 2})) return "all_gather_v is wrong";
                     if (ordered != std::vector<int32_t>({2, 2, 2, 9, 1, 1, 0})) return "displacements are wrong";
                     return sum[0] == 3 && sum[static_cast<size_t>(mine) - 1] == 3 ? "" : "reduce_scatter_v is wrong";
                   }),
            "");
}

// Messages, gathered sums, a large one and a variable-count form: again and again without memory of their own.
TEST(BatchTest, SteadyStateAllocatesNothing) {
  EXPECT_EQ(RunAll(2,
                   [](ProcessRank& rank) -> std::string {
                     std::vector<float> memory(40'000, 1.0f);
                     std::vector<float> result(40'000);
                     const int peer = 1 - rank.rank;
                     const int64_t counts[] = {3, 5};
                     const int64_t mine = counts[rank.rank];
                     CallOptions options;
                     options.algorithm = "recursive_doubling";
                     Batch batch(*rank.world);
                     const auto round = [&] {
                       for (int64_t i = 0; i < 10; ++i) {
                         batch.AllReduce(ConstBuffer(&memory[static_cast<size_t>(100 * i)], i),
                                         Buffer(&result[static_cast<size_t>(100 * i)], i),
                                         i % 2 == 0 ? ReduceOp::kMax : ReduceOp::kSum);
                       }
                       batch.AllReduce(ConstBuffer(memory.data(), 2000), Buffer(&result[2000], 2000), ReduceOp::kSum,
                                       options);
                       batch.AllReduce(ConstBuffer(memory.data(), 8000), Buffer(&result[4000], 8000), ReduceOp::kSum);
                       batch.AllGatherV(ConstBuffer(memory.data(), mine), Buffer(&result[20'000], 8), {counts, {}});
                       batch.Send(ConstBuffer(memory.data(), 500), peer).Recv(Buffer(&result[30'000], 500), peer);
                       return batch.Submit().Wait();
                     };
                     for (int i = 0; i < 20; ++i) {
                       if (const absl::Status status = round(); !status.ok()) return status.ToString();
                     }
                     // Operations of one rank may overlap the other's as never before, and a ring grow with what it
                     // has carried, but not again and again.
                     int64_t fewest = 1;
                     for (int window = 0; window < 20; ++window) {
                       const int64_t before = Allocations();
                       for (int i = 0; i < 100; ++i) {
                         if (const absl::Status status = round(); !status.ok()) return status.ToString();
                       }
                       fewest = std::min(fewest, Allocations() - before);
                     }
                     return fewest == 0 ? "" : "allocations in each of 20 times 100 batches";
                   }),
            "");
}

TEST(BatchTest, AnEmptyBatchIsDone) {
  SimCluster cluster({});
  cluster.Run([](SimRank& rank) { EXPECT_TRUE(Batch(*rank.world).Submit().Done()); });
}

TEST(SelfMessageTest, MessagesToTheRankItselfKeepTheirOrderAndCounts) {
  SimClusterOptions options;
  options.ranks = 1;
  SimCluster cluster(options);
  cluster.Run([](SimRank& rank) {
    std::vector<int32_t> sent = {1, 2, 3, 4};
    std::vector<int32_t> got(4);
    std::vector<comm::Work> works;
    works.push_back(rank.world->Recv(Buffer(got.data(), 1), 0));
    for (int i = 0; i < 4; ++i) works.push_back(rank.world->Send(ConstBuffer(&sent[static_cast<size_t>(i)], 1), 0));
    EXPECT_TRUE(works[0].Done());
    EXPECT_FALSE(works[2].Done());
    for (int i = 1; i < 4; ++i) works.push_back(rank.world->Recv(Buffer(&got[static_cast<size_t>(i)], 1), 0));
    for (comm::Work& work : works) EXPECT_TRUE(work.Wait().ok());
    EXPECT_EQ(got, sent);
    comm::Work send = rank.world->Send(ConstBuffer(sent.data(), 4), 0);
    const absl::Status status = rank.world->Recv(Buffer(got.data(), 3), 0).Wait();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_NE(status.message().find("send(int32, 4, to 0)"), std::string::npos) << status;
    EXPECT_NE(status.message().find("recv(int32, 3, from 0)"), std::string::npos) << status;
    EXPECT_EQ(send.Wait(), status);
  });
}

// Many messages to and from all peers at once, waited for from the last to the first.
TEST(PointToPointTest, ManyMessagesToAllPeersMayBeOutstanding) {
  EXPECT_EQ(RunAll(4,
                   [](ProcessRank& rank) -> std::string {
                     constexpr int kMessages = 300;
                     std::vector<int32_t> out(4 * kMessages);
                     std::vector<int32_t> in(4 * kMessages, -1);
                     std::vector<comm::Work> works;
                     for (int i = 0; i < kMessages; ++i) {
                       for (int peer = 0; peer < 4; ++peer) {
                         const auto at = static_cast<size_t>(peer * kMessages + i);
                         out[at] = 1000000 * rank.rank + 1000 * peer + i;
                         works.push_back(rank.world->Recv(Buffer(&in[at], 1), peer));
                         works.push_back(rank.world->Send(ConstBuffer(&out[at], 1), peer));
                       }
                     }
                     std::reverse(works.begin(), works.end());
                     for (comm::Work& work : works) {
                       if (const absl::Status status = work.Wait(); !status.ok()) return status.ToString();
                     }
                     for (int peer = 0; peer < 4; ++peer) {
                       for (int i = 0; i < kMessages; ++i) {
                         if (in[static_cast<size_t>(peer * kMessages + i)] != 1000000 * peer + 1000 * rank.rank + i) {
                           return "message " + std::to_string(i) + " of rank " + std::to_string(peer) + " is wrong";
                         }
                       }
                     }
                     return "";
                   }),
            "");
}

}  // namespace
}  // namespace cohort::testing
