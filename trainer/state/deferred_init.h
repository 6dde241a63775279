// DeferredInit makes modules without memory for their parameters, as Python does on the meta device.
//
//   std::shared_ptr<Model> model;
//   {
//     const DeferredInit deferred;
//     model = std::make_shared<Model>();             // any libtorch module: sizes, no values
//   }
//   for (auto& layer : *model->layers) fully_shard(layer, *mesh);
//   fully_shard(*model, *mesh);                      // memory for this rank's shards (options.device_id: where)
//   init_parameters(*model, seed, LikeTorch);        // sharded_init.h: values
//
// A model that no rank has room for can thus be made and sharded. In 1.13 C++ has no default device, and a tensor on
// the meta device cannot become one on the CPU under the module's own name. The tensors here are therefore on the CPU,
// and their storage has its size but no bytes. While the guard lives, it looks at the thread's calls of torch:
//
//   a tensor of 64 KiB or more is made       it gets no memory; smaller ones, most buffers among them, are ordinary
//   such a tensor is filled (uniform_, ...)  nothing happens
//   something is computed from it            a tensor of the right shape without memory
//   its values are needed                    c10::Error that names the operation
//
// After the guard has gone, nothing may be computed with such tensors before they are sharded or materialised: that
// would access no memory. Tensors that are sharded or materialised without values are NaN until they are initialised.
#pragma once

#include "ATen/core/Tensor.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

// Applies to the calling thread while it lives.
class [[nodiscard]] DeferredInit {
 public:
  DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

// False for tensors made without memory. Also false while FullyShardedDataParallel holds no memory for a tensor.
bool HasData(const at::Tensor& tensor);

// Returns a tensor filled with NaN if the type has it, otherwise with zeros.
at::Tensor WithoutValues(at::IntArrayRef sizes, const at::TensorOptions& options);

// Gives memory to all parameters and buffers of `module` that have none. It is for modules that are not sharded.
void materialize(torch::nn::Module& module);

}  // namespace cohort::trainer
