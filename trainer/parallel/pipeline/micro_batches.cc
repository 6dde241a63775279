#include "cohort/trainer/parallel/pipeline/micro_batches.h"

#include "torch/torch.h"

namespace cohort::trainer {

std::vector<at::Tensor> SplitMicroBatches(const at::Tensor& batch, int micro_batches, const char* what) {
  TORCH_CHECK(batch.defined() && batch.dim() > 0, "Pipeline: this rank needs the ", what, " of the batch, with rows");
  TORCH_CHECK(batch.size(0) % micro_batches == 0 && batch.size(0) > 0, "Pipeline: ", batch.size(0), " rows of ", what,
              " can't be cut into ", micro_batches,
              " equal micro-batches; leave out the rest (drop_last), or pad it with targets that don't count");
  return batch.split(batch.size(0) / micro_batches);
}

std::vector<double> LossWeights(const std::vector<at::Tensor>& targets, const ValidTargets& valid) {
  std::vector<double> weights;
  double all = 0;
  for (const at::Tensor& target : targets) {
    weights.push_back(static_cast<double>(valid(target)));
    all += weights.back();
  }
  for (double& weight : weights) weight = all > 0 ? weight / all : 0;
  return weights;
}

int64_t CountValidTargets(const at::Tensor& target, int64_t ignore_index) {
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) return target.size(0);
  return target.ne(ignore_index).sum().item<int64_t>();
}

}  // namespace cohort::trainer
