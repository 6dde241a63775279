#include "cohort/runtime/perfetto/compressed.h"

#include <gtest/gtest.h>

#include <string>

namespace cohort::runtime {
namespace {

TEST(CompressedTest, GivesBackWhatItWasGiven) {
  for (const size_t size : {0u, 1u, 1000u, 300'000u}) {
    std::string bytes;
    for (size_t i = 0; i < size; ++i) bytes += static_cast<char>(i * i / 7);
    EXPECT_EQ(Uncompress(Compress(bytes), size), bytes) << size;
  }
}

TEST(CompressedTest, MakesRepetitionsSmall) { EXPECT_LT(Compress(std::string(100'000, 'x')).size(), 1000u); }

TEST(CompressedTest, RefusesMoreThanTheLimit) {
  EXPECT_EQ(Uncompress(Compress(std::string(100'000, 'x')), 99'999), std::nullopt);
}

TEST(CompressedTest, RefusesDamagedBytes) {
  const std::string whole = Compress(std::string(1000, 'x') + "end");
  EXPECT_NE(Uncompress(whole.substr(0, 10), 1u << 20), std::string(1000, 'x') + "end");
  EXPECT_EQ(Uncompress("these bytes mean nothing", 1u << 20), std::nullopt);
}

}  // namespace
}  // namespace cohort::runtime
