#include "cohort/trainer/parallel/tensor/overlapped_product.h"

#include <numeric>
#include <utility>

#include "ATen/ATen.h"

namespace cohort::trainer {
namespace {

// One chunk: of each rank's rows, those from begin[r] on, counted in the whole, and their number.
struct Chunk {
  std::vector<int64_t> begin, rows;
};

std::vector<Chunk> ChunksOf(const ProductPlan& plan) {
  std::vector<Chunk> chunks(plan.chunks);
  int64_t place = 0;
  for (const int64_t rows : plan.rows) {
    for (int i = 0; const int64_t size : ChunkSizes(rows, plan.chunks)) {
      chunks[i].begin.push_back(place);
      chunks[i].rows.push_back(size);
      place += size;
      ++i;
    }
  }
  return chunks;
}

at::Tensor WithRows(const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes.front() = rows;
  return at::empty(sizes, like.options());
}

// Copies the blocks of `piece`, one a rank, to their places in the whole.
void CopyToPlaces(const at::Tensor& piece, const Chunk& chunk, at::Tensor& whole) {
  int64_t from = 0;
  for (size_t rank = 0; rank < chunk.rows.size(); ++rank) {
    whole.narrow(0, chunk.begin[rank], chunk.rows[rank]).copy_(piece.narrow(0, from, chunk.rows[rank]));
    from += chunk.rows[rank];
  }
}

at::Tensor FromPlaces(const at::Tensor& whole, const Chunk& chunk) {
  std::vector<at::Tensor> blocks;
  for (size_t rank = 0; rank < chunk.rows.size(); ++rank) {
    blocks.push_back(whole.narrow(0, chunk.begin[rank], chunk.rows[rank]));
  }
  return at::cat(blocks);
}

}  // namespace

GatheredProduct MultiplyGathered(const at::Tensor& x, const Product& product, const ProductPlan& plan) {
  if (plan.chunks == 1) {
    const at::Tensor whole = StartAllGather(x, plan.group, plan.rows, plan.site).Wait();
    return {whole, product(whole)};
  }
  const std::vector<Chunk> chunks = ChunksOf(plan);
  const int rank = plan.group.rank();
  std::vector<TensorCall> calls;
  const int64_t first = chunks.front().begin[rank];
  for (const Chunk& chunk : chunks) {
    calls.push_back(
        StartAllGather(x.narrow(0, chunk.begin[rank] - first, chunk.rows[rank]), plan.group, chunk.rows, plan.site));
  }
  const int64_t rows = std::accumulate(plan.rows.begin(), plan.rows.end(), int64_t{0});
  GatheredProduct result = {WithRows(x, rows), at::Tensor()};
  for (size_t i = 0; i < chunks.size(); ++i) {
    const at::Tensor piece = calls[i].Wait();
    const at::Tensor multiplied = product(piece);
    if (i == 0) result.product = WithRows(multiplied, rows);
    CopyToPlaces(piece, chunks[i], result.gathered);
    CopyToPlaces(multiplied, chunks[i], result.product);
  }
  return result;
}

at::Tensor SumUnderWay::Wait() {
  if (calls_.size() == 1) return calls_.front().Wait();
  std::vector<at::Tensor> pieces;
  for (TensorCall& call : calls_) pieces.push_back(call.Wait());
  return at::cat(pieces);
}

SumUnderWay StartAllReduced(const at::Tensor& x, const Product& product, const ProductPlan& plan) {
  std::vector<TensorCall> calls;
  int64_t begin = 0;
  for (const int64_t rows : ChunkSizes(x.size(0), plan.chunks)) {
    calls.push_back(StartAllReduce(product(x.narrow(0, begin, rows)), plan.group, comm::ReduceOp::kSum, plan.site));
    begin += rows;
  }
  return SumUnderWay(std::move(calls));
}

SumUnderWay StartReduceScattered(const at::Tensor& x, const Product& product, const ProductPlan& plan) {
  std::vector<TensorCall> calls;
  if (plan.chunks == 1) {
    calls.push_back(StartReduceScatter(product(x), plan.group, plan.rows, plan.site));
    return SumUnderWay(std::move(calls));
  }
  for (const Chunk& chunk : ChunksOf(plan)) {
    calls.push_back(StartReduceScatter(product(FromPlaces(x, chunk)), plan.group, chunk.rows, plan.site));
  }
  return SumUnderWay(std::move(calls));
}

}  // namespace cohort::trainer
