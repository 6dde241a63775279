// The options of train_gpt.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cohort/trainer/examples/gpt/gpt_model.h"

namespace CLI {
class App;
}

namespace cohort::examples {

struct TrainGptOptions {
  std::string mode = "ddp";
  std::string mesh;  // "replicate=2,shard=2,tensor=2"
  GptOptions model;
  std::string dtype = "float32";
  uint64_t seed = 0;
  int64_t steps = 200;
  int64_t batch_size = 24;
  int accumulate = 1;  // parts into which a rank's rows of a batch are cut, one after another
  double learning_rate = 3e-3;
  double clip = 1.0;
  std::string checkpoints;
  int64_t save_every = 50;
  int64_t keep = 3;
  int64_t log_every = 20;
  bool resume = false;
  std::string export_to;
  bool checkpoint_activations = false;
  bool sequence_parallel = false;
  int chunks = 1;
  std::string schedule = "1f1b";  // of the pipeline axis
  int micro_batches = 4;          // likewise
  std::string base;               // a file of weights to start from
  int64_t lora = 0;               // rank of the adapters; 0: all weights train
  double lora_alpha = 0;          // 0: twice the rank
  std::vector<std::string> lora_targets = {"qkv", "out", "up", "down"};
  std::string export_adapter;
  int dry_run = 0;        // ranks
  double peak_flops = 0;  // a second, of a rank; 0: not known
  bool traffic = false;
  int64_t sample = 200;
  std::string data;

  bool in_bfloat16() const { return dtype == "bfloat16"; }
};

// A fault of the command line that shows after it was parsed.
struct UsageError : std::runtime_error {
  using runtime_error::runtime_error;
};

// Adds all options to `app`, which sets `options`.
void AddOptions(CLI::App& app, TrainGptOptions& options);

// Refuses options that were given without the axis of the mesh that they act on, which would be ignored. Throws
// UsageError.
void CheckAxesOfOptions(const CLI::App& app, const TrainGptOptions& options);

// Calls `check`, which reads options. Throws UsageError in place of its c10::Error.
void AsUsage(const std::function<void()>& check);
// Throws UsageError where `ranks` ranks can't train so: --mesh has another number, or the batch or the model can't be
// shared among them.
void CheckOptions(const TrainGptOptions& options, int ranks);

}  // namespace cohort::examples
