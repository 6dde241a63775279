#include "cohort/runtime/tape/memory_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

namespace cohort::runtime {
namespace {

TEST(HashMemoryTest, EveryBitAndTheLengthCount) {
  std::mt19937_64 random(1);
  for (size_t bytes = 0; bytes < 200; ++bytes) {
    std::vector<uint8_t> data(bytes);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
    std::set<uint64_t> hashes = {HashMemory(data.data(), bytes)};
    for (size_t bit = 0; bit < 8 * bytes; ++bit) {
      data[bit / 8] ^= 1u << bit % 8;
      hashes.insert(HashMemory(data.data(), bytes));
      data[bit / 8] ^= 1u << bit % 8;
    }
    data.push_back(0);
    hashes.insert(HashMemory(data.data(), bytes + 1));
    EXPECT_EQ(hashes.size(), 8 * bytes + 2) << bytes;
  }
}

TEST(HashMemoryTest, ItsPlaceDoesNotCount) {
  std::vector<uint8_t> data(400);
  std::mt19937_64 random(2);
  std::vector<uint8_t> values(300);
  for (uint8_t& byte : values) byte = static_cast<uint8_t>(random());
  for (size_t place = 0; place < 64; ++place) {
    std::copy(values.begin(), values.end(), data.begin() + static_cast<ptrdiff_t>(place));
    EXPECT_EQ(HashMemory(data.data() + place, values.size()), HashMemory(values.data(), values.size()));
  }
}

TEST(MemoryHashTest, PiecesDoNotCount) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<uint8_t> data(random() % 500);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
    MemoryHash pieces;
    for (size_t at = 0; at < data.size();) {
      const size_t bytes = std::min<size_t>(random() % 100, data.size() - at);
      pieces.Add(data.data() + at, bytes);
      at += bytes;
    }
    EXPECT_EQ(pieces.Finish(), HashMemory(data.data(), data.size()));
  }
}

}  // namespace
}  // namespace cohort::runtime
