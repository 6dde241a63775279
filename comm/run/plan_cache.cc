#include "cohort/comm/run/plan_cache.h"

#include <string>
#include <utility>

#include "cohort/comm/run/early_receives.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {

absl::StatusOr<std::shared_ptr<const Plan>> PlanCache::Find(CollectiveKind kind, uint16_t algorithm, int root,
                                                            bool in_place, int32_t pieces, bool fold_once) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const Plan& plan = *entry->plan;
    if (entry->algorithm != algorithm || plan.pieces != pieces || plan.root != root || plan.in_place != in_place ||
        plan.fold_once != fold_once) {
      continue;
    }
    if (entry != entries_.begin()) entries_.splice(entries_.begin(), entries_, entry);
    return entry->plan;
  }
  const AlgorithmInfo* info = FindAlgorithm(algorithm);
  if (info == nullptr || info->kind != kind) {
    return absl::InternalError("algorithm " + std::to_string(algorithm) + " does not serve " + std::string(Name(kind)));
  }
  PlanRequest request;
  request.kind = kind;
  request.size = placement_.size();
  request.rank = rank_;
  request.root = root;
  request.in_place = in_place;
  request.pieces = pieces;
  request.placement = &placement_;
  request.fold_once = fold_once;
  COHORT_ASSIGN_OR_RETURN(Plan plan, BuildPlan(*info, request));
  MarkEarlyReceives(&plan);
  if (entries_.size() >= kMostPlans) entries_.pop_back();
  entries_.push_front({algorithm, std::make_shared<const Plan>(std::move(plan))});
  return entries_.front().plan;
}

}  // namespace cohort::comm
