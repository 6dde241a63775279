// A launch is known only where NCCL needs no connection that it did not need before.
#include "cohort/comm/nccl/library/launch_shape.h"

#include <gtest/gtest.h>

#include <vector>

namespace cohort::comm::nccl {
namespace {

CollectiveRequest AllReduce(int64_t count) {
  CollectiveRequest request;
  request.kind = CollectiveKind::kAllReduce;
  request.dtype = DataType::kFloat32;
  request.count = count;
  return request;
}

uint64_t Shape(const CollectiveRequest& request, bool registers = false) { return LaunchShape(0, request, registers); }

TEST(LaunchShapeTest, CollectivesDifferBySizeTypeRootAndOp) {
  const CollectiveRequest base = AllReduce(8);
  CollectiveRequest more = base, doubles = base, greatest = base, tagged = base;
  more.count = 9;
  doubles.dtype = DataType::kFloat64;
  greatest.op = ReduceOp::kMax;
  tagged.tag = 5;
  EXPECT_EQ(Shape(base), Shape(AllReduce(8)));
  EXPECT_EQ(Shape(base), Shape(tagged)) << "of the next iteration";
  for (const CollectiveRequest& other : {more, doubles, greatest}) EXPECT_NE(Shape(base), Shape(other));
  CollectiveRequest from_0 = base, from_1 = base;
  from_0.kind = from_1.kind = CollectiveKind::kBroadcast;
  from_0.root = 0;
  from_1.root = 1;
  EXPECT_NE(Shape(from_0), Shape(from_1));
}

TEST(LaunchShapeTest, MessagesDifferByPeerAndDirectionOnly) {
  CollectiveRequest send = AllReduce(8);
  send.kind = CollectiveKind::kSend;
  send.peer = 1;
  CollectiveRequest longer = send, other = send, back = send;
  longer.count = 1000;
  other.peer = 2;
  back.kind = CollectiveKind::kRecv;
  EXPECT_EQ(Shape(send), Shape(longer));
  EXPECT_NE(Shape(send), Shape(other));
  EXPECT_NE(Shape(send), Shape(back));
}

TEST(LaunchShapeTest, UnequalBlocksDifferByWhoGetsAny) {
  BlockTable some, as_many, others;
  some.in_counts = {3, 0, 1};
  as_many.in_counts = {5, 0, 9};
  others.in_counts = {3, 1, 0};
  CollectiveRequest request;
  request.kind = CollectiveKind::kAllToAllV;
  const auto with = [&](CollectiveKind kind, const BlockTable& blocks) {
    request.kind = kind;
    request.blocks = &blocks;
    return Shape(request);
  };
  EXPECT_EQ(with(CollectiveKind::kAllToAllV, some), with(CollectiveKind::kAllToAllV, as_many));
  EXPECT_NE(with(CollectiveKind::kAllToAllV, some), with(CollectiveKind::kAllToAllV, others));
  EXPECT_NE(with(CollectiveKind::kAllGatherV, some), with(CollectiveKind::kAllGatherV, as_many));
}

TEST(LaunchShapeTest, PlacesCountWhereMemoryIsRegistered) {
  int here = 0, there = 0;
  CollectiveRequest one = AllReduce(1), two = AllReduce(1);
  one.in = &here;
  two.in = &there;
  EXPECT_EQ(Shape(one), Shape(two));
  EXPECT_NE(Shape(one, true), Shape(two, true));
}

TEST(LaunchShapeTest, BatchesDifferByAllTheirCalls) {
  const uint64_t first = Shape(AllReduce(8));
  EXPECT_NE(LaunchShape(first, AllReduce(8), false), first);
  EXPECT_NE(LaunchShape(first, AllReduce(8), false), LaunchShape(first, AllReduce(9), false));
}

}  // namespace
}  // namespace cohort::comm::nccl
