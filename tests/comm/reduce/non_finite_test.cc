// The search for NaN and infinity, in every format, at every place, and on every instruction set of this CPU.
#include "cohort/comm/reduce/non_finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cohort/comm/reduce/instruction_set.h"
#include "hwy/targets.h"

namespace cohort::comm {
namespace {

struct Format {
  DataType dtype;
  uint64_t largest;   // finite
  uint64_t infinity;  // 0: none
  uint64_t nan;       // the least
};
constexpr Format kFormats[] = {
    {DataType::kFloat64, 0x7fef'ffff'ffff'ffff, 0x7ff0'0000'0000'0000, 0x7ff0'0000'0000'0001},
    {DataType::kFloat32, 0x7f7f'ffff, 0x7f80'0000, 0x7f80'0001},
    {DataType::kFloat16, 0x7bff, 0x7c00, 0x7c01},
    {DataType::kBFloat16, 0x7f7f, 0x7f80, 0x7f81},
    {DataType::kFloat8E4M3, 0x7e, 0, 0x7f},
    {DataType::kFloat8E5M2, 0x7b, 0x7c, 0x7d}};

class NonFiniteTest : public ::testing::Test {
 protected:
  void TearDown() override { ChosenInstructionSet().Update(SupportedInstructionSets()); }
  template <typename Function>
  static void OnEachInstructionSet(Function function) {
    for (int64_t sets = SupportedInstructionSets() | HWY_STATIC_TARGET; sets != 0; sets &= sets - 1) {
      ChosenInstructionSet().Update(sets & -sets);
      function();
    }
  }
  // Elements of any alignment, large but finite, of both signs.
  static void Fill(const Format& format, std::byte* data, size_t count, std::mt19937_64& random) {
    for (size_t i = 0; i < count; ++i) Put(format, data, i, random() % 2 == 0 ? format.largest : random() % 64, random);
  }
  static void Put(const Format& format, std::byte* data, size_t i, uint64_t bits, std::mt19937_64& random) {
    const size_t size = SizeOf(format.dtype);
    bits |= (random() & 1) << (8 * size - 1);
    std::memcpy(data + i * size, &bits, size);
  }
};

TEST_F(NonFiniteTest, OneOfManyIsFoundAtEveryPlace) {
  OnEachInstructionSet([] {
    std::mt19937_64 random(3);
    for (const Format& format : kFormats) {
      for (const size_t count : {1u, 7u, 64u, 200u, 20'000u}) {
        std::vector<std::byte> memory(count * SizeOf(format.dtype) + 64);
        std::byte* const data = memory.data() + random() % 33;
        Fill(format, data, count, random);
        ASSERT_TRUE(AllFinite(format.dtype, data, count)) << Name(format.dtype);
        for (size_t trial = 0; trial < 200; ++trial) {
          const size_t place = count <= 200 ? trial % count : random() % count;
          const bool nan = format.infinity == 0 || random() % 2 == 0;
          Put(format, data, place, nan ? format.nan : format.infinity, random);
          ASSERT_FALSE(AllFinite(format.dtype, data, count)) << Name(format.dtype) << " " << place << " of " << count;
          const NonFinite found = CountNonFinite(format.dtype, data, count);
          EXPECT_EQ(found.first, place);
          EXPECT_EQ(found.first_is_nan, nan);
          EXPECT_EQ(found.nans, nan ? 1 : 0);
          EXPECT_EQ(found.infinities, nan ? 0 : 1);
          Put(format, data, place, format.largest, random);
        }
      }
    }
  });
}

TEST_F(NonFiniteTest, IntegersAndEmptyInputsAreFinite) {
  const std::vector<uint32_t> bits(100, 0xffff'ffff);
  EXPECT_TRUE(AllFinite(DataType::kUint32, bits.data(), bits.size()));
  EXPECT_TRUE(AllFinite(DataType::kInt8, bits.data(), bits.size()));
  EXPECT_TRUE(AllFinite(DataType::kFloat32, bits.data(), 0));
  EXPECT_FALSE(AllFinite(DataType::kFloat32, bits.data(), 1));
}

TEST_F(NonFiniteTest, AllAreCounted) {
  const float values[] = {1, -2, INFINITY, NAN, 0, NAN, -INFINITY, NAN};
  const NonFinite found = CountNonFinite(DataType::kFloat32, values, 8);
  EXPECT_EQ(found.first, 2);
  EXPECT_FALSE(found.first_is_nan);
  EXPECT_EQ(found.nans, 3);
  EXPECT_EQ(found.infinities, 2);
}

}  // namespace
}  // namespace cohort::comm
