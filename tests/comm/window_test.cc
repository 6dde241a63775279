// Windows: memory of the node segment, allocated together, used by any communicator of the process.
#include "cohort/comm/window.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "tests/support/process_cluster.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::CollectiveKind;
using comm::Communicator;
using comm::ConstBuffer;
using comm::DataType;
using comm::ReduceOp;
using comm::Window;
using comm::Work;

void ExpectAllSucceed(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) {
    EXPECT_EQ(result.text, "");
    EXPECT_TRUE(result.exited);
  }
}

// All-reduce of `count` numbers from window to window; "" when every sum is right.
std::string Sum(Communicator& group, int32_t* in, int32_t* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) in[i] = static_cast<int32_t>(i) + group.rank();
  const absl::Status status = group.AllReduce(ConstBuffer(in, count), Buffer(out, count), ReduceOp::kSum).Wait();
  if (!status.ok()) return std::string(status.message());
  const int32_t size = group.size();
  for (int64_t i = 0; i < count; ++i) {
    if (out[i] != static_cast<int32_t>(i) * size + size * (size - 1) / 2) return "wrong at " + std::to_string(i);
  }
  return "";
}

TEST(WindowTest, SizesMayDifferAndSeveralCommunicatorsUseAWindow) {
  ProcessClusterOptions options;
  options.ranks = 3;
  ExpectAllSucceed(RunProcesses(options, [](ProcessRank& rank) -> std::string {
    constexpr int64_t kCount = 40'000;
    auto window = rank.world->AllocateWindow(2 * kCount * 4 + static_cast<size_t>(rank.rank) * 1000);
    if (!window.ok()) return std::string(window.status().message());
    if (window->size() != 2 * kCount * 4 + static_cast<size_t>(rank.rank) * 1000) return "wrong size";
    auto* in = static_cast<int32_t*>(window->data());
    for (size_t i = 0; i < window->size() / 4; ++i) {
      if (in[i] != 0) return "not zeroed";
    }
    std::string wrong = Sum(*rank.world, in, in + kCount, kCount);
    if (!wrong.empty()) return "world: " + wrong;
    auto pair = rank.world->Split(rank.rank / 2, 0);
    if (!pair.ok()) return std::string(pair.status().message());
    wrong = Sum(**pair, in, in + kCount, kCount);
    if (!wrong.empty()) return "pair: " + wrong;
    return Sum(*rank.world, in + kCount, in, kCount);
  }));
}

TEST(WindowTest, AWindowMayBeEmptyOnSomeRanks) {
  ProcessClusterOptions options;
  options.ranks = 2;
  ExpectAllSucceed(RunProcesses(options, [](ProcessRank& rank) -> std::string {
    auto window = rank.world->AllocateWindow(rank.rank == 0 ? 0 : 1);
    if (!window.ok()) return std::string(window.status().message());
    if (rank.rank == 0) return window->data() == nullptr && window->size() == 0 ? "" : "an empty window has memory";
    return window->data() != nullptr && window->size() == 1 ? "" : "no window";
  }));
}

TEST(WindowTest, ExhaustionIsAnErrorOnAllAndTheGroupGoesOn) {
  ProcessClusterOptions options;
  options.ranks = 3;
  ExpectAllSucceed(RunProcesses(options, [](ProcessRank& rank) -> std::string {
    for (const size_t wish : {size_t{1} << 40, size_t{1} << 60, SIZE_MAX}) {
      auto window = rank.world->AllocateWindow(rank.rank == 1 ? wish : 100'000);
      if (!absl::IsResourceExhausted(window.status())) return "status is " + window.status().ToString();
      const std::string text(window.status().message());
      const char* expected = rank.rank == 1 ? "free windows first" : "rank 1 of the group has no room";
      if (text.find(expected) == std::string::npos) return text;
    }
    auto window = rank.world->AllocateWindow(100'000);
    if (!window.ok()) return std::string(window.status().message());
    auto* data = static_cast<int32_t*>(window->data());
    return Sum(*rank.world, data, data + 10'000, 10'000);
  }));
}

// No window, by anybody's wish or for want of room, is none.
TEST(WindowTest, AGroupChoosesForWindowsFromItsFirstWindowOn) {
  ProcessClusterOptions options;
  options.ranks = 3;
  ExpectAllSucceed(RunProcesses(options, [](ProcessRank& rank) -> std::string {
    constexpr int64_t kCount = 4096;
    const auto expects_windows = [](const Communicator& group) {
      return group.Explain(CollectiveKind::kAllReduce, kCount, DataType::kInt32).find(", in windows") !=
             std::string::npos;
    };
    auto before = rank.world->Duplicate();
    if (!before.ok()) return std::string(before.status().message());
    if (!rank.world->AllocateWindow(0).ok()) return "no empty window";
    if (rank.world->AllocateWindow(size_t{1} << 60).ok()) return "a window of an exabyte";
    if (expects_windows(*rank.world)) return "windows are expected before there is one";
    std::vector<int32_t> in(kCount, 1);
    std::vector<int32_t> out(kCount);
    Work under_way = rank.world->AllReduce(ConstBuffer(in.data(), kCount), Buffer(out.data(), kCount), ReduceOp::kSum);
    auto window = rank.world->AllocateWindow(rank.rank == 0 ? 1 << 16 : 0);
    if (!window.ok()) return std::string(window.status().message());
    if (!expects_windows(*rank.world)) return "windows are not expected by rank " + std::to_string(rank.rank);
    if (const absl::Status status = under_way.Wait(); !status.ok()) return std::string(status.message());
    for (const int32_t sum : out) {
      if (sum != 3) return "a sum is " + std::to_string(sum);
    }
    auto after = rank.world->Duplicate();
    if (!after.ok()) return std::string(after.status().message());
    if (expects_windows(**before) || expects_windows(**after)) return "another group expects windows";
    return Sum(*rank.world, in.data(), out.data(), kCount);
  }));
}

// Freed memory is used again, and moving a window moves the memory.
TEST(WindowTest, AFreedWindowsMemoryIsUsedAgain) {
  ProcessClusterOptions options;
  options.ranks = 2;
  ExpectAllSucceed(RunProcesses(options, [](ProcessRank& rank) -> std::string {
    void* first = nullptr;
    for (int i = 0; i < 20; ++i) {
      auto window = rank.world->AllocateWindow(1 << 20);
      if (!window.ok()) return std::string(window.status().message());
      Window moved = *std::move(window);
      Window other;
      other = std::move(moved);
      if (i == 0) first = other.data();
      if (other.data() != first) return "another place in round " + std::to_string(i);
      auto* data = static_cast<int32_t*>(other.data());
      if (data[0] != 0) return "not zeroed in round " + std::to_string(i);
      std::string wrong = Sum(*rank.world, data, data + 100'000, 100'000);
      if (!wrong.empty()) return wrong;
      if (const absl::Status status = rank.world->Barrier().Wait(); !status.ok()) return std::string(status.message());
    }
    return "";
  }));
}

}  // namespace
}  // namespace cohort::testing
