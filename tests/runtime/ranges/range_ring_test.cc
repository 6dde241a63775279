#include "cohort/runtime/ranges/range_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace cohort::runtime {
namespace {

RangeRecord Record(uint64_t number) {
  RangeRecord record;
  record.start_ns = number;
  record.end_ns = number + 1;
  record.number = number;
  record.lane = RangeLane::kBuckets;
  record.line = 3;
  record.set_name("number " + std::to_string(number));
  return record;
}

class RangeRing : public testing::Test {
 protected:
  std::optional<RangeRecord> At(uint64_t ticket) const { return RangeAt(memory_.get(), ticket); }

  const std::unique_ptr<RangeMemory> memory_ = std::make_unique<RangeMemory>();
};

TEST_F(RangeRing, HoldsWhatWasAdded) {
  EXPECT_FALSE(At(1).has_value());
  AddRange(memory_.get(), Record(7));
  EXPECT_EQ(memory_->tickets.load(), 1u);
  const std::optional<RangeRecord> record = At(1);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->start_ns, 7u);
  EXPECT_EQ(record->end_ns, 8u);
  EXPECT_EQ(record->number, 7u);
  EXPECT_EQ(record->lane, RangeLane::kBuckets);
  EXPECT_EQ(record->line, 3u);
  EXPECT_STREQ(record->name, "number 7");
  EXPECT_FALSE(At(2).has_value());
}

TEST_F(RangeRing, KeepsTheLatest) {
  for (uint64_t i = 1; i <= kRangeRecords + 10; ++i) AddRange(memory_.get(), Record(i));
  EXPECT_FALSE(At(10).has_value());
  for (uint64_t i = 11; i <= kRangeRecords + 10; ++i) {
    ASSERT_TRUE(At(i).has_value()) << i;
    EXPECT_EQ(At(i)->number, i);
  }
}

TEST_F(RangeRing, CutsNames) {
  RangeRecord record = Record(1);
  record.set_name(std::string(1000, 'x'));
  AddRange(memory_.get(), record);
  EXPECT_EQ(std::string(At(1)->name), std::string(sizeof record.name - 1, 'x'));
  record.set_name("short");
  AddRange(memory_.get(), record);
  EXPECT_STREQ(At(2)->name, "short");
}

TEST_F(RangeRing, DropsARecordWhoseSlotIsStillBeingWritten) {
  AddRange(memory_.get(), Record(1));
  RangeSlot& slot = memory_->slots[1];
  slot.version.store(1);  // as if its writer had been stopped
  for (uint64_t i = 2; i <= kRangeRecords + 2; ++i) AddRange(memory_.get(), Record(i));
  EXPECT_FALSE(At(kRangeRecords + 1).has_value());
  EXPECT_TRUE(At(kRangeRecords + 2).has_value());
  EXPECT_EQ(slot.version.load(), 1u);
}

// A thread takes its ticket of the ring that lies there, and writes where another one lies by then.
TEST_F(RangeRing, RecordsOfAnotherRingsTicketsAreReplaced) {
  memory_->slots[1].version.store(2 * (1000 * kRangeRecords + 1));
  memory_->slots[2].version.store(2 * 2);
  AddRange(memory_.get(), Record(70));
  AddRange(memory_.get(), Record(71));
  ASSERT_TRUE(At(1).has_value());
  EXPECT_EQ(At(1)->number, 70u);
  ASSERT_TRUE(At(2).has_value());
  EXPECT_EQ(At(2)->number, 71u);
}

TEST_F(RangeRing, TrustsNothing) {
  AddRange(memory_.get(), Record(1));
  for (std::atomic<uint64_t>& word : memory_->slots[1].words) word.store(~uint64_t{0});
  const std::optional<RangeRecord> record = At(1);
  ASSERT_TRUE(record.has_value());
  EXPECT_LT(static_cast<uint16_t>(record->lane), kRangeLanes);
  EXPECT_LT(record->line, kRangeLines);
  EXPECT_LT(std::strlen(record->name), sizeof record->name);
}

// Whatever a reader finds meanwhile is one whole record.
TEST_F(RangeRing, TakesRecordsOfSeveralThreadsAtOnce) {
  constexpr int kThreads = 4;
  constexpr uint64_t kEach = 20'000;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> writers;
  for (int i = 0; i < kThreads; ++i) {
    writers.emplace_back([&, i] {
      for (uint64_t k = 0; k < kEach; ++k) AddRange(memory_.get(), Record(static_cast<uint64_t>(i) * kEach + k));
      --running;
    });
  }
  uint64_t found = 0;
  const auto look = [&] {
    const uint64_t latest = memory_->tickets.load();
    for (uint64_t ticket = latest > kRangeRecords ? latest - kRangeRecords : 0; ticket < latest; ++ticket) {
      const std::optional<RangeRecord> record = At(ticket + 1);
      if (!record.has_value()) continue;
      ++found;
      ASSERT_EQ(record->end_ns, record->start_ns + 1);
      ASSERT_EQ(record->number, record->start_ns);
      ASSERT_EQ(std::string(record->name), "number " + std::to_string(record->number));
    }
  };
  while (running > 0) look();
  for (std::thread& writer : writers) writer.join();
  look();
  EXPECT_EQ(memory_->tickets.load(), kThreads * kEach);
  EXPECT_GT(found, 0u);
}

}  // namespace
}  // namespace cohort::runtime
