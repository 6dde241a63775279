// GradientReductions: the way of flat gradients from the units to the averages in the shards' .grad.
//
//   each unit      reduce-scatter over the shards ─ all-reduce over the replicas ─┐
//   over a world   reduce-scatter over all ranks ── all-gather over the replicas ─┤
//   end of backward                                                               ▼  into the shards' .grad
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "cohort/runtime/engine/work.h"
#include "cohort/runtime/ranges.h"
#include "cohort/trainer/parallel/fsdp/fsdp_groups.h"
#include "cohort/trainer/parallel/fsdp/fsdp_unit.h"
#include "cohort/trainer/parallel/fsdp/join_calls.h"
#include "cohort/trainer/parallel/fsdp/unit_order.h"

namespace cohort::trainer {

class GradientReductions {
 public:
  // All arguments outlive this.
  GradientReductions(FsdpGroups& groups, const JoinCalls& calls, const UnitTags& tags, FsdpTraffic& traffic)
      : groups_(groups), calls_(calls), tags_(tags), traffic_(traffic) {}

  // A backward pass begins, which reduces the units in this order.
  void Plan(std::vector<FsdpUnit*> order);
  // Launches the units whose turn it is and that have all gradients. May wait, as Launch.
  void LaunchReady();
  // Launches all that are left: they had parameters without gradients, or waited for units that had.
  void LaunchRest();
  // Reduces the unit's flat gradient. Waits for the reduce-scatter before it, so that two flat gradients exist at a
  // time. Throws DistributedError.
  void Launch(FsdpUnit& unit);
  // Waits for all of them; the shards' .grad are averages afterwards. Throws DistributedError.
  void Finish();

  bool empty() const { return under_way_.empty(); }
  // Waits for what is under way, because it works in memory that is let go of next. Errors are ignored.
  void Await();
  void Drop() { under_way_.clear(); }

 private:
  struct Reduction {
    // Legal transition: kScattering -> kReplicating, when the reduce-scatter has ended.
    enum class Stage { kScattering, kReplicating };
    FsdpUnit* unit = nullptr;
    uint64_t tag = 0;
    at::Tensor flat;     // in, until it has been reduce-scattered
    at::Tensor reduced;  // out
    at::Tensor piece;    // of it, that this rank sums where all ranks do
    runtime::Work work;  // of the stage
    Stage stage = Stage::kScattering;
    std::optional<runtime::Range> shown;  // in traces
  };
  void StartScatter(Reduction& reduction, at::Tensor flat);
  void Replicate(Reduction& reduction);
  int64_t PieceBegin(int64_t shard_numel, int replica) const;

  FsdpGroups& groups_;
  const JoinCalls& calls_;
  const UnitTags& tags_;
  FsdpTraffic& traffic_;
  std::vector<FsdpUnit*> order_;
  size_t next_ = 0;  // in order_
  std::vector<Reduction> under_way_;
};

}  // namespace cohort::trainer
