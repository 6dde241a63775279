// The plans of one group, built when first needed and kept, the least recently used given up first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/plan/placement.h"
#include "cohort/comm/plan/plan.h"

namespace cohort::comm {

class PlanCache {
 public:
  // The plans are those of group rank `rank`. `placement` says how the members are spread over nodes; all members share
  // it.
  PlanCache(int rank, Placement placement) : rank_(rank), placement_(std::move(placement)) {}

  const Placement& placement() const { return placement_; }

  // The plan, or why there is none (BuildPlan's errors).
  absl::StatusOr<std::shared_ptr<const Plan>> Find(CollectiveKind kind, uint16_t algorithm, int root, bool in_place,
                                                   int32_t pieces, bool fold_once = false);

 private:
  static constexpr size_t kMostPlans = 128;
  struct Entry {
    uint16_t algorithm;
    std::shared_ptr<const Plan> plan;
  };
  const int rank_;
  const Placement placement_;
  std::list<Entry> entries_;  // the latest used first
};

}  // namespace cohort::comm
