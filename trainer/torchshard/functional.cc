#include "cohort/trainer/torchshard/functional.h"

#include <numeric>
#include <vector>

#include "cohort/trainer/parallel/tensor/linear_functions.h"
#include "cohort/trainer/parallel/tensor/vocab_parallel_embedding.h"
#include "cohort/trainer/torchshard/cut_parameters.h"
#include "cohort/trainer/torchshard/distributed.h"
#include "cohort/trainer/transfer/autograd_collectives.h"
#include "cohort/trainer/transfer/tensor_call.h"
#include "torch/torch.h"

namespace cohort::trainer::torchshard::nn::functional {
namespace {

// Refuses untagged logits that are this rank's part of the classes, as far as they can be told from whole ones.
void CheckWhole(const at::Tensor& logits, const at::Tensor& target, const VocabParallelCrossEntropyOptions& options) {
  if (!distributed::is_initialized() || distributed::get_group_size() == 1 || logits.dim() == 0) return;
  const int64_t here = logits.size(logits.dim() == 1 ? 0 : 1);
  constexpr const char* kRemedy =
      ". The tag of logits that are cut is lost in all operations but views: call register_parallel_dim(logits, -1) "
      "after them, or gather the logits";
  const int64_t all = options.num_classes() != 0   ? options.num_classes()
                      : options.weight().defined() ? options.weight().numel()
                                                   : here;
  TORCH_CHECK(all == here, "parallel_cross_entropy: logits of ", here, " classes without a tag, and there are ", all,
              " classes", kRemedy);
  if (!target.is_cpu() || !at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) return;
  const at::Tensor outside = target.ge(here).logical_and(target.ne(options.ignore_index()));
  if (!outside.any().item<bool>()) return;
  TORCH_CHECK(false, "parallel_cross_entropy: target ", target.masked_select(outside)[0].item<int64_t>(),
              " for logits of ", here, " classes without a tag", kRemedy);
}

}  // namespace

at::Tensor parallel_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, ParallelDim dim) {
  if (!dim.has_value()) return torch::nn::functional::linear(x, weight, bias);
  check_process_group("parallel_linear", weight);
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
  check_process_group("parallel_embedding", weight);
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
  CheckWhole(logits, target, options);
  torch::nn::functional::CrossEntropyFuncOptions plain;
  plain.weight(options.weight()).ignore_index(options.ignore_index()).label_smoothing(options.label_smoothing());
  if (options.reduction() == at::Reduction::None) plain.reduction(torch::kNone);
  if (options.reduction() == at::Reduction::Sum) plain.reduction(torch::kSum);
  return torch::nn::functional::cross_entropy(logits, target, plain);
}

}  // namespace cohort::trainer::torchshard::nn::functional
