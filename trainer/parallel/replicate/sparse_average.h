// SparseAverage: the average over ranks of one parameter's sparse gradients, as embeddings make them. Ranks send the
// rows that they have: first their numbers, then the rows.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"
#include "cohort/trainer/transfer/tensor_call.h"

namespace cohort::trainer {

class SparseAverage {
 public:
  // Starts. `gradient` is this rank's, of any layout, or undefined where it has none. Sums are multiplied by `share`.
  // The same on all ranks, in the order of their other calls. Throws c10::Error.
  SparseAverage(comm::Communicator& group, const at::Tensor& parameter, const at::Tensor& gradient, double share);
  // Returns the average: a coalesced sparse tensor, or a dense one where a rank's gradient is dense. Starts further
  // calls, so that all ranks wait for averages in one order. Blocks. Called once. Throws DistributedError.
  at::Tensor Wait();

 private:
  comm::Communicator& group_;
  const std::vector<int64_t> sizes_;  // of the parameter
  const double share_;
  at::Tensor rows_, values_;  // this rank's: numbers of rows, and what they hold
  TensorCall facts_;          // by rank: its rows, and whether its gradient is dense
};

}  // namespace cohort::trainer
