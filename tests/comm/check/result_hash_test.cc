#include "cohort/comm/check/result_hash.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>

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

// Every bit pattern of the types of one and two bytes; the edges of the larger ones.
TEST(HashResultTest, SignsAndPayloadsOfNaNsDoNotCount) {
  const auto hash = [](DataType dtype, const void* number) {
    CollectiveRequest request;
    request.kind = CollectiveKind::kAllReduce;
    request.in = request.out = const_cast<void*>(number);
    request.count = 1;
    request.dtype = dtype;
    return HashResult(request, 2);
  };
  const struct {
    DataType dtype;
    size_t different;  // 256 or 65536 without all NaNs but one
  } kSmall[] = {{DataType::kFloat8E4M3, 255},
                {DataType::kFloat8E5M2, 251},
                {DataType::kFloat16, 65536 - 2045},
                {DataType::kBFloat16, 65536 - 253}};
  for (const auto& type : kSmall) {
    std::set<uint64_t> hashes;
    for (uint32_t bits = 0; bits < 1u << 8 * SizeOf(type.dtype); ++bits) hashes.insert(hash(type.dtype, &bits));
    EXPECT_EQ(hashes.size(), type.different) << Name(type.dtype);
  }
  const auto of32 = [&](uint32_t bits) { return hash(DataType::kFloat32, &bits); };
  EXPECT_EQ(of32(0x7fc00000), of32(0xffc00001));
  EXPECT_EQ(of32(0x7fc00000), of32(0x7f800001));
  EXPECT_NE(of32(0x7fc00000), of32(0x7f800000));
  EXPECT_NE(of32(0x7f800000), of32(0xff800000));
  EXPECT_NE(of32(0), of32(0x80000000));
  const auto of64 = [&](uint64_t bits) { return hash(DataType::kFloat64, &bits); };
  EXPECT_EQ(of64(0x7ff8000000000000), of64(0xfff0000000000001));
  EXPECT_NE(of64(0x7ff8000000000000), of64(0x7ff0000000000000));
  EXPECT_NE(of64(0x7ff0000000000000), of64(0xfff0000000000000));
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
