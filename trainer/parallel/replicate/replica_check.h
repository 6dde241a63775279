// ReplicaCheck compares the parameters and buffers of a model's replicas, by hashes.
//
//   each rank   hash of every tensor ─ one hash of all ─ all-gather of 8 B  ─ equal: nothing more
//                                                                           └ not: all-gather of every tensor's hash
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// One thread at a time, as its group. Costs nothing where `every` is 0.
class ReplicaCheck {
 public:
  // `every`: the steps from one comparison to the next; 0: none is made.
  explicit ReplicaCheck(int64_t every) : every_(every) {}

  // A step begins, here and on the other ranks. True if the replicas are to be compared in it.
  bool BeginStep() {
    ++step_;
    return every_ > 0 && step_ % every_ == 0;
  }
  // Compares the bits of `tensors`, which all ranks of `group` pass alike. Collective; blocks, and copies what lies on
  // a device. If they differ, every rank throws DistributedError (kDataLoss). It names the first tensor that differs,
  // the step, the group, and the ranks that differ from the value of more than half. Without such a value, as with two
  // replicas, it says so.
  void Compare(comm::Communicator& group, const std::vector<NamedTensor>& tensors) const;

 private:
  const int64_t every_;
  int64_t step_ = 0;
};

}  // namespace cohort::trainer
