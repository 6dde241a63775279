#include "tools/measure/gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tools/measure/shared_memory.h"

namespace cohort::measure {
namespace {

constexpr int kRanks = 3;

// Every gate must do this: nobody leaves before all have come, and numbers are combined.
void Meet(Gate& gate, int rank, std::atomic<int>* arrived) {
  for (int round = 1; round <= 50; ++round) {
    arrived->fetch_add(1);
    ASSERT_TRUE(gate.Wait().ok());
    EXPECT_GE(arrived->load(), round * kRanks);
  }
  uint64_t numbers[2] = {static_cast<uint64_t>(rank), 10};
  ASSERT_TRUE(gate.Max(numbers).ok());
  EXPECT_EQ(numbers[0], kRanks - 1u);
  uint64_t one[1] = {static_cast<uint64_t>(rank) + 1};
  ASSERT_TRUE(gate.Sum(one).ok());
  EXPECT_EQ(one[0], 6u);
}

void RunRanks(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

TEST(Gate, RanksMeetAtAGateInSharedMemory) {
  const auto memory = SharedMemory::Create(GateBytes(kRanks));
  ASSERT_TRUE(memory.ok());
  const auto mapped = SharedMemory::Open((*memory)->Path(), GateBytes(kRanks));
  ASSERT_TRUE(mapped.ok());
  std::atomic<int> arrived{0};
  RunRanks([&](int rank) {
    void* data = rank == 0 ? (*memory)->data() : (*mapped)->data();
    SharedMemoryGate gate(static_cast<GateMemory*>(data), rank, kRanks, 20);
    Meet(gate, rank, &arrived);
  });
}

TEST(Gate, ABrokenGateInSharedMemoryLetsRanksGo) {
  const auto memory = SharedMemory::Create(GateBytes(2));
  ASSERT_TRUE(memory.ok());
  auto* data = static_cast<GateMemory*>((*memory)->data());
  SharedMemoryGate waiting(data, 0, 2, 20);
  SharedMemoryGate leaving(data, 1, 2, 20);
  leaving.Break();
  EXPECT_EQ(waiting.Wait().code(), absl::StatusCode::kAborted);
}

TEST(Gate, MemoryOfAnotherSizeIsRefused) {
  const auto memory = SharedMemory::Create(4096);
  ASSERT_TRUE(memory.ok());
  EXPECT_FALSE(SharedMemory::Open((*memory)->Path(), 8192).ok());
  EXPECT_FALSE(SharedMemory::Open("/proc/self/fd/1000000", 4096).ok());
}

}  // namespace
}  // namespace cohort::measure
