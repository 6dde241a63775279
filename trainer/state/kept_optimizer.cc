#include "cohort/trainer/state/kept_optimizer.h"

#include "c10/util/Type.h"
#include "cohort/trainer/placement/partitioned_optimizer.h"
#include "cohort/trainer/state/master_weights.h"
#include "cohort/trainer/state/optimizer_state.h"
#include "cohort/trainer/state/param_groups.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using torch::optim::Optimizer;

// The optimizer that steps, inside of those that wrap it.
Optimizer& Innermost(Optimizer& optimizer) {
  if (auto* zero = dynamic_cast<PartitionedOptimizer*>(&optimizer)) return Innermost(zero->local_optimizer());
  if (auto* masters = dynamic_cast<MasterWeightsBase*>(&optimizer)) return Innermost(masters->master_optimizer());
  return optimizer;
}

template <typename Class>
std::string ClassOf(const Class& object) {
  return c10::demangle(typeid(object).name());
}

}  // namespace

KeptOptimizer* KeptOptimizerOf(Optimizer& optimizer) { return dynamic_cast<KeptOptimizer*>(&Innermost(optimizer)); }

void CheckKept(Optimizer& optimizer, bool of_shards) {
  if (KeptOptimizerOf(optimizer) != nullptr) return;
  const Optimizer& own = Innermost(optimizer);
  if (of_shards) {
    RefuseLbfgs(own, "StateOf",
                "and these are shards: its steps would differ from those of one process; train under "
                "DistributedDataParallel, with a closure that returns the mean of the ranks' losses");
  }
  TORCH_CHECK(
      dynamic_cast<const torch::optim::LBFGS*>(&own) == nullptr,
      "StateOf: checkpoints keep no state of LBFGS, whose history is of all parameters together; keep the model "
      "with another optimizer, such as SGD(module.parameters(), 0.1), and begin LBFGS from its start when it is "
      "loaded");
  constexpr const char* kRemedy =
      "; derive the optimizer from KeptOptimizer too, which says what to keep (trainer/state/kept_optimizer.h)";
  TORCH_CHECK(HasKnownState(own), "StateOf: checkpoints can't keep the state of optimizer ", ClassOf(own),
              ", only of SGD, Adam, AdamW, Adagrad, RMSprop and classes derived from them", kRemedy);
  for (auto& group : optimizer.param_groups()) {
    TORCH_CHECK(HasKnownOptions(group.options()), "StateOf: checkpoints can't keep the options ",
                ClassOf(group.options()), " of a param group, only those of SGD, Adam, AdamW, Adagrad and RMSprop",
                kRemedy);
  }
}

void RefuseLbfgs(const Optimizer& optimizer, const std::string& who, const std::string& why) {
  TORCH_CHECK(dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr, who,
              ": LBFGS needs all parameters together, ", why);
}

}  // namespace cohort::trainer
