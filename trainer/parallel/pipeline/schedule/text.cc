#include "cohort/trainer/parallel/pipeline/schedule/text.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/status/status.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/trainer/parallel/pipeline/schedule/lowering.h"
#include "cohort/trainer/parallel/pipeline/schedule/registry.h"

namespace cohort::trainer {
namespace {

constexpr size_t kMostActions = size_t{1} << 24;

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// The part of `text` before `separator`; it and the separator are taken off.
std::string_view TakePart(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

// A number at the beginning of `text`, which is taken off; false if there is none up to `most`.
bool TakeNumber(std::string_view& text, int most, int32_t* number) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error != std::errc() || *number > most) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool ReadAction(std::string_view text, Action* action) {
  if (!TakeNumber(text, kMostStages - 1, &action->stage)) return false;
  const size_t letters = std::min(text.find_first_of("0123456789"), text.size());
  for (int kind = 0; kind < kActionKinds; ++kind) {
    action->kind = static_cast<ActionKind>(kind);
    if (text.substr(0, letters) != Name(action->kind)) continue;
    text.remove_prefix(letters);
    if (!HasMicroBatch(action->kind)) return text.empty();
    return TakeNumber(text, kMostMicroBatches - 1, &action->micro_batch) && text.empty();
  }
  return false;
}

absl::Status NotRead(size_t rank, size_t cell, std::string_view text) {
  return absl::InvalidArgumentError("rank " + std::to_string(rank) + ", cell " + std::to_string(cell) + ": \"" +
                                    std::string(text.substr(0, 32)) +
                                    "\" is no action; actions are a stage, one of F B I W SEND_F RECV_F SEND_B RECV_B "
                                    "and a micro-batch, such as 3F0, "
                                    "or a stage and one of UNSHARD RESHARD REDUCE_GRAD");
}

absl::StatusOr<std::vector<Action>> ReadLine(std::string_view line, size_t rank, size_t most) {
  std::vector<Action> actions;
  for (size_t cell = 0; !line.empty(); ++cell) {
    const std::string_view text = Trimmed(TakePart(line, ','));
    if (text.empty()) continue;
    Action action;
    if (!ReadAction(text, &action)) return NotRead(rank, cell, text);
    if (actions.size() == most) {
      return absl::InvalidArgumentError("the schedule has more than " + std::to_string(kMostActions) + " actions");
    }
    actions.push_back(action);
  }
  return actions;
}

// Finds stages, micro-batches, and which rank has each stage.
absl::Status FindSizes(Schedule& schedule) {
  for (const auto& actions : schedule.by_rank) {
    for (const Action& action : actions) {
      schedule.stages = std::max(schedule.stages, action.stage + 1);
      schedule.micro_batches = std::max(schedule.micro_batches, action.micro_batch + 1);
    }
  }
  if (int64_t{schedule.stages} * schedule.micro_batches > kMostPasses) {
    return absl::InvalidArgumentError("a schedule of " + std::to_string(schedule.stages) + " stages and " +
                                      std::to_string(schedule.micro_batches) + " micro-batches is larger than " +
                                      std::to_string(kMostPasses) + " forward passes");
  }
  schedule.rank_of_stage.assign(static_cast<size_t>(schedule.stages), -1);
  for (size_t rank = 0; rank < schedule.by_rank.size(); ++rank) {
    for (const Action& action : schedule.by_rank[rank]) {
      int& place = schedule.rank_of_stage[static_cast<size_t>(action.stage)];
      if (!IsCompute(action.kind) || place == static_cast<int>(rank)) continue;
      if (place >= 0) {
        return absl::InvalidArgumentError("rank " + std::to_string(rank) + ", " + ToString(action) + ": rank " +
                                          std::to_string(place) + " has this stage");
      }
      place = static_cast<int>(rank);
    }
  }
  for (size_t stage = 0; stage < schedule.rank_of_stage.size(); ++stage) {
    if (schedule.rank_of_stage[stage] < 0) {
      return absl::InvalidArgumentError("no rank computes stage " + std::to_string(stage) + ": " +
                                        std::to_string(stage) + "F0 is missing");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToText(const Schedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.by_rank) {
    for (size_t i = 0; i < actions.size(); ++i) text += (i == 0 ? "" : ",") + ToString(actions[i]);
    text += "\n";
  }
  return text;
}

absl::StatusOr<Schedule> ParseSchedule(std::string_view text) {
  Schedule schedule;
  schedule.name = "text";
  size_t actions = 0;
  while (!text.empty()) {
    const std::string_view line = Trimmed(TakePart(text, '\n'));
    if (line.empty() || line.front() == '#') continue;
    const size_t rank = schedule.by_rank.size();
    if (rank == static_cast<size_t>(kMostPipelineRanks)) {
      return absl::InvalidArgumentError("the schedule has more than " + std::to_string(kMostPipelineRanks) + " ranks");
    }
    COHORT_ASSIGN_OR_RETURN(std::vector<Action> read, ReadLine(line, rank, kMostActions - actions));
    actions += read.size();
    schedule.by_rank.push_back(std::move(read));
  }
  if (schedule.by_rank.empty()) return absl::InvalidArgumentError("the schedule has no line with actions");
  schedule.ranks = static_cast<int>(schedule.by_rank.size());
  COHORT_RETURN_IF_ERROR(FindSizes(schedule));
  const bool only_passes = std::all_of(schedule.by_rank.begin(), schedule.by_rank.end(), [](const auto& list) {
    return std::all_of(list.begin(), list.end(), [](const Action& action) { return IsCompute(action.kind); });
  });
  if (only_passes) return Lower(std::move(schedule));
  return schedule;
}

}  // namespace cohort::trainer
