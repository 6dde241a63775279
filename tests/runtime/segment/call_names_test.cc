// The names in black boxes are those of comm's enumerations, although the runtime does not know comm.
#include "cohort/runtime/segment/call_names.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "cohort/comm/types.h"

namespace cohort::runtime {
namespace {

TEST(CallNamesTest, NamesOfCallsAgreeWithComm) {
  for (int i = 1; i < comm::kCollectiveKinds; ++i) {
    EXPECT_EQ(CallKindName(static_cast<uint16_t>(i)), comm::Name(static_cast<comm::CollectiveKind>(i)));
  }
  for (int i = 1; i < comm::kDataTypes; ++i) {
    EXPECT_EQ(DataTypeName(static_cast<uint16_t>(i)), comm::Name(static_cast<comm::DataType>(i)));
  }
  for (int i = 1; i < comm::kReduceOps; ++i) {
    EXPECT_EQ(ReduceOpName(static_cast<uint16_t>(i)), comm::Name(static_cast<comm::ReduceOp>(i)));
  }
  static_assert(kShrinkCall == comm::kCollectiveKinds);
  EXPECT_EQ(CallKindName(kShrinkCall), "shrink");
  EXPECT_EQ(CallKindName(kShrinkCall + 1), "?");
  EXPECT_EQ(DataTypeName(comm::kDataTypes), "?");
  EXPECT_EQ(ReduceOpName(comm::kReduceOps), "?");
  CallRecord record;
  record.signature.kind = static_cast<uint16_t>(comm::CollectiveKind::kAllReduce);
  record.signature.dtype = static_cast<uint16_t>(comm::DataType::kFloat8E4M3);
  record.signature.op = static_cast<uint8_t>(comm::ReduceOp::kUser);
  record.signature.count = 7;
  std::memcpy(record.user_op, "larger", 7);
  for (int i = 2; i < comm::kDeterminismLevels; ++i) {
    record.signature.determinism = static_cast<uint8_t>(i);
    EXPECT_EQ(DescribeCall(record), "all_reduce(user:larger, float8_e4m3, 7, " +
                                        std::string(comm::Name(static_cast<comm::Determinism>(i))) + ")");
  }
  EXPECT_TRUE(IsPointToPoint(static_cast<uint16_t>(comm::CollectiveKind::kSend)));
  EXPECT_TRUE(IsPointToPoint(static_cast<uint16_t>(comm::CollectiveKind::kRecv)));
  EXPECT_FALSE(IsPointToPoint(static_cast<uint16_t>(comm::CollectiveKind::kBarrier)));
}

TEST(CallNamesTest, TransportsHaveABitEach) {
  uint16_t all = 0;
  for (const char* name : {"shm", "ucx", "tcp", "nccl"}) {
    EXPECT_TRUE(IsKnownTransport(name)) << name;
    EXPECT_EQ(all & TransportBit(name), 0) << name;
    all = static_cast<uint16_t>(all | TransportBit(name));
    EXPECT_EQ(TransportNames(TransportBit(name)), name);
  }
  EXPECT_FALSE(IsKnownTransport("pigeon"));
  EXPECT_FALSE(IsKnownTransport("another"));
  EXPECT_EQ(all & TransportBit("pigeon"), 0);
  EXPECT_EQ(TransportNames(all), "shm+ucx+tcp+nccl");
}

TEST(CallNamesTest, TextFromElsewhereIsBoundedAndPrintable) {
  const char text[4] = {'a', '\n', '\x7f', 'b'};
  EXPECT_EQ(PrintableText(text, sizeof text), "a??b");
  EXPECT_EQ(PrintableText("ring", 5), "ring");
  EXPECT_EQ(TransportNames(0xffff), "shm+ucx+tcp+nccl+another");
}

}  // namespace
}  // namespace cohort::runtime
