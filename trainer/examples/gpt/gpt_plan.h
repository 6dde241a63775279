// The share of each rank of a mesh in training the GPT: what it keeps and what it sends, from the sizes alone.
// `train_gpt --dry-run` prints it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/trainer/examples/gpt/gpt_training.h"
#include "cohort/trainer/mesh/axis.h"
#include "cohort/trainer/mesh/mesh_shape.h"

namespace cohort::examples {

// A rank's share, in bytes. AdamW keeps two numbers a parameter.
struct RankPlan {
  trainer::Coordinate at;
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;              // from forward to backward, the logits among them, at their most
  std::map<std::string, int64_t> sent;  // in a step, by axis

  int64_t total() const { return parameters + gradients + optimizer + activations; }
};

// The plan of every rank, in order, for options that CheckOptions takes. Local; makes no tensors with memory.
std::vector<RankPlan> PlanGpt(const TrainGptOptions& options, const trainer::MeshShape& mesh);

// A table with a line for each kind of rank: ranks with equal shares are on one line.
std::string PlanTable(const std::vector<RankPlan>& plans, const trainer::MeshShape& mesh);

// A line about the ranks' idle time, which is that of a pipeline whose backward passes take twice as long as its
// forward passes.
std::string IdleText(const TrainGptOptions& options, const trainer::MeshShape& mesh);

}  // namespace cohort::examples
