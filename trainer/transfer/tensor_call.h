// TensorCall: a collective on whole tensors that is under way. Blocks lie along the first dimension. Nothing here has a
// gradient; autograd_collectives.h adds it.
#pragma once

#include <cstdint>
#include <source_location>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

// The sizes that torch.chunk gives `parts` pieces of `whole` elements: ceil(whole / parts) each. The last pieces may be
// shorter or empty (torch leaves empty ones out).
std::vector<int64_t> ChunkSizes(int64_t whole, int parts);

// Holds the call's tensors until the call is done. Movable. One that is destroyed without Wait keeps them elsewhere for
// as long as a device uses them, and blocks on the host.
class [[nodiscard]] TensorCall {
 public:
  TensorCall() = default;
  TensorCall(runtime::Work work, at::Tensor in, at::Tensor out)
      : work_(std::move(work)), in_(std::move(in)), out_(std::move(out)), waits_(true) {}
  TensorCall(TensorCall&& other) noexcept;
  TensorCall& operator=(TensorCall&& other) noexcept;
  ~TensorCall();

  // Returns the output once work queued from now on may use it: on the host when the call is done (this blocks), on a
  // device when the current stream comes after it. Call it once. Throws DistributedError.
  at::Tensor Wait();

 private:
  runtime::Work work_;
  at::Tensor in_, out_;
  bool waits_ = false;
};

// Each starts the call of collectives.h of that name without blocking, on a dense tensor of any strides. `site` is the
// place that errors name. They throw c10::Error for tensors that no collective carries.
//
// Adds `x` up over the ranks, or takes the largest of each element.
TensorCall StartAllReduce(const at::Tensor& x, comm::Communicator& group, comm::ReduceOp op = comm::ReduceOp::kSum,
                          std::source_location site = std::source_location::current());
// Joins the ranks' blocks; rank r has sizes[r] rows.
TensorCall StartAllGather(const at::Tensor& x, comm::Communicator& group, const std::vector<int64_t>& sizes,
                          std::source_location site = std::source_location::current());
// Adds `x` up; this rank gets block rank() of `sizes`.
TensorCall StartReduceScatter(const at::Tensor& x, comm::Communicator& group, const std::vector<int64_t>& sizes,
                              std::source_location site = std::source_location::current());
// Sends block s of `in_sizes` to rank s. Receives out_sizes[s] rows from rank s. Rows may be of any shape.
TensorCall StartAllToAll(const at::Tensor& x, comm::Communicator& group, const std::vector<int64_t>& in_sizes,
                         const std::vector<int64_t>& out_sizes,
                         std::source_location site = std::source_location::current());

}  // namespace cohort::trainer
