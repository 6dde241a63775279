#include "cohort/trainer/parallel/fsdp/fsdp_parameter.h"

#include <utility>

#include "cohort/trainer/transfer/same_on_all_ranks.h"

namespace cohort::trainer {

std::string Describe(const FsdpParameter& parameter, const std::vector<int64_t>& sizes) {
  return DescribeTensor(parameter.name, parameter.tensor.scalar_type(), sizes) +
         (parameter.tensor.requires_grad() ? "" : " (frozen)");
}

at::Tensor LocalView(const at::Tensor& shard, const FsdpParameter& parameter) {
  const auto& [sizes, begin, end] = parameter.own;
  auto part = shard.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                   /*allow_tensor_metadata_change=*/true);
  part->set_autograd_meta(nullptr);
  // An empty part may lie outside of the shard, where an offset would be refused.
  if (end > begin) part->set_storage_offset(shard.storage_offset() + parameter.offset);
  part->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(part));
}

}  // namespace cohort::trainer
