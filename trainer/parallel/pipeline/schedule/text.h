// Schedules as text, in the form of PyTorch's pipelining (torch.distributed.pipelining): a line for each rank, actions
// separated by commas.
//
//   0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,...
//   1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,...
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "cohort/trainer/parallel/pipeline/schedule/schedule.h"

namespace cohort::trainer {

// A line for each rank.
std::string ToText(const Schedule& schedule);
// Reads it. Empty cells are idle time of PyTorch's tables and mean nothing; lines that begin with # are left out. The
// number of stages and micro-batches is one more than the largest that occurs, and a stage is on the rank that computes
// it. Text that has computations only is completed (lowering.h). Nothing else is proved: see CheckSchedule.
// kInvalidArgument names the rank and the action that can't be read, or stands on two ranks.
absl::StatusOr<Schedule> ParseSchedule(std::string_view text);

}  // namespace cohort::trainer
