#include "cohort/trainer/torchshard/functional.h"

#include <numeric>
#include <vector>

#include "cohort/trainer/parallel/tensor/linear_functions.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_embedding.h"
#include "cohort/trainer/torchshard/distributed.h"
#include "cohort/trainer/transfer/autograd_collectives.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/torch.h"

namespace cohort::trainer::torchshard::nn::functional {

at::Tensor parallel_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, ParallelDim dim) {
  if (!dim.has_value()) return torch::nn::functional::linear(x, weight, bias);
  if (*dim != 0) {
    const at::Tensor y = column_parallel_linear(x, weight, bias, distributed::get_axis());
    register_parallel_dim(y, -1);
    return y;
  }
  const bool cut = get_parallel_dim(x) == ParallelDim(-1);
  const at::Tensor y = row_parallel_linear(cut ? x : distributed::scatter(x, -1), weight, distributed::get_axis());
  return bias.defined() ? y + bias : y;
}

at::Tensor parallel_embedding(const at::Tensor& tokens, const at::Tensor& weight, ParallelDim dim,
                              int64_t num_embeddings, int64_t embedding_dim, std::optional<int64_t> padding_idx) {
  if (!dim.has_value()) return torch::embedding(weight, tokens, padding_idx.value_or(-1));
  if (*dim != 0) {
    const at::Tensor own = torch::embedding(weight, tokens, padding_idx.value_or(-1));
    return gather_from_region(own, distributed::get_group(), -1, embedding_dim);
  }
  const std::vector<int64_t> rows = ChunkSizes(num_embeddings, distributed::get_group_size());
  const int64_t first = std::accumulate(rows.begin(), rows.begin() + distributed::get_rank(), int64_t{0});
  return distributed::reduce(OwnEmbeddings(tokens, weight, first, padding_idx));
}

at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                  const VocabParallelCrossEntropyOptions& options) {
  if (get_parallel_dim(logits) == ParallelDim(-1)) {
    return vocab_parallel_cross_entropy(logits, target, distributed::get_axis(), options);
  }
  torch::nn::functional::CrossEntropyFuncOptions plain;
  plain.weight(options.weight()).ignore_index(options.ignore_index()).label_smoothing(options.label_smoothing());
  if (options.reduction() == at::Reduction::None) plain.reduction(torch::kNone);
  if (options.reduction() == at::Reduction::Sum) plain.reduction(torch::kSum);
  return torch::nn::functional::cross_entropy(logits, target, plain);
}

}  // namespace cohort::trainer::torchshard::nn::functional
