// A communicator that one rank destroys while its call is pending: the others' calls fail and name that rank, or have
// the right result where all data had been sent. No call reads what the rank's memory holds afterwards.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/group/transport_set.h"
#include "cohort/comm/transport/shm/runtime_binding.h"
#include "tests/support/process_cluster.h"
#include "tests/support/sim_cluster.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::CallOptions;
using comm::Communicator;
using comm::ConstBuffer;
using comm::ReduceOp;

constexpr int64_t kMostCount = 1 << 17;
constexpr int64_t kCounts[] = {2, 1024, 2048, 16'384, kMostCount};
const char* const kAlgorithms[] = {"", "flat", "recursive_doubling", "ring", "rabenseifner", "single_copy"};
// A call that nobody fails would wait for its timeout, ten minutes.
constexpr std::chrono::seconds kAtOnce{60};

// The input of `rank` to an all-reduce of int32_t.
int32_t Input(int rank) { return 1 << rank; }

// "" when a call of a rank that has not destroyed its communicator ended as it should.
std::string CheckEnd(const absl::Status& status, int destroyer, std::chrono::steady_clock::time_point begun) {
  if (std::chrono::steady_clock::now() - begun > kAtOnce) return "too late: " + status.ToString();
  if (status.ok()) return "";
  const std::string named = "rank " + std::to_string(destroyer) + " destroyed the communicator";
  if (!absl::IsAborted(status) || status.message().find(named) == std::string::npos) {
    return "the error does not say \"" + named + "\": " + status.ToString();
  }
  return "";
}

std::string CheckSum(const int32_t* data, int64_t count, int ranks) {
  const int32_t sum = (1 << ranks) - 1;
  const int32_t* wrong = std::find_if(data, data + count, [sum](int32_t value) { return value != sum; });
  if (wrong == data + count) return "";
  return "OK with " + std::to_string(*wrong) + " instead of " + std::to_string(sum) + " at " +
         std::to_string(wrong - data);
}

struct Setting {
  const char* name;
  int ranks;
  bool windows;
  bool late;  // the others come to the group only when it has been destroyed
};

struct Buffers {
  int32_t* in;
  int32_t* out;
};

// Rank 0 destroys a copy of the world group amid an all-reduce and overwrites its buffers.
std::string DestroyAmidCall(ProcessRank& rank, const Setting& setting, const Buffers& buffers, int64_t count,
                            const std::string& algorithm, const std::string& name) {
  std::fill_n(buffers.in, count, Input(rank.rank));
  std::fill_n(buffers.out, count, -1);
  if (!rank.meet(name + " begin", rank.size)) return "nobody came to the beginning";
  if (setting.late && rank.rank != 0 && !rank.meet(name, rank.size)) return "rank 0 did not destroy its communicator";
  auto group = rank.world->Duplicate();
  if (!group.ok()) return group.status().ToString();
  CallOptions options;
  options.algorithm = algorithm;
  const auto begun = std::chrono::steady_clock::now();
  runtime::Work work =
      (*group)->AllReduce(ConstBuffer(buffers.in, count), Buffer(buffers.out, count), ReduceOp::kSum, options);
  std::string wrong;
  if (rank.rank == 0) {
    group->reset();
    const absl::Status status = work.Wait();
    if (!status.ok() && !absl::IsCancelled(status)) wrong = "rank 0's own call: " + status.ToString();
    std::fill_n(buffers.in, count, 1 << 20);
    std::fill_n(buffers.out, count, 1 << 21);
    if (setting.late && !rank.meet(name, rank.size)) return "the others did not wait";
  } else {
    const absl::Status status = work.Wait();
    wrong = CheckEnd(status, 0, begun);
    if (wrong.empty() && status.ok()) wrong = CheckSum(buffers.out, count, rank.size);
  }
  if (!rank.meet(name + " end", rank.size)) return "nobody came to the end";
  return wrong;
}

std::string DestroyAmidCalls(ProcessRank& rank, const Setting& setting) {
  {
    runtime::EngineLock lock(rank.runtime->engine());
    comm::TransportSet::Of(*rank.runtime)
        .Add(comm::MakeShmTransport(*rank.runtime, comm::ShmOptions{.private_reads = true}));
  }
  std::vector<int32_t> memory(2 * kMostCount);
  Buffers buffers{memory.data(), memory.data() + kMostCount};
  auto window = rank.world->AllocateWindow(2 * kMostCount * sizeof(int32_t));
  if (!window.ok()) return window.status().ToString();
  if (setting.windows) {
    buffers.in = static_cast<int32_t*>(window->data());
    buffers.out = buffers.in + kMostCount;
  }
  std::string first;
  for (const char* algorithm : kAlgorithms) {
    for (const int64_t count : kCounts) {
      const std::string name = std::string(algorithm) + " of " + std::to_string(count);
      const std::string wrong = DestroyAmidCall(rank, setting, buffers, count, algorithm, name);
      if (first.empty() && !wrong.empty()) first = name + ": " + wrong;
    }
  }
  return first;
}

class DestroyedTest : public ::testing::TestWithParam<Setting> {};

TEST_P(DestroyedTest, OthersFailOrHaveTheRightResultAfterARankDestroysTheGroup) {
  const Setting setting = GetParam();
  ProcessClusterOptions options;
  options.ranks = setting.ranks;
  for (const RankResult& result :
       RunProcesses(options, [&setting](ProcessRank& rank) { return DestroyAmidCalls(rank, setting); })) {
    EXPECT_FALSE(result.hung);
    EXPECT_EQ(result.text, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, DestroyedTest,
                         ::testing::Values(Setting{"windows2_late", 2, true, true},
                                           Setting{"windows3_late", 3, true, true},
                                           Setting{"private2_late", 2, false, true},
                                           Setting{"private3_late", 3, false, true},
                                           Setting{"windows2", 2, true, false}, Setting{"windows3", 3, true, false},
                                           Setting{"private2", 2, false, false}, Setting{"private3", 3, false, false}),
                         [](const auto& info) { return std::string(info.param.name); });

// A message that had left whole before the end may still arrive.
TEST(DestroyedMessageTest, ARecvOfAMessageThatIsNotSentAnyMoreFailsOrHasItWhole) {
  ProcessClusterOptions options;
  options.ranks = 2;
  const std::vector<RankResult> results = RunProcesses(options, [](ProcessRank& rank) -> std::string {
    std::vector<int32_t> data(kMostCount, 7);
    auto group = rank.world->Duplicate();
    if (!group.ok()) return group.status().ToString();
    if (rank.rank == 0) {
      const runtime::Work work = (*group)->Send(ConstBuffer(data.data(), kMostCount), 1);
      group->reset();
      std::fill(data.begin(), data.end(), 0);
      return rank.meet("destroyed", 2) ? "" : "rank 1 did not come";
    }
    if (!rank.meet("destroyed", 2)) return "rank 0 did not come";
    std::fill(data.begin(), data.end(), 1);
    const auto begun = std::chrono::steady_clock::now();
    const absl::Status status = (*group)->Recv(Buffer(data.data(), kMostCount), 0).Wait();
    if (status.ok()) {
      const bool whole = std::all_of(data.begin(), data.end(), [](int32_t value) { return value == 7; });
      return whole ? "" : "OK with " + std::to_string(data.back());
    }
    return CheckEnd(status, 0, begun);
  });
  for (const RankResult& result : results) EXPECT_EQ(result.text, "");
}

// A rank whose calls are all complete is told at its next call, and Finalize has nothing to report.
TEST(DestroyedMessageTest, ARankWithNothingPendingIsToldAtItsNextCallOnly) {
  for (const bool calls_again : {true, false}) {
    ProcessClusterOptions options;
    options.ranks = 2;
    const std::vector<RankResult> results = RunProcesses(options, [calls_again](ProcessRank& rank) -> std::string {
      int32_t value = 5;
      auto group = rank.world->Duplicate();
      if (!group.ok()) return group.status().ToString();
      if (rank.rank == 0) {
        const runtime::Work work = (*group)->Recv(Buffer(&value, 1), 1);  // never sent
        group->reset();
        return rank.meet("destroyed", 2) ? "" : "rank 1 did not come";
      }
      if (!rank.meet("destroyed", 2)) return "rank 0 did not come";
      const auto begun = std::chrono::steady_clock::now();
      if (calls_again) {
        const absl::Status status = (*group)->Barrier().Wait();
        return status.ok() ? "a barrier without rank 0 was complete" : CheckEnd(status, 0, begun);
      }
      return rank.runtime->Finalize().ToString() == "OK" ? "" : "Finalize reported what was no failure of this rank";
    });
    for (const RankResult& result : results) EXPECT_EQ(result.text, "");
  }
}

// One simulated rank destroys its communicator at any moment of a call; the others' turns come in any order.
TEST(DestroyedSimTest, OthersFailOrHaveTheRightResultAfterARankDestroysTheGroup) {
  constexpr int kRanks = 4;
  constexpr int64_t kCount = 3000;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SimClusterOptions options;
    options.ranks = kRanks;
    options.nodes = seed % 3 == 0 ? 2 : 1;
    options.network.seed = seed;
    options.network.access = static_cast<comm::SimAccess>(seed % 3);
    const int destroyer = static_cast<int>(seed % kRanks);
    SimCluster cluster(options);
    cluster.Run([&](SimRank& rank) {
      std::vector<int32_t> in(kCount, Input(rank.rank));
      std::vector<int32_t> out(kCount, -1);
      auto group = rank.world->Duplicate();
      ASSERT_TRUE(group.ok()) << group.status();
      CallOptions call;
      call.algorithm = kAlgorithms[seed / kRanks % std::size(kAlgorithms)];
      const auto begun = std::chrono::steady_clock::now();
      runtime::Work work =
          (*group)->AllReduce(ConstBuffer(in.data(), kCount), Buffer(out.data(), kCount), ReduceOp::kSum, call);
      if (rank.rank == destroyer) {
        rank.Poll(static_cast<int>(seed % 23));
        group->reset();
        std::fill(in.begin(), in.end(), 1 << 20);
        std::fill(out.begin(), out.end(), 1 << 21);
        const absl::Status status = work.Wait();
        EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
        return;
      }
      const absl::Status status = work.Wait();
      EXPECT_EQ(CheckEnd(status, destroyer, begun), "") << "seed " << seed << ", rank " << rank.rank;
      if (status.ok()) {
        EXPECT_EQ(CheckSum(out.data(), kCount, kRanks), "") << "seed " << seed << ", rank " << rank.rank;
      }
    });
  }
}

}  // namespace
}  // namespace cohort::testing
