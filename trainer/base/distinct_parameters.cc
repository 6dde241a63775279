#include "cohort/trainer/base/distinct_parameters.h"

#include <set>

namespace cohort::trainer {
namespace {

using Seen = std::set<const void*>;

std::vector<at::Tensor> New(const std::vector<at::Tensor>& parameters, Seen& seen) {
  std::vector<at::Tensor> distinct;
  for (const at::Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) distinct.push_back(parameter);
  }
  return distinct;
}

}  // namespace

std::vector<at::Tensor> DistinctParameters(const std::vector<at::Tensor>& parameters) {
  Seen seen;
  return New(parameters, seen);
}

std::vector<torch::optim::OptimizerParamGroup> DistinctParameters(
    std::vector<torch::optim::OptimizerParamGroup> groups) {
  Seen seen;
  for (auto& group : groups) group.params() = New(group.params(), seen);
  return groups;
}

}  // namespace cohort::trainer
