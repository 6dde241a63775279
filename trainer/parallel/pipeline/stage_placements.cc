#include "cohort/trainer/parallel/pipeline/stage_placements.h"

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
  if (group.size() == 1) return;
  const Axis axis{.name = kPipelineAxis, .size = group.size(), .rank = group.rank(), .group = &group};
  for (const PipelineStage& stage : stages) {
    for (const auto& item : stage.module->named_parameters()) {
      auto before = Placements().Of(item.value());
      Placement placement = *Placements().OrWhole(item.value());
      if (placement.use(kPipelineAxis) == AxisUse::kOwned) continue;
      ThrowUnlessOk(placement.Owned(axis, group.rank()), "Pipeline: parameter " + item.key());
      placement.set_name(NameInWhole(item.value(), item.key()));
      Placements().Add(item.value(), std::move(placement));
      entered_.push_back({item.value(), std::move(before), Placements().Of(item.value())});
    }
  }
}

}  // namespace cohort::trainer
