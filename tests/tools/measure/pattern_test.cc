#include "tools/measure/pattern.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tools/measure/operation.h"

namespace cohort::measure {
namespace {

std::vector<char> InputOf(Pattern pattern, int rank) {
  pattern.rank = rank;
  const int blocks = BlocksOf(pattern.operation, rank == pattern.root, pattern.ranks).in;
  std::vector<char> in(static_cast<size_t>(pattern.count * blocks * pattern.type.bytes));
  FillInput(pattern, in.data());
  return in;
}

// The data that `rank` must have after an operation that moves it, made with nothing but copies of blocks.
std::vector<char> MovedTo(const Pattern& pattern, int rank) {
  const size_t block = static_cast<size_t>(pattern.count * pattern.type.bytes);
  const int blocks = BlocksOf(pattern.operation, rank == pattern.root, pattern.ranks).out;
  std::vector<char> out(block * static_cast<size_t>(blocks));
  for (int i = 0; i < blocks; ++i) {
    const bool from_root = pattern.operation == Operation::kBroadcast || pattern.operation == Operation::kScatter;
    const bool scattered = pattern.operation == Operation::kScatter || pattern.operation == Operation::kAllToAll;
    const int previous = (rank + pattern.ranks - 1) % pattern.ranks;
    const int source = from_root ? pattern.root : pattern.operation == Operation::kSendRecv ? previous : i;
    const std::vector<char> in = InputOf(pattern, source);
    std::memcpy(out.data() + static_cast<size_t>(i) * block,
                in.data() + (scattered ? static_cast<size_t>(rank) : 0) * block, block);
  }
  return out;
}

TEST(Pattern, AcceptsRightMovesAndCountsEverySpoiltElement) {
  for (const Operation operation : {Operation::kBroadcast, Operation::kGather, Operation::kScatter,
                                    Operation::kAllGather, Operation::kAllToAll, Operation::kSendRecv}) {
    for (const ElementType& type : ElementTypes()) {
      Pattern pattern{.operation = operation, .type = type, .ranks = 3, .rank = 0, .root = 1, .count = 37, .seed = 5};
      for (pattern.rank = 0; pattern.rank < 3; ++pattern.rank) {
        std::vector<char> out = MovedTo(pattern, pattern.rank);
        EXPECT_EQ(CountWrong(pattern, out.data()), 0) << Name(operation) << ' ' << type.name << ' ' << pattern.rank;
        if (out.empty()) continue;
        out.front() = static_cast<char>(out.front() ^ 1);
        out.back() = static_cast<char>(out.back() ^ 1);
        EXPECT_EQ(CountWrong(pattern, out.data()), 2) << Name(operation) << ' ' << type.name;
      }
    }
  }
}

TEST(Pattern, AcceptsSumsAndCountsEverySpoiltElement) {
  Pattern pattern{.operation = Operation::kReduceScatter, .ranks = 4, .rank = 2, .count = 50, .seed = 9};
  pattern.type = *FindElementType("float32");
  std::vector<float> sum(50);
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<char> in = InputOf(pattern, rank);
    for (size_t i = 0; i < sum.size(); ++i) {
      float value = 0;
      std::memcpy(&value, in.data() + (2 * 50 + i) * sizeof value, sizeof value);
      sum[i] += value;
    }
  }
  EXPECT_EQ(CountWrong(pattern, sum.data()), 0);
  sum[7] += 1;
  sum[49] = -sum[49] - 1;
  EXPECT_EQ(CountWrong(pattern, sum.data()), 2);
}

TEST(Pattern, EveryTypeHoldsTheOperandsOfEveryFold) {
  // One rank: the result of any fold is the input itself.
  for (const ElementType& type : ElementTypes()) {
    for (const Fold fold : {Fold::kSum, Fold::kProduct, Fold::kMin, Fold::kMax, Fold::kAvg}) {
      Pattern pattern{.operation = Operation::kAllReduce, .fold = fold, .type = type, .ranks = 1, .count = 100};
      const std::vector<char> in = InputOf(pattern, 0);
      EXPECT_EQ(CountWrong(pattern, in.data()), 0) << type.name;
    }
  }
}

TEST(Pattern, PoisonAndAnotherSeedAreWrong) {
  Pattern pattern{.operation = Operation::kAllGather, .ranks = 2, .rank = 0, .count = 1000, .seed = 1};
  pattern.type = *FindElementType("int32");
  std::vector<char> out = MovedTo(pattern, 0);
  pattern.seed = 2;
  EXPECT_EQ(CountWrong(pattern, out.data()), 2000);
  Poison(out.data(), out.size());
  EXPECT_EQ(CountWrong(pattern, out.data()), 2000);
}

TEST(Pattern, NotANumberIsWrong) {
  Pattern pattern{.operation = Operation::kAllReduce, .ranks = 2, .rank = 0, .count = 1};
  pattern.type = *FindElementType("float16");
  const uint16_t nan = 0x7e00;
  EXPECT_EQ(CountWrong(pattern, &nan), 1);
}

}  // namespace
}  // namespace cohort::measure
