#include "cohort/trainer/placement/sharded_module.h"

#include <map>

#include "cohort/runtime/base/mutex.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using Modules = std::vector<std::weak_ptr<const torch::nn::Module>>;

runtime::Mutex mutex;

// Both registries live for ever: modules may be static.
std::map<const torch::nn::Module*, ShardedModule*>& InPlace() COHORT_REQUIRES(mutex) {
  static auto* shards = new std::map<const torch::nn::Module*, ShardedModule*>;
  return *shards;
}
std::map<ShardedModule*, Modules>& Units() COHORT_REQUIRES(mutex) {
  static auto* units = new std::map<ShardedModule*, Modules>;
  return *units;
}

}  // namespace

ShardedModule* ShardedModuleOf(torch::nn::Module& module) {
  if (auto* wrapper = dynamic_cast<ShardedModule*>(&module)) return wrapper;
  runtime::MutexLock lock(mutex);
  const auto found = InPlace().find(&module);
  return found == InPlace().end() ? nullptr : found->second;
}

void RegisterShards(const torch::nn::Module& module, ShardedModule* shards) {
  runtime::MutexLock lock(mutex);
  InPlace()[&module] = shards;
}

void ForgetShards(const torch::nn::Module& module) {
  runtime::MutexLock lock(mutex);
  InPlace().erase(&module);
}

void RegisterUnit(ShardedModule& shards, Modules modules) {
  runtime::MutexLock lock(mutex);
  Units()[&shards] = std::move(modules);
}

void ForgetUnit(ShardedModule& shards) {
  runtime::MutexLock lock(mutex);
  Units().erase(&shards);
}

ShardedModule* UnitOf(const torch::nn::Module& module) {
  const std::weak_ptr<const torch::nn::Module> self = module.weak_from_this();
  if (self.expired()) return nullptr;  // nobody shares it
  runtime::MutexLock lock(mutex);
  for (const auto& [unit, modules] : Units()) {
    for (const auto& each : modules) {
      if (!each.owner_before(self) && !self.owner_before(each)) return unit;
    }
  }
  return nullptr;
}

bool IsInUnit(const torch::nn::Module& module) { return UnitOf(module) != nullptr; }

void RefuseShards(const torch::nn::Module& module, const std::string& who, const std::string& instead) {
  const auto refuse = [&](const torch::nn::Module& each, const std::string& name) {
    TORCH_CHECK(ShardedModuleOf(const_cast<torch::nn::Module&>(each)) == nullptr && !IsInUnit(each), who, ": module ",
                name,
                " is sharded: its parameters are FullyShardedDataParallel's, other ones on each rank where there "
                "are several; ",
                instead);
  };
  refuse(module, "itself");
  for (const auto& item : module.named_modules("", /*include_self=*/false)) refuse(*item.value(), item.key());
}

}  // namespace cohort::trainer
