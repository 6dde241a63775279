#include "tools/measure/operation.h"

#include <gtest/gtest.h>

namespace cohort::measure {
namespace {

TEST(Operation, NamesParseBack) {
  for (const Operation operation : AllOperations()) {
    Operation parsed{};
    ASSERT_TRUE(ParseOperation(Name(operation), &parsed));
    EXPECT_EQ(parsed, operation);
  }
  Operation parsed{};
  EXPECT_FALSE(ParseOperation("allreduce", &parsed));
}

TEST(Operation, BandwidthsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(TotalBytes(Operation::kAllReduce, 4, 100), 100);
  EXPECT_DOUBLE_EQ(TotalBytes(Operation::kAllGather, 4, 100), 400);
  EXPECT_DOUBLE_EQ(TotalBytes(Operation::kReduceScatter, 4, 100), 400);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(TotalBytes(Operation::kSendRecv, 4, 100), 100);
  EXPECT_DOUBLE_EQ(BusFactor(Operation::kSendRecv, 4), 1);
}

}  // namespace
}  // namespace cohort::measure
