// The ring that copies go through: where parts lie, and when their place is free again.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "cohort/comm/transport/shm/copy_ring.h"
#include "cohort/comm/transport/shm/layout.h"
#include "tests/comm/transport/shm/local_world.h"

namespace cohort::comm::testing {
namespace {

using shm::CopyRing;
using shm::kFirstRingBytes;
using shm::PartBytes;

class ShmCopyRing : public ::testing::Test {
 protected:
  ShmCopyRing() {
    auto own = shm::OwnEndpoint::Create(world_.segment(0), 77, shm::kLinkSlots, 1, {});
    EXPECT_TRUE(own.ok()) << own.status();
    own_ = *std::move(own);
  }
  ~ShmCopyRing() override { own_->Free(); }

  LocalWorld world_{2};
  std::unique_ptr<shm::OwnEndpoint> own_;
};

TEST(ShmPartBytes, AreAQuarterOfTheMessageWithinLimits) {
  for (const size_t ring : {kFirstRingBytes, shm::kGrownPastCacheRingBytes, shm::kMostRingBytes}) {
    for (size_t bytes = 1; bytes < (64 << 20); bytes = bytes * 3 / 2 + 1) {
      const size_t part = PartBytes(bytes, ring);
      EXPECT_GE(part, shm::kPartBytes);
      EXPECT_LE(part, shm::kMostPartBytes);
      EXPECT_LE(part, ring / 4);
      EXPECT_EQ(part & (part - 1), 0u);  // so that no element is cut
    }
  }
  EXPECT_EQ(PartBytes(64 << 10, shm::kMostRingBytes), 16u << 10);
  EXPECT_EQ(PartBytes(512 << 10, shm::kMostRingBytes), 32u << 10);
  EXPECT_EQ(PartBytes(1 << 20, shm::kMostRingBytes), 128u << 10);
  EXPECT_EQ(PartBytes(1 << 20, kFirstRingBytes), 16u << 10);
}

// A reader confirms late, as far as it may. No part lies on one that is not confirmed, and there is always room.
TEST_F(ShmCopyRing, PartsNeverOverlapAndAlwaysFit) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  CopyRing ring(*own_, shm::kLinkSlots);
  EXPECT_EQ(ring.bytes(), 0u);
  ASSERT_TRUE(ring.Provide(kFirstRingBytes).ok());

  struct Part {
    std::byte* data;
    size_t bytes;
    uint64_t message;
  };
  std::deque<Part> unconfirmed;
  size_t unconfirmed_bytes = 0;
  uint64_t message = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (step == 7'000) {
      ASSERT_TRUE(ring.Provide(shm::kLeastGrownRingBytes).ok());
    }
    message += random() % 3 == 0 ? 2 : 1;  // other messages lie between
    const size_t bytes = 1 + random() % PartBytes(1 + random() % (1 << 20), ring.bytes());
    const bool full = unconfirmed.size() == shm::kLinkSlots / 2;
    if (full || unconfirmed_bytes >= shm::RingAckBytes(ring.bytes())) {
      ring.Confirmed(message - 1);
      unconfirmed.clear();
      unconfirmed_bytes = 0;
    } else if (!unconfirmed.empty() && random() % 8 == 0) {  // some of them
      const size_t some = 1 + random() % unconfirmed.size();
      ring.Confirmed(unconfirmed[some - 1].message);
      for (size_t i = 0; i < some; ++i) {
        unconfirmed_bytes -= shm::PaddedPartBytes(unconfirmed.front().bytes);
        unconfirmed.pop_front();
      }
    }
    const auto position = ring.Place(bytes);
    ASSERT_TRUE(position.has_value()) << "step " << step;
    ASSERT_EQ(*position % shm::kSlotStride, 0u);
    ASSERT_LE(*position + bytes, ring.bytes());
    std::byte* data = ring.At(*position);
    for (const Part& other : unconfirmed) {
      ASSERT_TRUE(data + bytes <= other.data || other.data + other.bytes <= data) << "step " << step;
    }
    ring.Take(*position, bytes, message);
    unconfirmed.push_back({data, bytes, message});
    unconfirmed_bytes += shm::PaddedPartBytes(bytes);
  }
}

TEST_F(ShmCopyRing, APartWaitsUntilItsPlaceIsConfirmed) {
  CopyRing ring(*own_, shm::kLinkSlots);
  ASSERT_TRUE(ring.Provide(kFirstRingBytes).ok());
  for (uint64_t message = 1; message <= 4; ++message) {
    const auto position = ring.Place(kFirstRingBytes / 4);
    ASSERT_EQ(position, (message - 1) * kFirstRingBytes / 4);
    ring.Take(*position, kFirstRingBytes / 4, message);
  }
  EXPECT_FALSE(ring.Place(1).has_value());
  ring.Confirmed(1);
  EXPECT_EQ(ring.Place(kFirstRingBytes / 4), 0u);
  EXPECT_FALSE(ring.Place(kFirstRingBytes / 4 + 1).has_value());
}

TEST_F(ShmCopyRing, KeepsWhatItHasWhereThereIsNoMemory) {
  CopyRing ring(*own_, shm::kLinkSlots);
  ASSERT_TRUE(ring.Provide(kFirstRingBytes).ok());
  const uint64_t offset = ring.offset();
  EXPECT_FALSE(ring.Provide(size_t{1} << 60).ok());
  EXPECT_EQ(ring.bytes(), kFirstRingBytes);
  EXPECT_EQ(ring.offset(), offset);
}

}  // namespace
}  // namespace cohort::comm::testing
