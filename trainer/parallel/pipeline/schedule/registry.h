// The registered schedules. A schedule is a pure function of (ranks, stages, micro-batches): one file and one line in
// schedules.def.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/trainer/parallel/pipeline/schedule/schedule.h"

namespace cohort::trainer {

struct ScheduleRequest {
  int ranks = 1;
  int stages = 1;  // of the whole pipeline
  int micro_batches = 1;

  int stages_per_rank() const { return stages / ranks; }
};

// An exact share: part / whole.
struct Share {
  int64_t part = 0;
  int64_t whole = 1;

  double value() const { return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole); }
};

struct ScheduleTraits {
  int least_stages_per_rank = 1;
  int most_stages_per_rank = 1;
  // Stage s lies on rank s % ranks. Folded, the second half comes back: stage 2 * ranks - 1 - s lies beside stage s.
  bool folded = false;
  bool splits_backward = false;  // into I and W
};

struct ScheduleInfo {
  std::string_view name;
  // The passes of `rank`, in order; no messages.
  std::vector<Action> (*order)(const ScheduleRequest& request, int rank);
  // The idle share of all ranks' time, where F, I and W take one unit each and B two, and messages no time. None where
  // the formula does not hold.
  std::optional<Share> (*idle)(const ScheduleRequest& request);
  // The most forward passes whose activations `rank` keeps at a time, one for each stage and micro-batch. None where
  // there is no formula.
  std::optional<int> (*peak)(const ScheduleRequest& request, int rank);
  ScheduleTraits traits;
};

// In the order of schedules.def.
std::span<const ScheduleInfo> Schedules();
// Null if there is none of that name.
const ScheduleInfo* FindSchedule(std::string_view name);
// Whether the schedule serves a pipeline of these sizes. kInvalidArgument says what it needs.
absl::Status CheckRequirements(const ScheduleInfo& info, const ScheduleRequest& request);
// The schedule of all ranks, with messages, unshard, reshard and reduce (lowering.h). kInvalidArgument as
// CheckRequirements, or if there is no schedule of that name; the message lists the names.
absl::StatusOr<Schedule> BuildSchedule(std::string_view name, const ScheduleRequest& request);

// Sizes that schedules have at most; text is bounded by them too.
inline constexpr int kMostPipelineRanks = 1024;
inline constexpr int kMostStages = 8192;
inline constexpr int kMostMicroBatches = 65536;
inline constexpr int64_t kMostPasses = int64_t{1} << 22;  // stages times micro-batches

}  // namespace cohort::trainer
