#include "cohort/comm/run/reduction_stage.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>

namespace cohort::comm {
namespace {

constexpr int64_t kMebi = 1 << 20;

CollectiveRequest Sum(CollectiveKind kind, DataType dtype, int64_t count, ReduceOp op = ReduceOp::kSum) {
  CollectiveRequest request;
  request.kind = kind;
  request.dtype = dtype;
  request.op = op;
  request.count = count;
  return request;
}

uint16_t Id(CollectiveKind kind, std::string_view name) { return FindAlgorithm(kind, name)->id; }

TEST(ReductionStageTest, TwoRanksNeedNoneExceptForFactors) {
  const uint16_t ring = Id(CollectiveKind::kAllReduce, "ring");
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct}) {
    const CollectiveRequest request = Sum(CollectiveKind::kAllReduce, DataType::kBFloat16, 100, op);
    EXPECT_FALSE(ReductionStage::Needed(request, 2, ring));
    EXPECT_FALSE(ReductionStage::Folds(request, 2, ring));
    EXPECT_TRUE(ReductionStage::Needed(request, 3, ring));
  }
  const CollectiveRequest scaled = Sum(CollectiveKind::kAllReduce, DataType::kBFloat16, 100, ReduceOp::kPreMulSum);
  EXPECT_TRUE(ReductionStage::Needed(scaled, 2, ring));
  EXPECT_EQ(ComputedBytes(scaled, 2), 4u);
}

TEST(ReductionStageTest, SmallFloatsAndMeansOfIntegersAreFoldedFromMessages) {
  const uint16_t direct = Id(CollectiveKind::kAllReduce, "direct");
  EXPECT_TRUE(ReductionStage::Folds(Sum(CollectiveKind::kAllReduce, DataType::kFloat16, 100), 4, direct));
  EXPECT_TRUE(ReductionStage::Folds(Sum(CollectiveKind::kAllReduce, DataType::kInt8, 100, ReduceOp::kAvg), 2, direct));
  EXPECT_FALSE(ReductionStage::Folds(Sum(CollectiveKind::kAllReduce, DataType::kFloat32, 100), 4, direct));
  EXPECT_FALSE(
      ReductionStage::Folds(Sum(CollectiveKind::kAllReduce, DataType::kFloat16, 100, ReduceOp::kMax), 4, direct));
}

TEST(ReductionStageTest, OperandsThatFillTooMuchMemoryAreCombinedOneByOne) {
  const uint16_t flat = Id(CollectiveKind::kReduceScatterV, "flat");
  CollectiveRequest request = Sum(CollectiveKind::kReduceScatterV, DataType::kBFloat16, kMebi);
  BlockTable blocks;
  blocks.in_counts.assign(64, 0);
  blocks.in_counts[5] = kMebi;
  request.blocks = &blocks;
  EXPECT_FALSE(ReductionStage::Needed(request, 64, flat));
  EXPECT_TRUE(ReductionStage::Folds(request, 64, flat));
  blocks.in_counts[5] = 64 * kMebi;  // the mean is as before
  EXPECT_TRUE(ReductionStage::Needed(request, 64, flat));
  EXPECT_FALSE(ReductionStage::Folds(request, 64, flat));
}

}  // namespace
}  // namespace cohort::comm
