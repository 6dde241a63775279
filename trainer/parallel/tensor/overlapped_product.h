// Products of matrices beside the collectives that bring their inputs or take their results. Rows lie along the first
// dimension. With several chunks, a chunk's collective moves while another's product is computed:
//
//   gather, then multiply     gather 0 │ gather 1  │ gather 2  │
//                                      │ product 0 │ product 1 │ product 2
//   multiply, then reduce    product 0 │ product 1 │ product 2 │
//                                      │ reduce 0  │ reduce 1  │ reduce 2
//
// Nothing here has a gradient: linear_functions.h adds it. After Wang et al., "Overlap Communication with Dependent
// Computation via Decomposition" (ASPLOS 2023).
#pragma once

#include <cstdint>
#include <functional>
#include <source_location>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/transfer/tensor_call.h"

namespace cohort::trainer {

// [rows, ..., in] -> [rows, ..., out].
using Product = std::function<at::Tensor(const at::Tensor&)>;

// The ranks, the chunks, and the rows of each rank where rows are split.
struct ProductPlan {
  comm::Communicator& group;
  int chunks = 1;
  std::vector<int64_t> rows;
  std::source_location site;
};

struct GatheredProduct {
  at::Tensor gathered;  // the rows of all ranks
  at::Tensor product;   // of these
};
// Gathers the ranks' rows and multiplies them. Blocks. Throws DistributedError.
GatheredProduct MultiplyGathered(const at::Tensor& x, const Product& product, const ProductPlan& plan);

// Results that are being summed over the ranks.
class [[nodiscard]] SumUnderWay {
 public:
  explicit SumUnderWay(std::vector<TensorCall> calls) : calls_(std::move(calls)) {}
  // Blocks as TensorCall::Wait does. Call it once. Throws DistributedError.
  at::Tensor Wait();

 private:
  std::vector<TensorCall> calls_;
};
// Multiply and start to add the results up. All ranks get the whole sum, or each its own rows of it.
SumUnderWay StartAllReduced(const at::Tensor& x, const Product& product, const ProductPlan& plan);
SumUnderWay StartReduceScattered(const at::Tensor& x, const Product& product, const ProductPlan& plan);

}  // namespace cohort::trainer
