#include "cohort/trainer/parallel/replicate/sparse_average.h"

#include <numeric>

#include "torch/torch.h"

namespace cohort::trainer {

SparseAverage::SparseAverage(comm::Communicator& group, const at::Tensor& parameter, const at::Tensor& gradient,
                             double share)
    : group_(group), sizes_(parameter.sizes().vec()), share_(share) {
  const at::NoGradGuard no_grad;
  const bool dense = gradient.defined() && !gradient.is_sparse();
  if (gradient.defined()) {
    const bool by_rows = !dense && gradient.sparse_dim() == 1;
    const at::Tensor sparse = (by_rows ? gradient : (dense ? gradient : gradient.to_dense()).to_sparse(1)).coalesce();
    rows_ = sparse.indices().select(0, 0).to(at::kLong).contiguous();
    values_ = sparse.values();
  } else {
    std::vector<int64_t> none = sizes_;
    none.front() = 0;
    rows_ = at::empty({0}, parameter.options().requires_grad(false).dtype(at::kLong));
    values_ = at::empty(none, parameter.options().requires_grad(false));
  }
  const at::Tensor facts = at::empty({1, 2}, at::kLong);
  facts.data_ptr<int64_t>()[0] = rows_.size(0);
  facts.data_ptr<int64_t>()[1] = dense ? 1 : 0;
  facts_ = StartAllGather(facts, group_, std::vector<int64_t>(static_cast<size_t>(group_.size()), 1));
}

at::Tensor SparseAverage::Wait() {
  const at::NoGradGuard no_grad;
  const at::Tensor facts = facts_.Wait();
  std::vector<int64_t> counts;
  bool dense = false;
  for (int rank = 0; rank < group_.size(); ++rank) {
    counts.push_back(facts.data_ptr<int64_t>()[2 * rank]);
    dense = dense || facts.data_ptr<int64_t>()[2 * rank + 1] > 0;
  }
  at::Tensor rows = rows_, values = values_;
  if (std::accumulate(counts.begin(), counts.end(), int64_t{0}) > 0) {
    TensorCall rows_call = StartAllGather(rows_, group_, counts), values_call = StartAllGather(values_, group_, counts);
    rows = rows_call.Wait();
    values = values_call.Wait();
  }
  // Rounded once, where the type is small.
  const bool small = values.scalar_type() == at::kHalf || values.scalar_type() == at::kBFloat16;
  const at::Tensor wide = small ? values.to(at::kFloat) : values;
  const at::Tensor sum = at::sparse_coo_tensor(rows.unsqueeze(0), wide * share_, sizes_).coalesce();
  const at::Tensor average = sum.to(values_.scalar_type());
  return dense ? average.to_dense() : average;
}

}  // namespace cohort::trainer
