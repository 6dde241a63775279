#include "cohort/trainer/parallel/pipeline/stage_placements.h"

#include <algorithm>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/placement/placement_table.h"
#include "torch/torch.h"

namespace cohort::trainer {

StagePlacements::~StagePlacements() {
  for (const Entered& entered : entered_) {
    if (Placements().Of(entered.parameter) != entered.now) continue;
    if (entered.before == nullptr) {
      Placements().Remove(entered.parameter);
    } else {
      Placements().Add(entered.parameter, *entered.before);
    }
  }
}

void StagePlacements::Enter(const std::vector<PipelineStage>& stages, comm::Communicator& group) {
  const Axis axis{.name = kPipelineAxis, .size = group.size(), .rank = group.rank(), .group = &group};
  for (const PipelineStage& stage : stages) {
    for (const auto& item : stage.module->named_parameters()) {
      Placement placement = *Placements().OrWhole(item.value());
      if (placement.use(kPipelineAxis) == AxisUse::kOwned) continue;
      if (axis.size > 1) ThrowUnlessOk(placement.Owned(axis, axis.rank), "Pipeline: parameter " + item.key());
      placement.set_name(NameInWhole(item.value(), item.key()));
      Set(item.value(), std::move(placement));
    }
  }
}

void StagePlacements::EnterCopy(const at::Tensor& parameter, const std::string& name, int copy, int copies) {
  Placement placement = *Placements().OrWhole(parameter);
  placement.set_copy(copy, copies);
  placement.set_name(name);
  Set(parameter, std::move(placement));
}

void StagePlacements::Set(const at::Tensor& parameter, Placement placement) {
  auto before = Placements().Of(parameter);
  Placements().Add(parameter, std::move(placement));
  auto now = Placements().Of(parameter);
  for (Entered& entered : entered_) {
    if (entered.parameter.is_same(parameter)) {
      entered.now = std::move(now);
      return;
    }
  }
  entered_.push_back({parameter, std::move(before), std::move(now)});
}

std::vector<comm::Communicator*> GroupsOfLayers(const PipelineStage& stage) {
  std::vector<comm::Communicator*> groups;
  for (const at::Tensor& parameter : stage.module->parameters()) {
    const auto placement = Placements().Of(parameter);
    if (placement == nullptr) continue;
    for (const Axis& axis : placement->axes()) {
      if (axis.group == nullptr || placement->use(axis.name) == AxisUse::kReplicated) continue;
      if (std::find(groups.begin(), groups.end(), axis.group) == groups.end()) groups.push_back(axis.group);
    }
  }
  return groups;
}

}  // namespace cohort::trainer
