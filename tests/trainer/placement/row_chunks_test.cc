// RowChunk against torch.chunk itself.
#include "cohort/trainer/placement/row_chunks.h"

#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

TEST(RowChunks, RowChunksAreThoseOfTorch) {
  const std::vector<std::vector<int64_t>> shapes = {{5, 3}, {1},    {7},    {2, 0}, {0, 3},       {0},
                                                    {8, 2}, {3, 2}, {9, 1}, {16},   {6, 2, 3, 2}, {1, 40}};
  for (const auto& sizes : shapes) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const at::Tensor whole = torch::arange(torch::zeros(sizes).numel()).view(sizes);
      const auto chunks = whole.chunk(ranks, 0);
      for (int rank = 0; rank < ranks; ++rank) {
        const bool there = rank < static_cast<int>(chunks.size());
        const at::Tensor expected = there ? chunks[rank] : whole.narrow(0, 0, 0);
        const RowChunk own = RowChunkOf(sizes, ranks, rank);
        EXPECT_EQ(own.sizes, expected.sizes().vec()) << expected.sizes() << " on rank " << rank << " of " << ranks;
        const at::Tensor actual = whole.reshape({-1}).narrow(0, own.begin, own.end - own.begin);
        EXPECT_TRUE(torch::equal(actual, expected.reshape({-1})));
        EXPECT_LE(own.end - own.begin, RowChunkNumel(sizes, ranks));
      }
      EXPECT_EQ(RowChunkNumel(sizes, ranks), RowChunkOf(sizes, ranks, 0).end);
    }
  }
}

TEST(RowChunks, ATensorWithoutDimensionsIsOneRow) {
  EXPECT_EQ(RowChunkOf({}, 3, 0).sizes, std::vector<int64_t>{1});
  EXPECT_EQ(RowChunkOf({}, 3, 0).end, 1);
  EXPECT_EQ(RowChunkOf({}, 3, 1).sizes, std::vector<int64_t>{0});
  EXPECT_EQ(RowChunkOf({}, 3, 2).begin, 1);
  EXPECT_EQ(RowChunkNumel({}, 3), 1);
}

}  // namespace
}  // namespace cohort::trainer
