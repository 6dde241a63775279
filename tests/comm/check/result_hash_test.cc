#include "cohort/comm/check/result_hash.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace cohort::comm {
namespace {

TEST(HashResultTest, OnlyResultsThatMustBeEqualHaveOne) {
  float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  CollectiveRequest request;
  request.in = request.out = values;
  request.count = 2;
  request.dtype = DataType::kFloat32;
  for (int kind = 1; kind < kCollectiveKinds; ++kind) {
    request.kind = static_cast<CollectiveKind>(kind);
    if (HasUnequalBlocks(request.kind)) continue;
    const bool equal = request.kind == CollectiveKind::kAllReduce || request.kind == CollectiveKind::kBroadcast ||
                       request.kind == CollectiveKind::kAllGather;
    EXPECT_EQ(HashResult(request, 4) != 0, equal) << Name(request.kind);
  }
  request.kind = CollectiveKind::kAllReduce;
  request.memory = MemoryKind::kCuda;
  EXPECT_EQ(HashResult(request, 4), 0);
  request.memory = MemoryKind::kHost;
  const UserReduceOp op;
  request.user_op = &op;
  EXPECT_EQ(HashResult(request, 4), 0);
}

TEST(HashResultTest, PlacesOfBlocksDoNotCount) {
  const float packed[] = {1, 2, 3, 4, 5, 6};
  const float spread[] = {9, 4, 5, 6, 0, 1, 2, 3};
  BlockTable first = {.in_counts = {3}, .in_places = {0}, .out_counts = {3, 0, 3}, .out_places = {0, 3, 3}};
  BlockTable other = {.in_counts = {3}, .in_places = {0}, .out_counts = {3, 0, 3}, .out_places = {5, 0, 1}};
  CollectiveRequest request;
  request.kind = CollectiveKind::kAllGatherV;
  request.dtype = DataType::kFloat32;
  request.blocks = &first;
  request.out = const_cast<float*>(packed);
  const uint64_t hash = HashResult(request, 3);
  request.blocks = &other;
  request.out = const_cast<float*>(spread);
  EXPECT_EQ(HashResult(request, 3), hash);
}

}  // namespace
}  // namespace cohort::comm
