#include "cohort/launcher/agent/trace/range_reader.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cohort::launcher {
namespace {

using runtime::kRangeRecords;

class RangeReaderTest : public testing::Test {
 protected:
  void Add(uint64_t count = 1) {
    for (uint64_t i = 0; i < count; ++i) {
      runtime::RangeRecord record;
      record.number = ++added_;
      runtime::AddRange(memory_.get(), record);
    }
  }
  uint64_t Read(size_t most = 1u << 20) { return reader_.Read(*memory_, most, on_range_); }
  uint64_t Finish() { return reader_.Finish(*memory_, on_range_); }

  const std::unique_ptr<runtime::RangeMemory> memory_ = std::make_unique<runtime::RangeMemory>();
  RangeReader reader_{0};
  uint64_t added_ = 0;
  std::vector<uint64_t> numbers_;
  const RangeReader::OnRange on_range_ = [this](const runtime::RangeRecord& range) {
    numbers_.push_back(range.number);
  };
};

TEST_F(RangeReaderTest, GivesEachRangeOnce) {
  Add(3);
  EXPECT_EQ(Read(2), 0u);
  EXPECT_EQ(numbers_, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(Read(), 0u);
  Add();
  EXPECT_EQ(Finish(), 0u);
  EXPECT_EQ(numbers_, (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST_F(RangeReaderTest, BeginsAfterTheGivenRange) {
  Add(3);
  reader_ = RangeReader(2);
  EXPECT_EQ(Read(), 0u);
  EXPECT_EQ(numbers_, (std::vector<uint64_t>{3}));
}

TEST_F(RangeReaderTest, CountsWhatWasOverwritten) {
  Add(kRangeRecords + 100);
  EXPECT_EQ(Read(), 100u);
  EXPECT_EQ(numbers_.size(), kRangeRecords);
  EXPECT_EQ(numbers_.front(), 101u);
}

TEST_F(RangeReaderTest, WaitsForARangeThatIsBeingWritten) {
  Add(3);
  memory_->slots[2].version.store(3);  // ticket 2 is being written
  EXPECT_EQ(Read(), 0u);
  EXPECT_EQ(numbers_, (std::vector<uint64_t>{1}));
  memory_->slots[2].version.store(4);
  EXPECT_EQ(Read(), 0u);
  EXPECT_EQ(numbers_, (std::vector<uint64_t>{1, 2, 3}));
}

TEST_F(RangeReaderTest, DoesNotWaitForever) {
  Add();
  memory_->slots[1].version.store(1);
  Add(kRangeRecords / 2 - 1);
  EXPECT_EQ(Read(), 0u);
  EXPECT_TRUE(numbers_.empty());
  Add();
  EXPECT_EQ(Read(), 1u);
  EXPECT_EQ(numbers_.size(), kRangeRecords / 2);
}

TEST_F(RangeReaderTest, CountsWhatARankWasWritingWhenItDied) {
  Add(2);
  memory_->slots[2].version.store(3);
  EXPECT_EQ(Finish(), 1u);
  EXPECT_EQ(numbers_, (std::vector<uint64_t>{1}));
}

TEST_F(RangeReaderTest, StandsABrokenRing) {
  Add(2);
  EXPECT_EQ(Read(), 0u);
  memory_->tickets.store(~uint64_t{0});
  EXPECT_GT(Read(), 0u);
  memory_->tickets.store(1);
  EXPECT_EQ(Read(), 0u);
  EXPECT_EQ(numbers_.size(), 2u);
}

}  // namespace
}  // namespace cohort::launcher
