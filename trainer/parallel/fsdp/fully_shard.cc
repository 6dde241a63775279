#include "cohort/trainer/parallel/fsdp/fully_shard.h"

#include <optional>

#include "torch/torch.h"

namespace cohort::trainer {
namespace {

FsdpRanks RanksOf(comm::Communicator& group) { return {group, &group, nullptr}; }

class ShardsInPlace final : public FullyShardedModule {
 public:
  ShardsInPlace(torch::nn::Module& module, const FsdpRanks& ranks, const FullyShardedDataParallelOptions& options)
      : FullyShardedModule(module, ranks, options), module_(&module) {
    RegisterShards(module, this);
  }
  ~ShardsInPlace() override { ForgetShards(*module_); }

 private:
  const torch::nn::Module* module_;
};

// Stands for an element of a Sequential, which calls it instead. It is not among the Sequential's children.
class ShardedElement final : public torch::nn::Module {
 public:
  explicit ShardedElement(torch::nn::AnyModule element) : element_(std::move(element)) {}

  at::Tensor forward(at::Tensor input) {
    // Only a module around the Sequential sees an exception of an element between the first and the last.
    std::optional<ForwardGuard> guard;
    if (first_of != nullptr) {
      first_of->PreForward();
      guard.emplace(*first_of);
      input = first_of->CastInput(input);
    } else if (last_of != nullptr) {
      guard.emplace(*last_of);
    }
    const auto call = [this](const at::Tensor& given) { return element_.forward(given); };
    at::Tensor output = shards != nullptr ? shards->Run(call, input) : call(input);
    if (last_of != nullptr) last_of->PostForward({output});
    if (guard.has_value()) guard->Dismiss();
    if (last_of == nullptr) return output;
    return last_of->CastOutput(output);
  }

  std::shared_ptr<FullyShardedModule> shards;             // of the element
  std::shared_ptr<FullyShardedModule> first_of, last_of;  // of the Sequential, where the element begins or ends it

 private:
  torch::nn::AnyModule element_;
};

// The stand-in of `element`, made if there is none yet.
ShardedElement& StandIn(torch::nn::AnyModule& element) {
  if (auto* there = dynamic_cast<ShardedElement*>(element.ptr().get())) return *there;
  auto made = std::make_shared<ShardedElement>(element);
  element = torch::nn::AnyModule(made);
  return *made;
}

std::shared_ptr<FullyShardedModule> Shard(torch::nn::Module& module, const FsdpRanks& ranks,
                                          const FullyShardedDataParallelOptions& options) {
  TORCH_CHECK(ShardsOf(module) == nullptr, "fully_shard: module ", module.name(), " is sharded already");
  return std::make_shared<ShardsInPlace>(module, ranks, options);
}

FullyShardedModule& ShardModule(torch::nn::Module& module, const FsdpRanks& ranks,
                                const FullyShardedDataParallelOptions& options) {
  if (auto* shardable = dynamic_cast<ShardableModule*>(&module)) {
    shardable->set_shards(Shard(module, ranks, options));
    return *shardable->shards();
  }
  auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  TORCH_CHECK(sequential != nullptr, "fully_shard: module ", module.name(),
              " can't be sharded where it is, because its forward() is called directly: derive it from Shardable, put "
              "it into a Sequential, or wrap it by FullyShardedDataParallel");
  TORCH_CHECK(!sequential->is_empty(), "fully_shard: a Sequential without elements");
  const std::shared_ptr<FullyShardedModule> shards = Shard(module, ranks, options);
  StandIn(*sequential->begin()).first_of = shards;
  StandIn(*(sequential->end() - 1)).last_of = shards;
  return *shards;
}

FullyShardedModule& ShardElement(torch::nn::AnyModule& element, const FsdpRanks& ranks,
                                 const FullyShardedDataParallelOptions& options) {
  TORCH_CHECK(!element.is_empty(), "fully_shard: an empty AnyModule");
  const std::shared_ptr<torch::nn::Module> module = element.ptr();
  const auto* stand_in = dynamic_cast<const ShardedElement*>(module.get());
  TORCH_CHECK(stand_in == nullptr, "fully_shard: an element that is sharded already, or whose Sequential is");
  if (dynamic_cast<ShardableModule*>(module.get()) != nullptr) return ShardModule(*module, ranks, options);
  const std::shared_ptr<FullyShardedModule> shards = Shard(*module, ranks, options);
  StandIn(element).shards = shards;
  return *shards;
}

}  // namespace

void ShardableModule::save(torch::serialize::OutputArchive& archive) const {
  if (shards_ != nullptr) shards_->RefuseShards("torch::save");
  Module::save(archive);
}

void ShardableModule::load(torch::serialize::InputArchive& archive) {
  if (shards_ != nullptr) shards_->RefuseShards("torch::load");
  Module::load(archive);
}

FullyShardedModule* ShardsOf(torch::nn::Module& module) {
  return dynamic_cast<FullyShardedModule*>(ShardedModuleOf(module));
}

FullyShardedModule& fully_shard(torch::nn::Module& module, comm::Communicator& group,
                                const FullyShardedDataParallelOptions& options) {
  return ShardModule(module, RanksOf(group), options);
}
FullyShardedModule& fully_shard(torch::nn::Module& module, DeviceMesh& mesh,
                                const FullyShardedDataParallelOptions& options) {
  return ShardModule(module, FsdpRanksOf(mesh), options);
}
FullyShardedModule& fully_shard(torch::nn::AnyModule& element, comm::Communicator& group,
                                const FullyShardedDataParallelOptions& options) {
  return ShardElement(element, RanksOf(group), options);
}
FullyShardedModule& fully_shard(torch::nn::AnyModule& element, DeviceMesh& mesh,
                                const FullyShardedDataParallelOptions& options) {
  return ShardElement(element, FsdpRanksOf(mesh), options);
}

}  // namespace cohort::trainer
