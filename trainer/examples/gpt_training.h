// The training of train_gpt: its options, and the model under a mode or on a mesh.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"
#include "cohort/trainer/examples/gpt_model.h"
#include "cohort/trainer/examples/old_checkpoints.h"
#include "cohort/trainer/examples/text_data.h"
#include "cohort/trainer/mesh/device_mesh.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"
#include "cohort/trainer/state/async_checkpoint.h"
#include "cohort/trainer/state/training_state.h"
#include "torch/optim/optimizer.h"

namespace cohort::examples {

struct TrainGptOptions {
  std::string mode = "ddp";
  std::string mesh;  // "replicate=2,shard=2,tensor=2"
  GptOptions model;
  uint64_t seed = 0;
  int64_t steps = 200;
  int64_t batch_size = 24;
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
  int dry_run = 0;                // ranks
  int64_t sample = 200;
  std::string data;
};

// The state of one process.
struct Training {
  TrainGptOptions options;
  std::unique_ptr<runtime::Runtime> runtime;
  std::unique_ptr<comm::Communicator> world;
  std::unique_ptr<trainer::DeviceMesh> mesh;  // null without --mesh
  trainer::TensorAxis tensor;
  int data_rank = 0, data_ranks = 1;  // this rank's rows of the batch: every data_ranks-th
  std::unique_ptr<Text> text;
  std::shared_ptr<torch::nn::Module> module;  // holds the parameters of this rank
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::shared_ptr<void> wrapper;                // DistributedDataParallel
  std::unique_ptr<trainer::Pipeline> pipeline;  // null without a pipeline axis
  trainer::TrainingState state;
  std::unique_ptr<trainer::AsyncCheckpointer> checkpointer;  // writes while training goes on
  std::string last_checkpoint;                               // what it writes; before, what was resumed
  std::unique_ptr<OldCheckpoints> old_checkpoints;
  Gpt::Forward forward;
  std::function<at::Tensor(double)> clip_grad_norm;

  bool prints() const { return world->rank() == 0; }
};

// Joins the job, reads the text, and makes the model, its wrapper and its optimizer. Collective. Throws c10::Error.
void SetUp(Training& training);
// Makes this rank's rows of the batch of a step, and sets the place of random numbers.
TextBatch BatchOf(Training& training, bool train, int64_t step);
// The loss of a batch. With a pipeline it has no gradient, and is 0 on ranks without the last stage.
at::Tensor Loss(Training& training, const TextBatch& batch);
// The same, and the gradients of a step.
at::Tensor LossAndGradients(Training& training, const TextBatch& batch);
// The mean of such losses over the ranks.
double Mean(Training& training, double value);
// Destroys objects that communicate before those that they communicate by.
void TearDown(Training& training);

}  // namespace cohort::examples
