// Trains a small network on handwritten digits over all ranks of a job:
//
//   dlaunch --nproc-per-node 4 train_digits
//   dlaunch --nproc-per-node 4 train_digits --mesh replicate=2,shard=2 --checkpoints /tmp/digits
//
// Every rank has the whole network (DDP), or with --mesh a shard of its parameters (FSDP). With --checkpoints the same
// command goes on after the last epoch that was saved, on any number of ranks, with a mesh or without.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "cohort/trainer/base/local_device.h"
#include "cohort/trainer/data/distributed_sampler.h"
#include "cohort/trainer/examples/digits_data.h"
#include "cohort/trainer/examples/digits_net.h"
#include "cohort/trainer/examples/mesh_option.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/state/checkpoint/checkpoint_values.h"
#include "cohort/trainer/state/training_state.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

constexpr int kBatch = 48;              // images a step, of all ranks together
constexpr double kLearningRate = 0.05;  // falls linearly to 0

struct Options {
  int epochs = 12;
  std::string mesh, checkpoints;
};

void Train(const Options& options) {
  trainer::Job job;
  const auto devices = trainer::LocalDevices(job.runtime());
  const auto [train, test] = LoadDigits(FindDigits(), /*seed=*/0);
  torch::manual_seed(0);

  // The network, its wrapper and its optimizer. Without a mesh, its halves lie on the rank's first and last device.
  const bool whole = options.mesh.empty();
  auto net = std::make_shared<DigitsNet>(devices.front(), whole ? devices.back() : devices.front());
  std::unique_ptr<trainer::DistributedDataParallel<DigitsNet>> ddp;
  std::unique_ptr<trainer::DeviceMesh> mesh;
  std::shared_ptr<trainer::FullyShardedDataParallel<DigitsNet>> fsdp;
  if (whole) {
    trainer::DistributedDataParallelOptions ddp_options;
    ddp_options.parts = {{net->features.get(), devices.front()}, {net->classifier.get(), devices.back()}};
    ddp = std::make_unique<trainer::DistributedDataParallel<DigitsNet>>(net, job.world(), ddp_options);
  } else {
    const auto [names, sizes] = ParseMesh(options.mesh);
    mesh = trainer::init_device_mesh(job.world(), sizes, names);
    fsdp = std::make_shared<trainer::FullyShardedDataParallel<DigitsNet>>(net, *mesh);
  }
  const auto forward = [&](const at::Tensor& images) { return whole ? ddp->forward(images) : fsdp->forward(images); };
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(kLearningRate).momentum(0.9));

  // Training goes on after the newest checkpoint, where there is one.
  const auto state = whole ? trainer::StateOf(*net, optimizer, job.world()) : trainer::StateOf(*fsdp, optimizer);
  int64_t epoch = 0;
  if (!options.checkpoints.empty()) {
    const auto loaded = trainer::LoadLatestTrainingState(job.world(), options.checkpoints, state);
    if (loaded.has_value()) epoch = trainer::WholeNumberOf(loaded->values, "epochs");
  }
  if (job.rank() == 0) {
    std::printf("train_digits: %s, %d training and %d test images, %d ranks on %d nodes, %d devices a rank\n",
                whole ? "ddp" : options.mesh.c_str(), int(train.count()), int(test.count()), job.size(),
                job.runtime().node_count(), int(devices.size()));
  }

  trainer::DistributedSampler sampler(train.count(), job.size(), job.rank());
  const int64_t batch = std::max(kBatch / job.size(), 1);
  for (; epoch < options.epochs; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    const double left = double(options.epochs - epoch) / options.epochs;
    static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options()).lr(kLearningRate * left);
    sampler.set_epoch(epoch);
    at::Tensor loss;
    for (const at::Tensor& rows : torch::tensor(sampler.indices()).split(batch)) {
      optimizer.zero_grad();
      const at::Tensor output = forward(train.images.index_select(0, rows));
      loss = torch::nll_loss(output, train.labels.index_select(0, rows).to(output.device()));
      loss.backward();
      optimizer.step();
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;

    const torch::NoGradGuard no_grad;
    const at::Tensor correct = forward(test.images).argmax(1).to(torch::kCPU) == test.labels;
    if (job.rank() == 0) {
      std::printf("epoch %2d/%d  loss %.4f  test accuracy %.4f  %6.0f images/s\n", int(epoch) + 1, options.epochs,
                  loss.item<double>(), correct.to(torch::kFloat32).mean().item<double>(),
                  train.count() / seconds.count());
      std::fflush(stdout);
    }
    if (options.checkpoints.empty()) continue;
    const std::string name = options.checkpoints + "/epoch-" + std::to_string(epoch + 1);
    trainer::SaveTrainingState(job.world(), name, state, {{"epochs", std::to_string(epoch + 1)}});
  }
}

}  // namespace cohort::examples

int main(int argc, char** argv) {
  cohort::examples::Options options;
  CLI::App app("Trains a small convolutional network on 8x8 handwritten digits, over the ranks of a job.");
  app.footer(
      "Examples:\n"
      "  dlaunch -n 2 train_digits --epochs 3\n"
      "  dlaunch -n 4 train_digits --mesh replicate=2,shard=2 --checkpoints digits");
  app.add_option("--epochs", options.epochs, "passes over the images")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option("--mesh", options.mesh, "shard=4 or replicate=2,shard=2: FSDP over the ranks, in place of DDP");
  app.add_option("--checkpoints", options.checkpoints, "save each epoch in this folder, and go on from the newest");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // CLI11 would end with a code of its own for each kind of error
  }
  return cohort::trainer::RunRank("train_digits", [&] { cohort::examples::Train(options); });
}
