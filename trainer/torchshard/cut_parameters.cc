#include "cohort/trainer/torchshard/cut_parameters.h"

#include <utility>

#include "cohort/trainer/parallel/tensor/cut_parameter.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/deferred_init.h"
#include "cohort/trainer/torchshard/distributed.h"
#include "torch/torch.h"

namespace cohort::trainer::torchshard {

at::Tensor register_cut_parameter(torch::nn::Module& module, const std::string& name, std::vector<int64_t> whole,
                                  int64_t cut) {
  const Placement placement =
      CutOver(distributed::get_axis(), std::move(whole), {.dim = static_cast<int>(cut)}, "parameter " + name);
  at::Tensor parameter = module.register_parameter(name, torch::empty(placement.local_sizes()));
  Placements().Add(parameter, placement);
  return parameter;
}

void cut_parameter(at::Tensor parameter, int64_t cut) {
  if (const auto before = Placements().Of(parameter); before != nullptr && !before->whole()) {
    const Placement alike =
        CutOver(distributed::get_axis(), before->sizes(), {.dim = static_cast<int>(cut)}, "a shared parameter");
    TORCH_CHECK(before->Describe() == alike.Describe(),
                "a parameter that layers share is cut already, otherwise: ", before->Describe(), ", not ",
                alike.Describe());
    return;
  }
  CutInPlace(parameter, CutOver(distributed::get_axis(), parameter.sizes().vec(), {.dim = static_cast<int>(cut)},
                                "a parameter of sizes " + c10::str(parameter.sizes())));
}

void check_process_group(const char* who, const at::Tensor& parameter) {
  const auto placement = Placements().Of(parameter);
  if (placement == nullptr) return;
  for (const Axis& axis : placement->axes()) {
    TORCH_CHECK(!distributed::has_ended(axis.group), who,
                ": the parameter was cut over a process group that distributed::destroy_process_group has ended (",
                placement->Describe(), "); use it before that, or make the layer again in the new group");
  }
}

namespace nn::init {

void shard_init_helper_(const InitRule& rule, const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  DrawPart(parameter, *Placements().OrWhole(parameter), rule);
}

}  // namespace nn::init
}  // namespace cohort::trainer::torchshard
