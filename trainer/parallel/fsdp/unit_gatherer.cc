#include "cohort/trainer/parallel/fsdp/unit_gatherer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cohort/trainer/parallel/fsdp/flat_parameters.h"
#include "cohort/trainer/parallel/fsdp/unit_gradients.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "cohort/trainer/transfer/window_pool.h"

namespace cohort::trainer {
namespace {

// Names what differs where ranks have made different models; their calls would differ in lengths only.
void CheckSameUnits(comm::Communicator& group, const std::vector<std::shared_ptr<FsdpUnit>>& units) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < units.size(); ++i) {
    const std::string unit = "unit " + std::to_string(i) + ", ";
    if (units[i]->parameters().empty()) lines.push_back(unit + "without parameters");
    for (const FsdpParameter& parameter : units[i]->parameters()) {
      lines.push_back(unit + Describe(parameter, parameter.sizes));
    }
  }
  CheckSameOnAllRanks(group, "FullyShardedDataParallel", lines);
}

}  // namespace

void UnitGatherer::Start(FsdpUnit& unit) {
  FlatParameters& weights = unit.weights();
  if (weights.state() != FlatParameters::State::kSharded) return;
  const bool kept = weights.kept_numel() > 0;
  if (weights.gathers()) {
    calls_.Tell(kept ? JoinCalls::Step::kGatherKept : JoinCalls::Step::kGather, unit);
    EnterWindows();
  }
  weights.Start(groups_.gather(), kept ? &groups_.neighbours(unit.backward_ranks()) : nullptr, pool_,
                tags_.OfGathering(unit));
  if (!weights.gathers()) return;
  ++traffic_.gathers;
  traffic_.gathered_bytes += weights.gathered_bytes();
}

void UnitGatherer::ReshardAll() {
  for (const auto& unit : units_) unit->Reshard(pool_);
}

// Called before the first gathering, which all ranks of the shard group do. The windows have room for the units that
// are trainable then, because frozen units may be most of a model. The gradients of units that are thawed later lie in
// ordinary memory where they do not fit.
void UnitGatherer::EnterWindows() {
  if (std::exchange(in_windows_, true)) return;
  CheckSameUnits(groups_.gather(), units_);
  size_t bytes = 0;
  int64_t trainable = 0;
  for (const auto& unit : units_) {
    if (!unit->gradients().trainable()) continue;
    bytes = std::max(bytes, unit->gradients().flat().host_bytes());
    ++trainable;
  }
  // Two flat gradients exist at a time, see GradientReductions::Launch.
  const auto pool =
      std::make_shared<WindowPool>(groups_.reduce(), bytes, static_cast<int>(std::min<int64_t>(2, trainable)));
  for (const auto& unit : units_) unit->EnterWindows(groups_.gather(), pool);
}

}  // namespace cohort::trainer
