// Reductions that NCCL does not compute (16-bit integers, bit operations, a fixed order, ...), on the device: the ranks
// exchange their operands by NCCL's sends and receives, and each folds its part with a kernel of ours.
//
//   all-reduce, 4 ranks       part 0    part 1    part 2    part 3
//   1. spread     rank 1 gets    -      0 2 3        -         -      of every other rank its part 1
//   2. fold       rank 1 has     -     0+1+2+3       -         -      in the order of ranks, rounded once
//   3. collect    rank 1 gets  from 0              from 2    from 3
//
// Reduce-scatter ends after step 2; reduce spreads everything to its root. All-reduce moves 2 (n-1)/n of the input each
// way, as a ring does, in two launches and a kernel. All of it is put on the call's stream; nothing waits.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/cuda/reduction_kernels.h"
#include "cohort/comm/nccl/nccl_calls.h"
#include "cohort/comm/request.h"

namespace cohort::comm::nccl {

// One call. Its steps are put on target.stream in order: Begin, Spread, Fold, Collect where Collects(), End. What
// Spread and Collect return is to be waited for (Enqueue says how) before the next step. Not freed but by End.
class NcclExchange {
 public:
  // The kernels are those of the current device; all outlive the steps.
  NcclExchange(const CallTarget& target, cuda::ReductionKernels* kernels, const CollectiveRequest* request);
  NcclExchange(const NcclExchange&) = delete;
  NcclExchange& operator=(const NcclExchange&) = delete;

  absl::Status Begin();
  absl::StatusOr<ncclResult_t> Spread();
  absl::Status Fold();
  bool Collects() const { return request_.kind == CollectiveKind::kAllReduce; }
  absl::StatusOr<ncclResult_t> Collect();
  absl::Status End();
  // Instead of End where something went wrong: what NCCL may use until it is stopped; null: nothing.
  void* TakeMemory() { return std::exchange(memory_, nullptr); }

 private:
  struct Part {
    int64_t begin = 0;
    int64_t count = 0;
  };
  // The part that `rank` reduces, in elements of the input.
  Part PartOf(int rank) const;
  int64_t InputElements() const;
  // The place of this rank's result.
  std::byte* Result() const;

  const CallTarget target_;
  cuda::ReductionKernels& kernels_;
  const CollectiveRequest& request_;
  const bool scaled_;       // by the ranks' factors, into the type that is computed in
  const DataType carried_;  // what travels
  const int64_t element_;   // bytes of a carried element
  const std::byte* source_ = nullptr;
  std::byte* memory_ = nullptr;  // operands, then the scaled input, then the sum of it
  std::byte* folded_ = nullptr;  // null: the result's place
  int64_t stride_ = 0;           // bytes from operand to operand
};

}  // namespace cohort::comm::nccl
