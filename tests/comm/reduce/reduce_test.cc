// The reduction kernels against one-at-a-time definitions: every type and op, special values, odd lengths and places.
#include "cohort/comm/reduce/reduce.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/comm/reduce/scalar_reference.h"
#include "tests/comm/reduce/typed_values.h"

namespace cohort::comm {
namespace {

template <typename T>
class ReduceTest : public testing::Test {};
TYPED_TEST_SUITE(ReduceTest, AllTypes);

TYPED_TEST(ReduceTest, ReductionsEqualTheDefinitionForOddLengthsAndPlaces) {
  using T = TypeParam;
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (const ReduceOp op : OpsOf(Type<T>::kDataType)) {
    const ReduceKernel kernel = FindReduceKernel(Type<T>::kDataType, op);
    ASSERT_NE(kernel, nullptr);
    for (size_t count = 0; count < 1500; count += 1 + count / 10) {
      const size_t offset = random() % 64;  // bytes: memory of any alignment
      std::vector<T> a(count), b(count), out(count);
      for (size_t i = 0; i < count; ++i) {
        a[i] = RandomValue<T>(random);
        b[i] = RandomValue<T>(random);
      }
      const size_t bytes = count * sizeof(T);
      std::vector<char> a_memory(bytes + 64), b_memory(bytes + 64), out_memory(bytes + 128, '\x5a');
      if (count > 0) {
        std::memcpy(a_memory.data() + offset, a.data(), bytes);
        std::memcpy(b_memory.data() + offset, b.data(), bytes);
      }
      kernel(out_memory.data() + offset, a_memory.data() + offset, b_memory.data() + offset, count);
      if (count > 0) std::memcpy(static_cast<void*>(out.data()), out_memory.data() + offset, bytes);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(SameValue(out[i], ReferenceOp(a[i], b[i], op)))
            << Name(op) << " of " << Show(a[i]) << " and " << Show(b[i]) << " gave " << Show(out[i]) << " instead of "
            << Show(ReferenceOp(a[i], b[i], op)) << ", element " << i << " of " << count << ", seed " << seed;
      }
      for (size_t i = 0; i < out_memory.size(); ++i) {
        if (i < offset || i >= offset + bytes) {
          ASSERT_EQ(out_memory[i], '\x5a') << "wrote outside, seed " << seed;
        }
      }
    }
  }
}

TYPED_TEST(ReduceTest, ResultMayReplaceEitherOperand) {
  using T = TypeParam;
  std::mt19937_64 random(7);
  for (const size_t count : {1, 2, 3, 5, 7, 77}) {
    std::vector<T> a(count), b(count), out(count);
    for (size_t i = 0; i < count; ++i) {
      a[i] = RandomValue<T>(random);
      b[i] = RandomValue<T>(random);
    }
    for (const ReduceOp op : OpsOf(Type<T>::kDataType)) {
      const ReduceKernel kernel = FindReduceKernel(Type<T>::kDataType, op);
      std::vector<T> left = a, right = b;
      kernel(out.data(), a.data(), b.data(), count);
      kernel(left.data(), left.data(), b.data(), count);
      kernel(right.data(), a.data(), right.data(), count);
      for (size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(SameValue(left[i], out[i])) << Name(op) << " " << i << " of " << count;
        EXPECT_TRUE(SameValue(right[i], out[i])) << Name(op) << " " << i << " of " << count;
      }
    }
  }
}

TYPED_TEST(ReduceTest, OrderOfOperandsDoesNotMatter) {
  using T = TypeParam;
  std::mt19937_64 random(8);
  std::vector<T> a(1000), b(1000), ab(1000), ba(1000);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = RandomValue<T>(random);
    b[i] = RandomValue<T>(random);
  }
  for (const ReduceOp op : OpsOf(Type<T>::kDataType)) {
    const ReduceKernel kernel = FindReduceKernel(Type<T>::kDataType, op);
    kernel(ab.data(), a.data(), b.data(), a.size());
    kernel(ba.data(), b.data(), a.data(), a.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(SameValue(ab[i], ba[i])) << Name(op) << " " << i;
  }
}

TYPED_TEST(ReduceTest, DivisionEqualsTheDefinition) {
  using T = TypeParam;
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (const int divisor : {1, 2, 3, 8, 300, 65536}) {
    for (const size_t count : {0, 1, 7, 65}) {
      std::vector<T> data(count);
      for (T& value : data) value = RandomValue<T>(random);
      const std::vector<T> before = data;
      DivideBy(Type<T>::kDataType, data.data(), count, divisor);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(SameValue(data[i], ReferenceDivide(before[i], divisor)))
            << Show(before[i]) << " / " << divisor << " gave " << Show(data[i]) << ", seed " << seed;
      }
    }
  }
}

// All pairs of a 16-bit type are too many; every value against a few others is not.
template <typename T>
void EveryValue() {
  std::vector<T> all(65536), other(65536), out(65536);
  for (uint32_t i = 0; i < 65536; ++i) all[i].bits = static_cast<uint16_t>(i);
  for (const uint16_t bits : {0x0000, 0x8000, 0x0001, 0x3c00, 0x3c01, 0x7bff, 0x0400, 0x03ff, 0x7c00, 0x1234}) {
    std::fill(other.begin(), other.end(), T{bits});
    for (const ReduceOp op : OpsOf(Type<T>::kDataType)) {
      FindReduceKernel(Type<T>::kDataType, op)(out.data(), all.data(), other.data(), all.size());
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_TRUE(SameValue(out[i], ReferenceOp(all[i], other[i], op)))
            << Name(op) << " of " << Show(all[i]) << " and " << Show(other[i]) << " gave " << Show(out[i]);
      }
    }
  }
}
// The mean of two is that of a fold, which is rounded once.
template <typename T>
void EveryMeanOfTwo(const std::vector<T>& all) {
  constexpr DataType kType = Type<T>::kDataType;
  std::vector<T> other(all.size()), out(all.size()), expected(all.size());
  std::mt19937_64 random(9);
  for (int turn = 0; turn < 40; ++turn) {
    for (T& value : other) value = all[random() % all.size()];
    const void* ins[] = {all.data(), other.data()};
    void* const outs[] = {expected.data()};
    FindMeanOfTwoKernel(kType)(out.data(), all.data(), other.data(), all.size());
    FindAverageFoldKernel(kType)(outs, 1, ins, 2, all.size(), false);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(SameValue(out[i], expected[i]))
          << Show(all[i]) << " and " << Show(other[i]) << " gave " << Show(out[i]);
    }
  }
}
TEST(ReduceHalfTest, MeansOfTwoEqualTheFold) {
  std::vector<ReferenceFloat16> halves(65536);
  std::vector<ReferenceBFloat16> brains(65536);
  for (uint32_t i = 0; i < 65536; ++i) halves[i].bits = brains[i].bits = static_cast<uint16_t>(i);
  std::vector<ReferenceFloat8E4M3> e4m3(256);
  std::vector<ReferenceFloat8E5M2> e5m2(256);
  for (uint32_t i = 0; i < 256; ++i) e4m3[i].bits = e5m2[i].bits = static_cast<uint8_t>(i);
  EveryMeanOfTwo(e4m3);
  EveryMeanOfTwo(e5m2);
  EveryMeanOfTwo(halves);
  EveryMeanOfTwo(brains);
  EXPECT_EQ(FindMeanOfTwoKernel(DataType::kFloat32), nullptr);
  EXPECT_EQ(FindMeanOfTwoKernel(DataType::kInt32), nullptr);
}
TEST(ReduceHalfTest, EveryFloat16IsReducedRight) { EveryValue<ReferenceFloat16>(); }
TEST(ReduceHalfTest, EveryBFloat16IsReducedRight) { EveryValue<ReferenceBFloat16>(); }

// Every pair of an 8-bit type.
template <typename T>
void EveryPair() {
  std::vector<T> all(256), other(256), out(256);
  for (uint32_t i = 0; i < 256; ++i) all[i].bits = static_cast<uint8_t>(i);
  for (uint32_t bits = 0; bits < 256; ++bits) {
    std::fill(other.begin(), other.end(), T{static_cast<uint8_t>(bits)});
    for (const ReduceOp op : OpsOf(Type<T>::kDataType)) {
      FindReduceKernel(Type<T>::kDataType, op)(out.data(), all.data(), other.data(), all.size());
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_TRUE(SameValue(out[i], ReferenceOp(all[i], other[i], op)))
            << Name(op) << " of " << Show(all[i]) << " and " << Show(other[i]) << " gave " << Show(out[i]);
      }
    }
  }
}
TEST(ReduceSmallTest, EveryPairOfFloat8E4M3IsReducedRight) { EveryPair<ReferenceFloat8E4M3>(); }
TEST(ReduceSmallTest, EveryPairOfFloat8E5M2IsReducedRight) { EveryPair<ReferenceFloat8E5M2>(); }

TYPED_TEST(ReduceTest, PreparedOperandsAndFinishedResultsEqualTheDefinition) {
  using T = TypeParam;
  std::mt19937_64 random(9);
  const DataType dtype = Type<T>::kDataType;
  for (const size_t count : {0, 1, 3, 31, 64, 200}) {
    std::vector<T> values(count), out(count);
    for (T& value : values) value = RandomValue<T>(random);
    std::vector<char> wide(count * SizeOf(AccumulatorOf(dtype)));
    Prepare(dtype, wide.data(), values.data(), count, 3);
    Finish(dtype, out.data(), wide.data(), count, 5);
    for (size_t i = 0; i < count; ++i) {
      T expected;
      if constexpr (std::is_floating_point_v<T>) {
        expected = values[i] * T{3} / T{5};
      } else if constexpr (std::is_integral_v<T>) {
        expected = ReferenceDivide(static_cast<T>(static_cast<uint64_t>(values[i]) * 3), 5);
      } else {
        expected = T::FromDouble(static_cast<double>(static_cast<float>(values[i].ToDouble()) * 3.0F / 5.0F));
      }
      ASSERT_TRUE(SameValue(out[i], expected)) << Show(values[i]) << " gave " << Show(out[i]);
    }
  }
}

TEST(ReduceLookupTest, FactorsOfIntegersAreValuesOfTheType) {
  EXPECT_TRUE(FactorFits(DataType::kInt8, -128));
  EXPECT_FALSE(FactorFits(DataType::kInt8, 128));
  EXPECT_FALSE(FactorFits(DataType::kInt32, 0.5));
  EXPECT_FALSE(FactorFits(DataType::kUint64, -1));
  EXPECT_TRUE(FactorFits(DataType::kFloat8E4M3, 0.5));
}

TEST(ReduceLookupTest, ValuesThatAreNoTypeOrOpHaveNoKernel) {
  EXPECT_EQ(FindReduceKernel(static_cast<DataType>(0), ReduceOp::kSum), nullptr);
  EXPECT_EQ(FindReduceKernel(static_cast<DataType>(kDataTypes), ReduceOp::kSum), nullptr);
  EXPECT_EQ(FindReduceKernel(DataType::kFloat32, static_cast<ReduceOp>(0)), nullptr);
  EXPECT_EQ(FindReduceKernel(DataType::kFloat32, static_cast<ReduceOp>(kReduceOps)), nullptr);
  EXPECT_EQ(FindReduceKernel(DataType::kFloat32, ReduceOp::kBxor), nullptr);
  EXPECT_EQ(FindReduceKernel(DataType::kInt32, ReduceOp::kUser), nullptr);
}

}  // namespace
}  // namespace cohort::comm
