// DeferredInit: makes modules without memory for their parameters, as Python does on the meta device.
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
// so a model that no rank has room for can be made and sharded. In 1.13 C++ has no default device, and a tensor on the
// meta device can't become one on the CPU under the module's own name for it; so these are tensors on the CPU whose
// storage has its size but no bytes. Calls of torch by the thread are looked at, while the guard lives:
//
//   a tensor of 64 KiB or more is made       it gets no memory; smaller ones, most buffers among them, are ordinary
//   such a tensor is filled (uniform_, ...)  nothing happens
//   something is computed from it            a tensor of the right shape without memory
//   its values are needed                    c10::Error that names the operation
//
// Nothing may be computed with such tensors after the guard has gone, before they are sharded or materialised: that is
// an access to no memory. What is sharded or materialised without values is NaN until it is initialised.
#pragma once

#include "ATen/core/Tensor.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "torch/nn/module.h"

namespace cohort::trainer {

// For the calling thread, while it lives.
class [[nodiscard]] DeferredInit {
 public:
  DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

// False for what was made without memory. Also for what FullyShardedDataParallel holds no memory for at the time.
bool HasData(const at::Tensor& tensor);

// NaN where the type has it, else zeros.
at::Tensor WithoutValues(at::IntArrayRef sizes, const at::TensorOptions& options);

// Memory for all parameters and buffers of `module` that have none: for modules that are not sharded.
void materialize(torch::nn::Module& module);

}  // namespace cohort::trainer
