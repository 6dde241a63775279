// The plans of one group, built when first needed and kept, the least recently used given up first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>

#include "absl/status/statusor.h"
#include "comm/algorithm/registry.h"
#include "comm/plan/plan.h"

namespace cohort::comm {

class PlanCache {
 public:
  // Of a group of `size` ranks, the caller is `rank`.
  PlanCache(int rank, int size) : rank_(rank), size_(size) {}

  // The plan, valid until the next call; or why there is none (BuildPlan's errors).
  absl::StatusOr<const Plan*> Find(CollectiveKind kind, uint16_t algorithm, int root, bool in_place, int32_t pieces);

 private:
  static constexpr size_t kMostPlans = 128;
  struct Entry {
    uint16_t algorithm;
    Plan plan;
  };
  const int rank_;
  const int size_;
  std::list<Entry> entries_;  // the latest used first
};

}  // namespace cohort::comm
