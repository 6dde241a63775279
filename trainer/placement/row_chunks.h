// Row chunks: the whole rows of a tensor's first dimension that each of several ranks has, as torch.chunk cuts them.
// Each of n ranks has ceil(rows / n) rows. The last ranks may have fewer or none.
//
//   [5, 3] on 4 ranks   rows 0 1 | 2 3 | 4 | none
//
// A tensor without dimensions counts as one row.
#pragma once

#include <cstdint>
#include <vector>

namespace cohort::trainer {

struct RowChunk {
  std::vector<int64_t> sizes;  // sizes of the chunk: its rows, and the tensor's other dimensions
  int64_t begin = 0;           // elements [begin, end) of the whole, row by row
  int64_t end = 0;
};

// Returns chunk `rank` of the `ranks` chunks of a tensor of these sizes.
RowChunk RowChunkOf(const std::vector<int64_t>& sizes, int ranks, int rank);

// Returns the elements of the largest chunk, which is the first. Every chunk has this length when all are padded to
// equal lengths.
int64_t RowChunkNumel(const std::vector<int64_t>& sizes, int ranks);

}  // namespace cohort::trainer
