// Dropout whose masks do not depend on how the model is cut. Whether an element is kept is a function of (seed, step,
// micro-batch, layer, place of the element in the whole activation). Hence one process, any mesh and a recomputation
// drop the same elements, and no two ranks need to agree on a generator. random_place.h sets seed, step and rows.
//
// Random numbers: Philox4x32-10, as initial values (sharded_init.h).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"
#include "torch/arg.h"
#include "torch/nn/module.h"
#include "torch/nn/pimpl.h"
#include "torch/types.h"

namespace cohort::trainer {

// Returns the factor of each element of an activation of `sizes`: 0 where it is dropped, otherwise 1 / (1 - p). Local.
// `layer` must differ between layers. Throws c10::Error for p outside of [0, 1], and on a thread whose random_place()
// has no step.
at::Tensor DropoutFactors(at::IntArrayRef sizes, double p, uint64_t layer, const ActivationPart& part,
                          const at::TensorOptions& options);
// The same bits by tensor operations alone, which is how a device gets its masks; slower on the CPU. Enqueues about 150
// operations and takes memory of eight int64 tensors of `sizes` meanwhile. Throws as DropoutFactors.
at::Tensor DropoutFactorsByTensors(at::IntArrayRef sizes, double p, uint64_t layer, const ActivationPart& part,
                                   const at::TensorOptions& options);

struct ParallelDropoutOptions {
  ParallelDropoutOptions(double p = 0.5) : p_(p) {}  // NOLINT: as torch's
  TORCH_ARG(double, p);
  TORCH_ARG(uint64_t, layer) = 0;  // different for each layer of a model, the same on all ranks
  TORCH_ARG(int64_t, batch_dim) = 0;
};

class ParallelDropoutImpl : public torch::nn::Module {
 public:
  explicit ParallelDropoutImpl(ParallelDropoutOptions options = {}, TensorAxis axis = TensorAxis())
      : options(options), axis(std::move(axis)) {}
  // Drops elements in training. Under sequence parallelism the input is this rank's part of the sequence; otherwise it
  // is whole. Local. Throws as DropoutFactors.
  at::Tensor forward(const at::Tensor& x);
  // The same for an input that is cut otherwise: attention weights whose heads are cut.
  at::Tensor forward_part(const at::Tensor& x, const ActivationPart& part);

  ParallelDropoutOptions options;
  TensorAxis axis;
};
TORCH_MODULE(ParallelDropout);

}  // namespace cohort::trainer
