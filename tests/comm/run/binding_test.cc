// Compares where chunks begin, for counts up to 2^62, with arithmetic of 128 bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>

#include "cohort/comm/run/plan_binding.h"

namespace cohort::comm {
namespace {

__extension__ typedef unsigned __int128 Wide;

TEST(PieceBeginTest, PieceBeginsAreExactWhereTheProductHasMoreThan64Bits) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 200'000; ++trial) {
    const uint64_t count = random() >> (2 + random() % 62);
    const uint32_t pieces = 1 + static_cast<uint32_t>(random() >> (33 + random() % 31));
    const uint32_t piece = static_cast<uint32_t>(random() % (uint64_t{pieces} + 1));
    ASSERT_EQ(PieceBegin(count, piece, pieces), static_cast<uint64_t>(Wide{piece} * count / pieces))
        << "piece " << piece << " of " << pieces << " of " << count;
  }
}

// The pieces follow one another, differ by an element at the most, and the last ends with the block.
TEST(PieceBeginTest, PiecesOfHugeBlocksAreNearlyEqual) {
  for (const uint64_t count : {(uint64_t{1} << 47) + 5, (uint64_t{1} << 56) - 1, (uint64_t{1} << 62) - 3}) {
    for (const uint32_t pieces : {2U, 3U, 7U, 64U, 65'536U}) {
      EXPECT_EQ(PieceBegin(count, 0, pieces), 0U);
      EXPECT_EQ(PieceBegin(count, pieces, pieces), count);
      for (uint32_t piece = 0; piece < pieces; ++piece) {
        const uint64_t length = PieceBegin(count, piece + 1, pieces) - PieceBegin(count, piece, pieces);
        ASSERT_TRUE(length == count / pieces || length == count / pieces + 1) << piece << " of " << pieces;
      }
    }
  }
}

TEST(PlanBindingTest, OffsetsOfHugeCountsKeepTheirBits) {
  PlanBinding binding;
  for (const size_t element : {1U, 2U, 4U, 8U}) {
    binding.element_bytes = element;
    for (const uint64_t count : {(uint64_t{1} << 47) + 5, (uint64_t{1} << 53) - 1}) {
      binding.count = count;
      for (const uint32_t pieces : {1U, 3U, 128U}) {
        for (const uint32_t chunk : {0U, 1U, 2U, 5U, 127U, 128U, 300U}) {
          const Wide elements = Wide{chunk / pieces} * count + Wide{chunk % pieces} * count / pieces;
          EXPECT_EQ(binding.OffsetOf(chunk, pieces), static_cast<size_t>(elements * element))
              << "chunk " << chunk << " of " << pieces << " pieces of " << count;
        }
      }
    }
  }
}

}  // namespace
}  // namespace cohort::comm
