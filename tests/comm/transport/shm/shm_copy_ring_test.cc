// The ring that copies go through: where parts lie, and when their place is free again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
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

TEST(ShmPartBytes, PartsAreAQuarterOfTheMessageWithinLimits) {
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

struct TakenPart {
  std::byte* data;
  size_t bytes;
  uint64_t message;
};

// A reader confirms late, as far as it may. No part lies on one that is not confirmed, there is always room, parts of
// one message ascend within a block, and blocks descend.
TEST_F(ShmCopyRing, PartsNeverOverlapAndAlwaysFit) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  CopyRing ring(*own_, shm::kLinkSlots);
  EXPECT_EQ(ring.bytes(), 0u);
  ASSERT_TRUE(ring.Provide(kFirstRingBytes).ok());

  std::deque<TakenPart> unconfirmed;
  size_t unconfirmed_bytes = 0;
  uint64_t message = 0;
  for (int payload = 0; payload < 5'000; ++payload) {
    if (payload == 1'500) {
      ASSERT_TRUE(ring.Provide(shm::kLeastGrownRingBytes).ok());
    }
    const size_t all = 1 + random() % (size_t{1} << (1 + random() % 20));
    const size_t part_bytes = PartBytes(all, ring.bytes());
    std::optional<uint64_t> before;
    for (size_t rest = all; rest > 0;) {
      message += random() % 3 == 0 ? 2 : 1;  // other messages lie between
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
      const size_t bytes = std::min(part_bytes, rest);
      const std::optional<uint64_t> position = ring.Place(rest);
      ASSERT_TRUE(position.has_value()) << "payload " << payload;
      ASSERT_EQ(ring.Place(rest), position);
      ASSERT_EQ(*position % shm::kSlotStride, 0u);
      ASSERT_LE(*position + bytes, ring.bytes());
      const bool opens_block = (all - rest) % (ring.bytes() / 4) == 0;
      if (!opens_block) {
        ASSERT_EQ(position, *before + part_bytes) << "payload " << payload;
      }
      before = position;
      std::byte* data = ring.At(*position);
      for (const TakenPart& other : unconfirmed) {
        ASSERT_TRUE(data + bytes <= other.data || other.data + other.bytes <= data) << "payload " << payload;
      }
      ring.Take(bytes, message);
      unconfirmed.push_back({data, bytes, message});
      unconfirmed_bytes += shm::PaddedPartBytes(bytes);
      rest -= bytes;
    }
  }
}

TEST_F(ShmCopyRing, BlocksDescendAndGoRound) {
  CopyRing ring(*own_, shm::kLinkSlots);
  ASSERT_TRUE(ring.Provide(kFirstRingBytes).ok());
  uint64_t above = kFirstRingBytes;
  for (uint64_t message = 1; message <= 6; ++message) {  // 6 times 10,112 bytes fit
    const auto position = ring.Place(10'000);
    ASSERT_EQ(position, above - shm::PaddedPartBytes(10'000));
    above = *position;
    ring.Take(shm::kPartBytes, message);
    ring.Take(10'000 - shm::kPartBytes, message);
    ring.Confirmed(message);
  }
  EXPECT_EQ(ring.Place(10'000), kFirstRingBytes - shm::PaddedPartBytes(10'000));
}

TEST_F(ShmCopyRing, ABlockWaitsUntilItsPlaceIsConfirmed) {
  CopyRing ring(*own_, shm::kLinkSlots);
  ASSERT_TRUE(ring.Provide(kFirstRingBytes).ok());
  constexpr size_t kBlock = kFirstRingBytes / 4;
  for (uint64_t message = 1; message <= 8; ++message) {  // two parts a block
    const auto position = ring.Place(kFirstRingBytes);
    const uint64_t block = kFirstRingBytes - (message + 1) / 2 * kBlock;
    ASSERT_EQ(position, block + (message % 2 == 0 ? kBlock / 2 : 0));
    ring.Take(kBlock / 2, message);
  }
  EXPECT_FALSE(ring.Place(1).has_value());
  ring.Confirmed(1);  // half of a block
  EXPECT_FALSE(ring.Place(1).has_value());
  ring.Confirmed(2);
  EXPECT_EQ(ring.Place(kBlock), kFirstRingBytes - kBlock);
  ring.Take(kBlock, 9);
  EXPECT_FALSE(ring.Place(1).has_value());
}

TEST_F(ShmCopyRing, KeepsItsMemoryWhereThereIsNoMore) {
  CopyRing ring(*own_, shm::kLinkSlots);
  ASSERT_TRUE(ring.Provide(kFirstRingBytes).ok());
  const uint64_t offset = ring.offset();
  EXPECT_FALSE(ring.Provide(size_t{1} << 60).ok());
  EXPECT_EQ(ring.bytes(), kFirstRingBytes);
  EXPECT_EQ(ring.offset(), offset);
}

}  // namespace
}  // namespace cohort::comm::testing
