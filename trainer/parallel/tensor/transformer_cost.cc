#include "cohort/trainer/parallel/tensor/transformer_cost.h"

#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

int64_t OwnChunk(int64_t whole, const TensorAxis& axis) { return ChunkSizes(whole, axis.size())[axis.rank()]; }

}  // namespace

int64_t BlockActivationBytes(const ParallelTransformerBlockOptions& options, const TensorAxis& axis,
                             const ActivationSizes& sizes) {
  const int64_t own_length = axis.sequence_parallel() ? OwnChunk(sizes.length, axis) : sizes.length;
  const int64_t heads = OwnChunk(options.heads(), axis), features = heads * (options.width() / options.heads());
  const int64_t hidden = OwnChunk(options.hidden(), axis);
  const int64_t between = sizes.rows * own_length, within = sizes.rows * sizes.length;
  const int64_t weights = heads * within * sizes.length;
  int64_t elements = 4 * between * (options.width() + 1) + 4 * within * features + 2 * within * hidden + weights;
  if (options.dropout() > 0) elements += 2 * between * options.width();
  if (options.attention_dropout() > 0) elements += 2 * weights;
  const int64_t mask = options.causal() ? sizes.length * sizes.length : 0;
  return elements * sizes.element_bytes + mask;
}

AxisTraffic& AxisTraffic::operator+=(const AxisTraffic& other) {
  all_reduced += other.all_reduced;
  gathered += other.gathered;
  scattered += other.scattered;
  return *this;
}

int64_t AxisTraffic::SentByEach(int ranks) const {
  return (2 * all_reduced + gathered + scattered) * (ranks - 1) / ranks;
}

AxisTraffic BlockTraffic(const ParallelTransformerBlockOptions& options, const TensorAxis& axis,
                         const ActivationSizes& sizes, bool recomputed) {
  if (axis.size() == 1) return {};
  const int64_t activation = sizes.rows * sizes.length * options.width() * sizes.element_bytes;
  const int64_t forward = recomputed ? 2 : 1;
  // Two layers of columns and two of rows. Rows move in forward, columns in backward.
  if (!axis.sequence_parallel()) return {.all_reduced = (2 * forward + 2) * activation};
  return {.all_reduced = 6 * options.width() * sizes.element_bytes,  // gradients of norms and of the rows' biases
          .gathered = (2 * forward + 4) * activation,
          .scattered = (2 * forward + 2) * activation};
}

}  // namespace cohort::trainer
