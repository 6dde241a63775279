#include "cohort/trainer/parallel/pipeline/schedule/registry.h"

#include <array>
#include <utility>

#include "absl/status/status.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/trainer/parallel/pipeline/schedule/lowering.h"

namespace cohort::trainer {

#define COHORT_SCHEDULE(name, function, ...)                                     \
  std::vector<Action> Order##function(const ScheduleRequest& request, int rank); \
  std::optional<Share> IdleOf##function(const ScheduleRequest& request);         \
  std::optional<int> PeakOf##function(const ScheduleRequest& request, int rank);
#include "cohort/trainer/parallel/pipeline/schedule/schedules.def"
#undef COHORT_SCHEDULE

namespace {

constexpr std::array kSchedules = {
#define COHORT_SCHEDULE(name, function, ...) \
  ScheduleInfo{name, Order##function, IdleOf##function, PeakOf##function, ScheduleTraits{__VA_ARGS__}},
#include "cohort/trainer/parallel/pipeline/schedule/schedules.def"
#undef COHORT_SCHEDULE
};

absl::Status Refused(const ScheduleInfo& info, const std::string& why) {
  return absl::InvalidArgumentError("schedule \"" + std::string(info.name) + "\" " + why);
}

int RankOfStage(const ScheduleInfo& info, const ScheduleRequest& request, int stage) {
  const int lap = stage / request.ranks, place = stage % request.ranks;
  return info.traits.folded && lap % 2 == 1 ? request.ranks - 1 - place : place;
}

}  // namespace

std::span<const ScheduleInfo> Schedules() { return kSchedules; }

const ScheduleInfo* FindSchedule(std::string_view name) {
  for (const ScheduleInfo& info : kSchedules) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

absl::Status CheckRequirements(const ScheduleInfo& info, const ScheduleRequest& request) {
  const auto& [ranks, stages, micro_batches] = request;
  if (ranks < 1 || ranks > kMostPipelineRanks) {
    return Refused(info, "needs 1 to " + std::to_string(kMostPipelineRanks) + " ranks, not " + std::to_string(ranks));
  }
  if (micro_batches < 1 || micro_batches > kMostMicroBatches) {
    return Refused(info, "needs 1 to " + std::to_string(kMostMicroBatches) + " micro-batches, not " +
                             std::to_string(micro_batches));
  }
  const int64_t least = int64_t{ranks} * info.traits.least_stages_per_rank;
  const int64_t most = int64_t{ranks} * info.traits.most_stages_per_rank;
  if (stages < least || stages > most || stages % ranks != 0 || stages > kMostStages) {
    const std::string wanted = least == most
                                   ? std::to_string(least) + " stages"
                                   : "a multiple of " + std::to_string(ranks) + " stages, at least " +
                                         std::to_string(least) + " and at most " + std::to_string(kMostStages);
    return Refused(info, "of " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") + " needs " + wanted +
                             ", not " + std::to_string(stages));
  }
  if (int64_t{stages} * micro_batches > kMostPasses) {
    return Refused(info, "of " + std::to_string(stages) + " stages and " + std::to_string(micro_batches) +
                             " micro-batches is larger than " + std::to_string(kMostPasses) + " forward passes");
  }
  return absl::OkStatus();
}

absl::StatusOr<Schedule> BuildSchedule(std::string_view name, const ScheduleRequest& request) {
  const ScheduleInfo* const info = FindSchedule(name);
  if (info == nullptr) {
    std::string names;
    for (const ScheduleInfo& each : kSchedules) names += (names.empty() ? "" : ", ") + std::string(each.name);
    return absl::InvalidArgumentError("there is no schedule \"" + std::string(name.substr(0, 64)) + "\"; there are " +
                                      names);
  }
  COHORT_RETURN_IF_ERROR(CheckRequirements(*info, request));
  Schedule schedule{.name = std::string(name),
                    .ranks = request.ranks,
                    .stages = request.stages,
                    .micro_batches = request.micro_batches,
                    .rank_of_stage = {},
                    .by_rank = {}};
  for (int stage = 0; stage < request.stages; ++stage) {
    schedule.rank_of_stage.push_back(RankOfStage(*info, request, stage));
  }
  for (int rank = 0; rank < request.ranks; ++rank) schedule.by_rank.push_back(info->order(request, rank));
  return Lower(std::move(schedule));
}

}  // namespace cohort::trainer
