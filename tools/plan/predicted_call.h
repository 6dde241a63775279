// A simulated call as a trace: a slice for the call on each rank, and in it one for each step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/simulate/network.h"
#include "cohort/comm/simulate/simulator.h"
#include "tools/prediction/prediction_trace.h"

namespace cohort::tools {

class PredictedCall {
 public:
  // PredictionTrace::Open. A run's calls of that kind and size are alike.
  static absl::StatusOr<PredictedCall> Open(const std::string& path, const comm::AlgorithmInfo& algorithm,
                                            int64_t bytes, const comm::Network& network);

  void Add(const comm::SimulatedStep& step) { steps_.push_back(step); }
  // PredictionTrace::Write, of the steps that were added.
  absl::Status Write();
  const std::string& place() const { return trace_.place(); }

 private:
  PredictedCall(PredictionTrace trace, const comm::AlgorithmInfo& algorithm, int64_t bytes, int64_t ranks)
      : trace_(std::move(trace)), algorithm_(&algorithm), bytes_(bytes), ranks_(ranks) {}

  PredictionTrace trace_;
  const comm::AlgorithmInfo* algorithm_;
  int64_t bytes_;
  int64_t ranks_;
  std::vector<comm::SimulatedStep> steps_;
};

}  // namespace cohort::tools
