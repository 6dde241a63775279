#include "cohort/trainer/parallel/tensor/tensor_axis.h"

#include <utility>

#include "cohort/trainer/transfer/autograd_collectives.h"
#include "cohort/trainer/transfer/tensor_call.h"

namespace cohort::trainer {
namespace {

Axis AxisOf(comm::Communicator& group) {
  return {.name = kTensorAxis, .size = group.size(), .rank = group.rank(), .group = &group};
}

}  // namespace

TensorAxis::TensorAxis() : TensorAxis(Axis{.name = kTensorAxis}) {}

TensorAxis::TensorAxis(Axis axis, TensorAxisOptions options)
    : axis_(std::move(axis)), options_(options), sequence_length_(std::make_shared<int64_t>(0)) {
  TORCH_CHECK(axis_.group == nullptr || (axis_.group->size() == axis_.size && axis_.group->rank() == axis_.rank),
              "TensorAxis: axis '", axis_.name, "' has ", axis_.size, " ranks, and its communicator is of others");
  TORCH_CHECK(options_.chunks >= 1, "TensorAxis: chunks must be at least 1, got ", options_.chunks);
  TORCH_CHECK(options_.sequence_dim >= 0, "TensorAxis: sequence_dim must not be negative, got ", options_.sequence_dim);
}

TensorAxis::TensorAxis(comm::Communicator& group, TensorAxisOptions options) : TensorAxis(AxisOf(group), options) {}

int64_t TensorAxis::sequence_length(int64_t part) const {
  const int64_t length = *sequence_length_ == 0 ? part * size() : *sequence_length_;
  const int64_t own = ChunkSizes(length, size())[rank()];
  TORCH_CHECK(own == part, "sequence parallelism: rank ", rank(), " of ", size(), " has ", part,
              " places of the sequence, and its part of ", length, " is ", own,
              "; TensorAxis::set_sequence_length says how long the whole is");
  return length;
}

ActivationPart TensorAxis::SequencePart(const at::Tensor& x, int64_t batch_dim) const {
  ActivationPart part = {.batch_dim = batch_dim};
  if (!sequence_parallel()) return part;
  part.cut_dim = options_.sequence_dim;
  part.whole = sequence_length(x.size(part.cut_dim));
  const std::vector<int64_t> sizes = ChunkSizes(part.whole, size());
  for (int before = 0; before < rank(); ++before) part.begin += sizes[before];
  return part;
}

at::Tensor TensorAxis::SharedParameter(const at::Tensor& parameter) const {
  return sequence_parallel() && size() > 1 ? copy_to_region(parameter, group()) : parameter;
}

}  // namespace cohort::trainer
