// The fold kernels against a loop over the operands with one rounding at the end.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "cohort/comm/reduce/instruction_set.h"
#include "cohort/comm/reduce/placed_fold.h"
#include "cohort/comm/reduce/reduce.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "tests/comm/reduce/scalar_reference.h"
#include "tests/comm/reduce/typed_values.h"

namespace cohort::comm {
namespace {

template <typename T>
class FoldTest : public testing::Test {};
TYPED_TEST_SUITE(FoldTest, AllTypes);

// Operands of random values in memory of any alignment, and outputs between guards.
template <typename T>
struct Operands {
  Operands(size_t n_ins, size_t n_outs, size_t count, std::mt19937_64& random) : count(count) {
    for (size_t k = 0; k < n_ins; ++k) {
      values.emplace_back(count);
      for (T& value : values.back()) value = RandomValue<T>(random);
      memory.emplace_back(count * sizeof(T) + 64);
      in_at.push_back(random() % 33);
      if (count > 0) std::memcpy(memory.back().data() + in_at.back(), values.back().data(), count * sizeof(T));
    }
    const size_t common = random() % 65 / sizeof(T) * sizeof(T);
    for (size_t k = 0; k < n_outs; ++k) {
      out_memory.emplace_back(count * sizeof(T) + 256, '\x5a');
      const size_t misaligned = reinterpret_cast<uintptr_t>(out_memory.back().data()) % 64;
      out_at.push_back(random() % 4 == 0 ? random() % 64 : 64 - misaligned + common);  // mostly aligned alike
    }
    for (size_t k = 0; k < n_ins; ++k) ins.push_back(memory[k].data() + in_at[k]);
    for (size_t k = 0; k < n_outs; ++k) outs.push_back(out_memory[k].data() + out_at[k]);
  }
  T Out(size_t k, size_t i) const {
    T value;
    std::memcpy(static_cast<void*>(&value), out_memory[k].data() + out_at[k] + i * sizeof(T), sizeof(T));
    return value;
  }
  std::vector<T> At(size_t i) const {
    std::vector<T> column;
    for (const std::vector<T>& value : values) column.push_back(value[i]);
    return column;
  }
  bool guards_intact() const {
    for (size_t k = 0; k < out_memory.size(); ++k) {
      for (size_t i = 0; i < out_memory[k].size(); ++i) {
        const bool inside = i >= out_at[k] && i < out_at[k] + count * sizeof(T);
        if (!inside && out_memory[k][i] != '\x5a') return false;
      }
    }
    return true;
  }

  size_t count;
  std::vector<std::vector<T>> values;
  std::vector<std::vector<char>> memory, out_memory;
  std::vector<size_t> in_at, out_at;
  std::vector<const void*> ins;
  std::vector<void*> outs;
};

TYPED_TEST(FoldTest, FoldsEqualALoopOverTheOperandsThatRoundsOnce) {
  using T = TypeParam;
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (size_t count = 0; count < 300; count += 1 + count / 10) {
    for (const ReduceOp op : OpsOf(Type<T>::kDataType)) {
      const size_t n_ins = 1 + random() % 9;
      Operands<T> operands(n_ins, 1 + random() % 3, count, random);
      FindFoldKernel(Type<T>::kDataType, op)(operands.outs.data(), operands.outs.size(), operands.ins.data(), n_ins,
                                             count, random() % 2 == 0);
      ASSERT_TRUE(operands.guards_intact()) << "wrote outside, seed " << seed;
      for (size_t k = 0; k < operands.outs.size(); ++k) {
        for (size_t i = 0; i < count; ++i) {
          const T expected = ReferenceFold(operands.At(i), op, false);
          ASSERT_TRUE(SameValue(operands.Out(k, i), expected))
              << Name(op) << " of " << n_ins << " gave " << Show(operands.Out(k, i)) << " instead of " << Show(expected)
              << ", element " << i << " of " << count << ", output " << k << ", seed " << seed;
        }
      }
    }
  }
}

TYPED_TEST(FoldTest, AveragesDivideBeforeTheyRound) {
  using T = TypeParam;
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (const size_t count : {0, 1, 7, 65, 513, 1600}) {
    const size_t n_ins = 1 + random() % 9;
    Operands<T> operands(n_ins, 2, count, random);
    FindAverageFoldKernel(Type<T>::kDataType)(operands.outs.data(), 2, operands.ins.data(), n_ins, count, false);
    ASSERT_TRUE(operands.guards_intact()) << "wrote outside, seed " << seed;
    for (size_t i = 0; i < count; ++i) {
      const T expected = ReferenceFold(operands.At(i), ReduceOp::kSum, true);
      ASSERT_TRUE(SameValue(operands.Out(0, i), expected) && SameValue(operands.Out(1, i), expected))
          << n_ins << " operands gave " << Show(operands.Out(0, i)) << " instead of " << Show(expected) << ", seed "
          << seed;
    }
  }
}

TYPED_TEST(FoldTest, AnOutputMayBeAnOperand) {
  using T = TypeParam;
  std::mt19937_64 random(3);
  for (const bool stream : {false, true}) {
    for (size_t which = 0; which < 3; ++which) {
      std::vector<std::vector<T>> values(3, std::vector<T>(143));
      for (auto& operand : values) {
        for (T& value : operand) value = RandomValue<T>(random);
      }
      std::vector<std::vector<T>> before = values;
      const void* ins[] = {values[0].data(), values[1].data(), values[2].data()};
      void* outs[] = {values[which].data()};
      FindFoldKernel(Type<T>::kDataType, ReduceOp::kSum)(outs, 1, ins, 3, 143, stream);
      for (size_t i = 0; i < 143; ++i) {
        const T expected = ReferenceFold<T>({before[0][i], before[1][i], before[2][i]}, ReduceOp::kSum, false);
        ASSERT_TRUE(SameValue(values[which][i], expected)) << i;
      }
    }
  }
}

TEST(InstructionSetTest, SupportedInstructionSetsAreThoseThatHighwayFinds) {
  constexpr int64_t kCompiled = HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL;
  if (!HWY_ARCH_X86_64) GTEST_SKIP() << "on other CPUs than x86-64 the compiler's choice stands";
  EXPECT_EQ(SupportedInstructionSets() & kCompiled, hwy::SupportedTargets() & kCompiled);
}

// Ranks on different CPUs take part in one reduction.
TYPED_TEST(FoldTest, AllInstructionSetsGiveTheSameBits) {
  using T = TypeParam;
  constexpr DataType kType = Type<T>::kDataType;
  std::mt19937_64 random(4);
  constexpr size_t kCount = 101;
  std::vector<std::vector<T>> operands(3, std::vector<T>(kCount));
  for (auto& operand : operands) {
    for (T& value : operand) value = RandomValue<T>(random);
  }
  const void* ins[] = {operands[0].data(), operands[1].data(), operands[2].data()};
  for (const ReduceOp op : OpsOf(kType)) {
    std::vector<std::vector<T>> results;
    for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_EMU128}) {
      if ((SupportedInstructionSets() & target) == 0 && target != HWY_EMU128) continue;
      ChosenInstructionSet().Update(target);
      std::vector<T> folded(kCount), pair(kCount), divided(kCount);
      std::vector<double> wide(kCount);
      void* outs[] = {folded.data()};
      FindFoldKernel(kType, op)(outs, 1, ins, 3, kCount, false);
      FindReduceKernel(kType, op)(pair.data(), ins[0], ins[1], kCount);
      Prepare(kType, wide.data(), ins[2], kCount, 3);
      Finish(kType, divided.data(), wide.data(), kCount, 7);
      folded.insert(folded.end(), pair.begin(), pair.end());
      folded.insert(folded.end(), divided.begin(), divided.end());
      results.push_back(std::move(folded));
    }
    ChosenInstructionSet().Update(SupportedInstructionSets());
    for (size_t i = 0; i < results[0].size(); ++i) {
      for (const std::vector<T>& result : results) ASSERT_TRUE(SameValue(result[i], results[0][i])) << Name(op) << i;
    }
  }
}

// Some outputs through the cache, some past it, whatever their places in a line; and copies.
TYPED_TEST(FoldTest, PlacedFoldsAndCopiesStoreTheSameEverywhere) {
  using T = TypeParam;
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  const FoldKernel kernel = FindFoldKernel(Type<T>::kDataType, ReduceOp::kMax);
  for (int i = 0; i < 200; ++i) {
    const size_t n_ins = 1 + random() % 4;
    const size_t n_outs = 1 + random() % 4;
    const size_t count = random() % (i % 4 == 0 ? 20'000 : 300);  // some of several blocks
    Operands<T> operands(n_ins, n_outs, count, random);
    PlacedFold({.ins = operands.ins,
                .outs = operands.outs,
                .cached = random() % (n_outs + 1),
                .count = count,
                .element_bytes = sizeof(T),
                .kernel = kernel});
    for (size_t j = 0; j < count; ++j) {
      T expected = operands.values[0][j];
      for (size_t k = 1; k < n_ins; ++k) expected = ReferenceOp(expected, operands.values[k][j], ReduceOp::kMax);
      for (size_t k = 0; k < n_outs; ++k) {
        ASSERT_TRUE(SameValue(operands.Out(k, j), expected)) << "element " << j << " of " << count << ", seed " << seed;
      }
    }
    ASSERT_TRUE(operands.guards_intact()) << "wrote outside, seed " << seed;
  }
}

TEST(FoldLookupTest, ValuesThatAreNoTypeOrOpHaveNoKernel) {
  EXPECT_EQ(FindFoldKernel(static_cast<DataType>(0), ReduceOp::kSum), nullptr);
  EXPECT_EQ(FindFoldKernel(static_cast<DataType>(kDataTypes), ReduceOp::kSum), nullptr);
  EXPECT_EQ(FindFoldKernel(DataType::kFloat32, static_cast<ReduceOp>(0)), nullptr);
  EXPECT_EQ(FindAverageFoldKernel(static_cast<DataType>(0)), nullptr);
}

}  // namespace
}  // namespace cohort::comm
