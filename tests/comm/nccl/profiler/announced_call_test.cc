#include "cohort/comm/nccl/profiler/announced_call.h"

#include <gtest/gtest.h>

#include "cohort/runtime/segment/call_names.h"

namespace cohort::comm::nccl_profiler {
namespace {

std::string Words(const char* function, const char* datatype, size_t count, int root_or_peer) {
  const auto call = ReadCall(function, datatype, count, root_or_peer);
  return call.has_value() ? runtime::DescribeCall(ToRecord(*call, 0, 4)) : "none";
}

TEST(AnnouncedCallTest, CallsAreNamedAsOurs) {
  EXPECT_EQ(Words("AllReduce", "ncclFloat32", 8, 0), "all_reduce(float32, 8)");
  EXPECT_EQ(Words("AllGather", "ncclInt8", 16, 0), "all_gather(int8, 16)");
  EXPECT_EQ(Words("ReduceScatter", "ncclBfloat16", 8, 0), "reduce_scatter(bfloat16, 8)");
  EXPECT_EQ(Words("Broadcast", "ncclInt8", 8, 2), "broadcast(int8, 8, root 2)");
  EXPECT_EQ(Words("Reduce", "ncclFloat8e4m3", 8, 1), "reduce(float8_e4m3, 8, root 1)");
  EXPECT_EQ(Words("Send", "ncclFloat64", 8, 3), "send(float64, 8, to 3)");
  EXPECT_EQ(Words("Recv", "ncclUint64", 8, 3), "recv(uint64, 8, from 3)");
  EXPECT_EQ(Words("AlltoAll", "ncclFloat16", 8, 0), "all_to_all(float16, 8)");
}

TEST(AnnouncedCallTest, UnknownFunctionsAreNoCalls) {
  EXPECT_EQ(Words(nullptr, "ncclFloat32", 8, 0), "none");
  EXPECT_EQ(Words("PutSignal", "ncclFloat32", 8, 0), "none");
  EXPECT_EQ(Words("AllReduce", nullptr, 8, 0), "all_reduce(?, 8)");
  EXPECT_EQ(Words("AllReduce", "ncclFloat4", 8, 0), "all_reduce(?, 8)");
  EXPECT_EQ(Words("Broadcast", "ncclInt8", 8, -7), "broadcast(int8, 8, root 0)");
}

TEST(AnnouncedCallTest, BytesAreThoseOfTheLargerBuffer) {
  EXPECT_EQ(ToRecord(*ReadCall("AllReduce", "ncclFloat32", 8, 0), 0, 4).bytes, 32u);
  EXPECT_EQ(ToRecord(*ReadCall("AllGather", "ncclInt8", 8, 0), 0, 4).bytes, 32u);
  EXPECT_EQ(ToRecord(*ReadCall("ReduceScatter", "ncclFloat16", 8, 0), 0, 4).bytes, 64u);
  EXPECT_EQ(ToRecord(*ReadCall("Send", "ncclFloat64", 2, 1), 0, 0).bytes, 16u);
  EXPECT_EQ(ToRecord(*ReadCall("AllReduce", "?", 8, 0), 0, 4).bytes, 8u);
}

}  // namespace
}  // namespace cohort::comm::nccl_profiler
