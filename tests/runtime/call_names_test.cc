// The names in black boxes are those of comm's enumerations, although the runtime does not know comm.
#include "runtime/segment/call_names.h"

#include <gtest/gtest.h>

#include "comm/types.h"

namespace cohort::runtime {
namespace {

TEST(CallNamesTest, AgreeWithComm) {
  for (int i = 1; i < comm::kCollectiveKinds; ++i) {
    EXPECT_EQ(CallKindName(static_cast<uint16_t>(i)), comm::Name(static_cast<comm::CollectiveKind>(i)));
  }
  for (int i = 1; i < comm::kDataTypes; ++i) {
    EXPECT_EQ(DataTypeName(static_cast<uint16_t>(i)), comm::Name(static_cast<comm::DataType>(i)));
  }
  for (int i = 1; i < comm::kReduceOps; ++i) {
    EXPECT_EQ(ReduceOpName(static_cast<uint16_t>(i)), comm::Name(static_cast<comm::ReduceOp>(i)));
  }
  EXPECT_EQ(CallKindName(comm::kCollectiveKinds), "?");
  EXPECT_EQ(DataTypeName(comm::kDataTypes), "?");
  EXPECT_EQ(ReduceOpName(comm::kReduceOps), "?");
  EXPECT_TRUE(IsPointToPoint(static_cast<uint16_t>(comm::CollectiveKind::kSend)));
  EXPECT_TRUE(IsPointToPoint(static_cast<uint16_t>(comm::CollectiveKind::kRecv)));
  EXPECT_FALSE(IsPointToPoint(static_cast<uint16_t>(comm::CollectiveKind::kBarrier)));
}

}  // namespace
}  // namespace cohort::runtime
