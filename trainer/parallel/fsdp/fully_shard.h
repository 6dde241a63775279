// fully_shard shards modules where they are, after torch.distributed.fsdp.fully_shard. No type, name or member changes.
//
//   struct Block : Shardable<Block> {
//     at::Tensor call(at::Tensor x) { ... }  // what forward() would be; forward() is Shardable's
//   };
//   struct Model : Shardable<Model> {
//     torch::nn::Sequential layers;  // torch's modules and one's own
//     ...
//   };
//   auto model = std::make_shared<Model>();
//   for (auto& layer : *model->layers) fully_shard(layer, *mesh);   // from the inside out
//   FullyShardedModule& shards = fully_shard(*model, *mesh);        // what is left
//   torch::optim::Adam optimizer(model->parameters(), 1e-3);        // steps this rank's shards
//   model->forward(images).pow(2).mean().backward();
//   shards.clip_grad_norm_(1.0);
//
// Everything else is as with FullyShardedDataParallel (fully_sharded_data_parallel.h), and both may be mixed.
//
// C++ has no forward hooks: torch's modules are called directly, by a function that is not virtual. So something
// between caller and module must gather the parameters first:
//
//   a Shardable                 its forward()
//   an element of a Sequential  a stand-in that the Sequential calls; it takes and gives one tensor. Children, names
//   and
//                               parameters of the Sequential stay, but ptr(i) and at<T>(i) find the stand-in
//   a Sequential                stand-ins for its first and last element. An exception of an element between them is
//                               seen only by a sharded module around the Sequential
//
// Other modules are refused by name. One call makes one unit: the parameters of its module that no call before it has.
#pragma once

#include <memory>
#include <utility>

#include "cohort/comm/communicator.h"
#include "cohort/trainer/mesh/device_mesh.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "torch/nn/modules/container/any.h"

namespace cohort::trainer {

// A module that can be sharded where it is.
class ShardableModule : public torch::nn::Module {
 public:
  // The module that fully_shard made; null before it.
  const std::shared_ptr<FullyShardedModule>& shards() const { return shards_; }
  void set_shards(std::shared_ptr<FullyShardedModule> shards) { shards_ = std::move(shards); }
  // Throw c10::Error for shards, as those of FullyShardedModule do.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::shared_ptr<FullyShardedModule> shards_;
};

// Base of modules that can be sharded. `Derived` has a function call() of that signature and gets a forward() of it.
template <typename Derived, typename Signature = at::Tensor(at::Tensor)>
class Shardable;

template <typename Derived, typename Result, typename... Inputs>
class Shardable<Derived, Result(Inputs...)> : public ShardableModule {
 public:
  Result forward(Inputs... inputs) {
    auto& self = static_cast<Derived&>(*this);
    if (shards() == nullptr) return self.call(std::move(inputs)...);
    return shards()->Run([&self](const auto&... given) { return self.call(given...); }, inputs...);
  }
};

// Shards `module`, a Shardable or a Sequential, over the ranks of `group` or over `mesh`. Those outlive it, as does the
// world of the mesh. The result lives with the module. Collective when modules are synchronised; blocks. Throws
// c10::Error for other modules, and for one that is sharded already, by itself or with a module around it. Otherwise
// errors are those of FullyShardedDataParallel.
FullyShardedModule& fully_shard(torch::nn::Module& module, comm::Communicator& group,
                                const FullyShardedDataParallelOptions& options = {});
FullyShardedModule& fully_shard(torch::nn::Module& module, DeviceMesh& mesh,
                                const FullyShardedDataParallelOptions& options = {});
// The same for an element of a Sequential, which may be any module that takes and gives one tensor.
FullyShardedModule& fully_shard(torch::nn::AnyModule& element, comm::Communicator& group,
                                const FullyShardedDataParallelOptions& options = {});
FullyShardedModule& fully_shard(torch::nn::AnyModule& element, DeviceMesh& mesh,
                                const FullyShardedDataParallelOptions& options = {});

}  // namespace cohort::trainer
