// Trainings of train_gpt in one process of a job, one after another: on meshes of all its ranks, and alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/base/local_device.h"
#include "cohort/trainer/examples/gpt/gpt_options.h"
#include "cohort/trainer/examples/gpt/gpt_training.h"
#include "tests/trainer/ranks.h"

namespace cohort::examples {

using trainer::world;

inline constexpr int kSteps = 3;

// Little divides: 65 characters, 4 heads, 5 places.
inline TrainGptOptions SmallGpt() {
  TrainGptOptions options;
  options.model.layers = 6;
  options.model.width = 12;
  options.model.context = 5;
  options.batch_size = 24;
  options.micro_batches = 2;
  options.clip = 0.3;
  return options;
}

// The training of `options` by all ranks of the job, or by this one alone.
class OwnTraining {
 public:
  explicit OwnTraining(const TrainGptOptions& options, bool alone = false) {
    training_.options = options;
    training_.device = trainer::LocalDevices(*trainer::job).front().device;
    const int self[] = {world->rank()};
    training_.world = alone ? world->Subgroup(self).value() : world->Duplicate().value();
    SetUp(training_);
  }
  ~OwnTraining() { TearDown(training_); }
  OwnTraining(const OwnTraining&) = delete;
  OwnTraining& operator=(const OwnTraining&) = delete;

  // The loss of a step and the norm of its gradients.
  std::pair<double, double> Step(int64_t step) {
    training_.optimizer->zero_grad();
    const double loss = LossAndGradients(training_, BatchOf(training_, /*train=*/true, step)).item<double>();
    const double norm = training_.clip_grad_norm(training_.options.clip).item<double>();
    training_.optimizer->step();
    return {Mean(training_, loss), norm};
  }
  Training& operator*() { return training_; }
  Training* operator->() { return &training_; }
  const Training* operator->() const { return &training_; }

 private:
  Training training_;
};

using Trace = std::vector<std::pair<double, double>>;

inline Trace TraceOf(OwnTraining& training) {
  Trace trace;
  for (int step = 0; step < kSteps; ++step) trace.push_back(training.Step(step));
  return trace;
}

inline Trace TraceOf(const TrainGptOptions& options, bool alone) {
  OwnTraining training(options, alone);
  return TraceOf(training);
}

inline void ExpectSame(const Trace& actual, const Trace& expected, double tolerance, const std::string& what) {
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(actual[step].first, expected[step].first, tolerance * std::max(1.0, expected[step].first))
        << what << ": loss of step " << step;
    EXPECT_NEAR(actual[step].second, expected[step].second, tolerance * std::max(1.0, expected[step].second))
        << what << ": gradient norm of step " << step;
  }
}

// All meshes of the job's ranks whose axes have two ranks at least.
inline std::vector<std::string> MeshesOfAllAxes() {
  std::vector<std::string> meshes;
  const int ranks = world->size();
  for (int pipeline = 1; pipeline <= ranks; ++pipeline) {
    for (int replicate = 1; replicate <= ranks; ++replicate) {
      for (int shard = 1; shard <= ranks; ++shard) {
        if (ranks % (pipeline * replicate * shard) != 0) continue;
        const std::pair<const char*, int> axes[] = {{"pipeline", pipeline},
                                                    {"replicate", replicate},
                                                    {"shard", shard},
                                                    {"tensor", ranks / (pipeline * replicate * shard)}};
        std::string mesh;
        for (const auto& [name, size] : axes) {
          if (size > 1) mesh += (mesh.empty() ? "" : ",") + std::string(name) + "=" + std::to_string(size);
        }
        if (!mesh.empty()) meshes.push_back(mesh);
      }
    }
  }
  return meshes;
}

inline bool Has(const std::string& mesh, const std::string& axis) { return mesh.find(axis) != std::string::npos; }

// The model has 8 layers: up to 4 ranks have two stages each.
inline std::vector<std::string> SchedulesFor(const std::string& mesh) {
  if (!Has(mesh, "pipeline")) return {"1f1b"};
  if (Has(mesh, "pipeline=6") || Has(mesh, "pipeline=8")) return {"gpipe", "1f1b", "zb_h1"};
  return {"gpipe", "1f1b", "interleaved", "zb_h1", "zbv"};
}

}  // namespace cohort::examples
