// PowerSGD gradient compression, after torch's powerSGD_hook.
//
// Source: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization"
// (NeurIPS 2019). A gradient of two or more dimensions is seen as a matrix M [n, m] and sent as two thin ones:
//
//   M + error      P = M Q           all-reduce P    orthogonalise P
//                  Q = M^T P         all-reduce Q    M' = P Q^T,  error = M - M'
//
// n r + m r elements travel instead of n m. Vectors, and matrices that would gain little, travel whole. The error is
// added to the next step's gradient (error feedback). Q starts from the last step's (warm start).
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "cohort/trainer/parallel/replicate/comm_hook.h"

namespace cohort::trainer {

// Names and defaults of torch's PowerSGDState.
struct PowerSGDState {
  int64_t matrix_approximation_rank = 1;
  int64_t start_powerSGD_iter = 1000;  // plain all-reduces before
  double min_compression_rate = 2;     // matrices below it travel whole
  bool use_error_feedback = true;
  bool warm_start = true;
  double orthogonalization_epsilon = 0;  // added to norms that may be zero
  uint64_t random_seed = 0;              // of the first Q, the same on all ranks
};

// One hook serves one DistributedDataParallel.
class PowerSGDHook : public CommHook {
 public:
  explicit PowerSGDHook(PowerSGDState options);
  ~PowerSGDHook() override;
  std::unique_ptr<GradReduction> Start(comm::Communicator& group, const GradBucket& bucket) override;

 private:
  class Reduction;
  struct Memory;  // the state of a bucket from step to step

  PowerSGDState options_;
  int64_t iteration_ = 0;
  AllReduceHook whole_;
  std::map<int, std::unique_ptr<Memory>> memory_;  // by bucket index
};

}  // namespace cohort::trainer
