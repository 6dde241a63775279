// Row chunks: the part of a tensor that each of several ranks has, whole rows of its first dimension, as torch.chunk
// cuts it: n ranks have ceil(rows / n) rows each, but for the last ones, which may have fewer or none.
//
//   [5, 3] on 4 ranks   rows 0 1 | 2 3 | 4 | none
//
// A tensor without dimensions is one row.
#pragma once

#include <cstdint>
#include <vector>

namespace cohort::trainer {

struct RowChunk {
  std::vector<int64_t> sizes;  // of the chunk: its rows, and the tensor's other dimensions
  int64_t begin = 0;           // elements [begin, end) of the whole, row by row
  int64_t end = 0;
};

// Number `rank` of the `ranks` chunks of a tensor of these sizes.
RowChunk RowChunkOf(const std::vector<int64_t>& sizes, int ranks, int rank);

// Elements of the largest chunk, which is the first: those of every chunk where all are padded to equal lengths.
int64_t RowChunkNumel(const std::vector<int64_t>& sizes, int ranks);

}  // namespace cohort::trainer
