#include "cohort/trainer/placement/row_chunks.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace cohort::trainer {
namespace {

int64_t RowsOf(const std::vector<int64_t>& sizes) { return sizes.empty() ? 1 : sizes.front(); }

int64_t RowNumel(const std::vector<int64_t>& sizes) {
  const auto others = sizes.begin() + (sizes.empty() ? 0 : 1);
  return std::accumulate(others, sizes.end(), int64_t{1}, std::multiplies<>());
}

int64_t RowsInChunk(const std::vector<int64_t>& sizes, int ranks) { return (RowsOf(sizes) + ranks - 1) / ranks; }

}  // namespace

RowChunk RowChunkOf(const std::vector<int64_t>& sizes, int ranks, int rank) {
  const int64_t rows = RowsOf(sizes), each = RowsInChunk(sizes, ranks);
  const int64_t first = std::min(rank * each, rows), last = std::min(first + each, rows);
  RowChunk chunk = {.sizes = sizes, .begin = first * RowNumel(sizes), .end = last * RowNumel(sizes)};
  chunk.sizes.resize(std::max<size_t>(sizes.size(), 1));
  chunk.sizes.front() = last - first;
  return chunk;
}

int64_t RowChunkNumel(const std::vector<int64_t>& sizes, int ranks) {
  return RowsInChunk(sizes, ranks) * RowNumel(sizes);
}

}  // namespace cohort::trainer
