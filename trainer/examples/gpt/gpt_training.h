// The training of train_gpt: the model under a mode or on a mesh.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"
#include "cohort/trainer/adapter/lora.h"
#include "cohort/trainer/examples/gpt/gpt_model.h"
#include "cohort/trainer/examples/gpt/gpt_options.h"
#include "cohort/trainer/examples/old_checkpoints.h"
#include "cohort/trainer/examples/text_data.h"
#include "cohort/trainer/mesh/device_mesh.h"
#include "cohort/trainer/parallel/fsdp/fsdp_options.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"
#include "cohort/trainer/state/async_checkpoint.h"
#include "cohort/trainer/state/training_state.h"
#include "torch/optim/adamw.h"

namespace cohort::examples {

// The state of one process.
struct Training {
  TrainGptOptions options;
  std::unique_ptr<runtime::Runtime> runtime;
  std::unique_ptr<comm::Communicator> world;
  c10::Device device = c10::Device(c10::kCPU);  // the rank's first one
  std::unique_ptr<trainer::DeviceMesh> mesh;    // null without --mesh
  trainer::TensorAxis tensor;
  int data_rank = 0, data_ranks = 1;  // this rank's rows of the batch: every data_ranks-th
  std::string command_line;           // all options with their values, an option a line; equal on all ranks
  std::unique_ptr<Text> text;
  std::unique_ptr<trainer::Lora> lora;        // null without --lora
  int64_t parameters = 0, trainable = 0;      // of the whole model
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
  std::function<std::shared_ptr<void>()> no_sync;  // while the result lives, gradients are not averaged; may be null

  bool prints() const { return world->rank() == 0; }
};

// Joins the job. Collective. Throws c10::Error.
void Join(Training& training);
// Reads the text, and makes the model, its wrapper and its optimizer. Collective over the world. Throws UsageError
// where the options do not fit the ranks, and c10::Error.
void SetUp(Training& training);
// The optimizer's options.
torch::optim::AdamWOptions Adam(const TrainGptOptions& options);
// How shards are gathered and reduced.
trainer::FullyShardedDataParallelOptions ShardOptions(const TrainGptOptions& options);
// The parameters that train.
std::vector<at::Tensor> Trainable(const torch::nn::Module& module);
// Moves what is not yet on the rank's device there. Values were drawn by the CPU: they do not depend on the device.
void MoveToDevice(const Training& training, torch::nn::Module& module);
// Makes this rank's rows of the batch of a step, on its device, and sets the place of random numbers.
TextBatch BatchOf(Training& training, bool train, int64_t step);
// The loss of a batch. With a pipeline it has no gradient, and is 0 on ranks without the last stage.
at::Tensor Loss(Training& training, const TextBatch& batch);
// The same, and the gradients of a step, of --accumulate parts one after another.
at::Tensor LossAndGradients(Training& training, const TextBatch& batch);
// The mean of such losses over the ranks.
double Mean(Training& training, double value);
// Destroys objects that communicate before those that they communicate by. Leaves the job if Join has joined it.
void TearDown(Training& training);

}  // namespace cohort::examples
