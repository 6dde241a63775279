// Trains the network of the example train_digits in every mode, for tests: `--mode`, `--single` for one process without
// a job, `--save` for the final weights, and checkpoints after which `--resume` ends with the same weights.
//
// When a scheduler's signal preempts the job (SIGTERM, SIGUSR1 or SIGUSR2 to dlaunch) all ranks stop before the same
// step and save a checkpoint.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cohort/comm/communicator.h"
#include "cohort/runtime/base/whole_file.h"
#include "cohort/runtime/runtime.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/data/distributed_sampler.h"
#include "cohort/trainer/examples/digits_data.h"
#include "cohort/trainer/examples/digits_net.h"
#include "cohort/trainer/examples/old_checkpoints.h"
#include "cohort/trainer/examples/output_file.h"
#include "cohort/trainer/mesh/device_mesh.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/state/checkpoint/checkpoint_values.h"
#include "cohort/trainer/state/training_state.h"
#include "torch/torch.h"

namespace cohort::examples {
namespace {

using trainer::ThrowUnlessOk;

// How far training has come.
struct Progress {
  int64_t epochs = 0;  // whole passes over the training set
  int64_t steps = 0;   // of the next one
};

struct Options {
  uint64_t seed = 0;
  int64_t epochs = 12;
  int64_t batch_size = 48;  // of all ranks together; divisible by up to 4 and by 6, 8, 12 ranks
  double learning_rate = 0.05;
  std::string mode = "ddp";
  bool single = false;
  std::string data;
  std::string save;
  std::string checkpoints;
  int64_t keep = 3;
  bool resume = false;
};

// The state of one process: the job (absent with --single), the network on its devices, its share of the data.
struct Trainer {
  Options options;
  std::unique_ptr<runtime::Runtime> runtime;
  std::unique_ptr<comm::Communicator> world;
  std::shared_ptr<DigitsNet> net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<trainer::DistributedDataParallel<DigitsNet>> ddp;    // with --mode ddp, zero1 and zero2
  std::unique_ptr<trainer::DeviceMesh> mesh;                           // with --mode hsdp
  std::shared_ptr<trainer::FullyShardedDataParallel<DigitsNet>> fsdp;  // with --mode fsdp and hsdp
  std::unique_ptr<trainer::DataParallel<DigitsNet>> parallel;          // with --mode data_parallel
  trainer::TrainingState state;                                        // of the job, for checkpoints
  std::optional<OldCheckpoints> old_checkpoints;
  DigitsSplit data;

  int rank() const { return world == nullptr ? 0 : world->rank(); }
  int size() const { return world == nullptr ? 1 : world->size(); }
  int64_t steps_per_epoch() const { return data.train.count() / options.batch_size; }  // without a last, partial batch
  int64_t StepOf(const Progress& progress) const { return progress.epochs * steps_per_epoch() + progress.steps; }
  bool prints() const { return rank() == 0; }
  at::Tensor Forward(const at::Tensor& images) {
    if (fsdp != nullptr) return fsdp->forward(images);
    if (parallel != nullptr) return parallel->forward(images);
    return ddp == nullptr ? net->forward(images) : ddp->forward(images);
  }
};

std::string Devices(const std::vector<trainer::LocalDevice>& devices) {
  std::string text;
  for (const auto& device : devices) text += (text.empty() ? "" : ", ") + device.device.str();
  return text;
}

torch::optim::SGDOptions Sgd(const Options& options) {
  return torch::optim::SGDOptions(options.learning_rate).momentum(0.9);
}

// Sharded over all ranks, or over those of a node and replicated over nodes (of one node: in two halves).
void WrapSharded(Trainer& trainer, size_t devices) {
  using Fsdp = trainer::FullyShardedDataParallel<DigitsNet>;
  const std::string& mode = trainer.options.mode;
  TORCH_CHECK(devices == 1, "--mode ", mode, " shards a network on one device, and this rank has ", devices,
              "; use --mode ddp, zero1 or zero2 with several");
  if (mode == "fsdp") {
    trainer.fsdp = std::make_shared<Fsdp>(trainer.net, *trainer.world);
  } else {
    const int nodes = trainer.runtime->node_count(), replicas = nodes > 1 ? nodes : 2;
    TORCH_CHECK(trainer.size() % replicas == 0,
                "--mode hsdp shards over the ranks of a node and replicates over nodes, "
                "or over two halves of one node: ",
                trainer.size(), " ranks are no multiple of ", replicas,
                "; start equally many on each, or use --mode fsdp");
    const int shards = trainer.size() / replicas;
    for (int rank = 0; rank < trainer.size(); ++rank) {
      const int first = rank / shards * shards;
      TORCH_CHECK(trainer.runtime->node_of(rank) == trainer.runtime->node_of(first),
                  "--mode hsdp shards over the ranks of a node, but ranks ", first, " and ", rank,
                  " of the same shards are on different ones; start equally many on each, or use --mode fsdp");
    }
    auto mesh =
        trainer::DeviceMesh::Create(*trainer.world, {replicas, trainer.size() / replicas}, {"replicate", "shard"});
    ThrowUnlessOk(mesh.status(), "making the mesh of --mode hsdp");
    trainer.mesh = *std::move(mesh);
    trainer.fsdp = std::make_shared<Fsdp>(trainer.net, *trainer.mesh);
  }
  trainer.optimizer = std::make_unique<torch::optim::SGD>(trainer.net->parameters(), Sgd(trainer.options));
  trainer.state = trainer::StateOf(*trainer.fsdp, *trainer.optimizer);
}

// A replica of the whole network on each device of this one process.
void WrapParallel(Trainer& trainer, const std::vector<trainer::LocalDevice>& devices) {
  TORCH_CHECK(trainer.size() == 1, "--mode data_parallel is for one process with several devices, and there are ",
              trainer.size(), " ranks; use --mode ddp, or give one rank all devices (--gpus-per-rank)");
  std::vector<c10::Device> places;
  for (const trainer::LocalDevice& device : devices) places.push_back(device.device);
  size_t next = 1;
  trainer.parallel = std::make_unique<trainer::DataParallel<DigitsNet>>(
      trainer.net, trainer::DataParallelOptions{.devices = places}, [&] {
        const trainer::LocalDevice& device = devices[next++];
        return std::make_shared<DigitsNet>(device, device);
      });
  trainer.optimizer = std::make_unique<torch::optim::SGD>(trainer.net->parameters(), Sgd(trainer.options));
  if (trainer.world != nullptr) {
    trainer.state = trainer::StateOf(*trainer.net, *trainer.optimizer, *trainer.world);
  }
}

// The network's wrapper and its optimizer, as --mode says.
void Wrap(Trainer& trainer, const std::vector<trainer::LocalDevice>& devices) {
  using Ddp = trainer::DistributedDataParallel<DigitsNet>;
  const Options& options = trainer.options;
  const auto sgd = Sgd(options);
  if (options.mode == "data_parallel") return WrapParallel(trainer, devices);
  if (trainer.world == nullptr) {
    trainer.optimizer = std::make_unique<torch::optim::SGD>(trainer.net->parameters(), sgd);
    return;
  }
  if (options.mode == "fsdp" || options.mode == "hsdp") return WrapSharded(trainer, devices.size());
  trainer::DistributedDataParallelOptions ddp;
  ddp.parts = {{trainer.net->features.get(), devices.front()}, {trainer.net->classifier.get(), devices.back()}};
  if (options.mode == "ddp") {
    trainer.ddp = std::make_unique<Ddp>(trainer.net, *trainer.world, ddp);
    trainer.optimizer = std::make_unique<torch::optim::SGD>(trainer.net->parameters(), sgd);
    trainer.state = trainer::StateOf(*trainer.net, *trainer.optimizer, *trainer.world);
    return;
  }
  auto zero = std::make_unique<trainer::ZeroRedundancyOptimizer<torch::optim::SGD>>(trainer.net->parameters(),
                                                                                    *trainer.world, sgd);
  trainer.ddp = options.mode == "zero1" ? std::make_unique<Ddp>(trainer.net, *trainer.world, ddp)
                                        : std::make_unique<trainer::ShardedDataParallel<DigitsNet>>(
                                              trainer.net, *zero, *trainer.world, ddp);
  trainer.state = trainer::StateOf(*trainer.net, *zero, *trainer.world);
  trainer.optimizer = std::move(zero);
}

void SetUp(Trainer& trainer) {
  const Options& options = trainer.options;
  TORCH_CHECK(!options.single || options.mode == "ddp" || options.mode == "data_parallel", "--mode ", options.mode,
              " splits a network among ranks, and --single trains without any; leave one of them out");
  std::vector<trainer::LocalDevice> devices(1);
  if (!options.single) {
    runtime::RuntimeOptions runtime_options;
    runtime_options.progress_thread = true;  // buckets move while backward computes
    auto runtime = runtime::Runtime::Init(std::move(runtime_options));
    ThrowUnlessOk(runtime.status(), "joining the job");
    trainer.runtime = *std::move(runtime);
    auto world = comm::Communicator::World(*trainer.runtime);
    ThrowUnlessOk(world.status(), "making the world communicator");
    trainer.world = *std::move(world);
    devices = trainer::LocalDevices(*trainer.runtime);
  }
  TORCH_CHECK(options.batch_size % trainer.size() == 0, "the global batch of ", options.batch_size,
              " can't be shared evenly by ", trainer.size(), " ranks; choose a --batch-size that is a multiple of ",
              trainer.size());
  trainer.data = LoadDigits(options.data.empty() ? FindDigits() : options.data, options.seed);
  TORCH_CHECK(trainer.data.train.count() >= options.batch_size, "the training set of ", trainer.data.train.count(),
              " images is smaller than one batch of ", options.batch_size);
  torch::manual_seed(options.seed);
  const bool halves = options.mode != "data_parallel";  // where a rank has several devices
  trainer.net = std::make_shared<DigitsNet>(devices.front(), halves ? devices.back() : devices.front());
  Wrap(trainer, devices);
  if (trainer.prints()) {
    std::printf(
        "digits_trainer: %s, %lld training and %lld test images, %d rank%s on %d node%s, devices of rank 0: %s, "
        "global batch %lld\n",
        options.single && options.mode == "ddp" ? "one process" : options.mode.c_str(),
        static_cast<long long>(trainer.data.train.count()), static_cast<long long>(trainer.data.test.count()),
        trainer.size(), trainer.size() == 1 ? "" : "s", trainer.runtime ? trainer.runtime->node_count() : 1,
        trainer.runtime && trainer.runtime->node_count() > 1 ? "s" : "", Devices(devices).c_str(),
        static_cast<long long>(options.batch_size));
    std::fflush(stdout);
  }
}

// Adds `values` up over the ranks.
void Sum(Trainer& trainer, std::vector<double>& values) {
  if (trainer.world == nullptr) return;
  const comm::Buffer buffer(values.data(), static_cast<int64_t>(values.size()));
  ThrowUnlessOk(trainer.world->AllReduce(buffer, buffer, comm::ReduceOp::kSum).Wait(), "adding up statistics");
}

// The learning rate falls linearly from epoch to epoch, so that the last steps settle.
void SetLearningRate(torch::optim::Optimizer& optimizer, const Options& options, int64_t epoch) {
  const double left = static_cast<double>(options.epochs - epoch) / static_cast<double>(options.epochs);
  for (auto& group : optimizer.param_groups()) {
    static_cast<torch::optim::SGDOptions&>(group.options()).lr(options.learning_rate * left);
  }
}

// Whether the job is told to end, and all ranks stop here to save a checkpoint. Without one they had better go on.
bool IsPreempted(Trainer& trainer, const Progress& progress) {
  if (trainer.options.checkpoints.empty()) return false;
  const auto stop = trainer.runtime->OnPreemption(static_cast<uint64_t>(trainer.StepOf(progress)));
  ThrowUnlessOk(stop.status(), "agreeing on a step to stop at");
  return *stop;
}

// The rest of a pass over the training set; returns the mean loss of these steps over all ranks. Nothing when the job
// is preempted: then `progress` is where it stopped.
std::optional<double> TrainEpoch(Trainer& trainer, Progress& progress) {
  const Digits& train = trainer.data.train;
  trainer::DistributedSampler sampler(train.count(), trainer.size(), trainer.rank(),
                                      {.shuffle = true, .seed = trainer.options.seed});
  sampler.set_epoch(static_cast<uint64_t>(progress.epochs));
  const at::Tensor indices = torch::tensor(sampler.indices());
  const int64_t local_batch = trainer.options.batch_size / trainer.size();
  trainer.net->train();
  std::vector<double> loss_sum(1, 0.0);
  const int64_t first = progress.steps;
  for (; progress.steps < trainer.steps_per_epoch(); ++progress.steps) {
    if (IsPreempted(trainer, progress)) return std::nullopt;
    const at::Tensor rows = indices.narrow(0, progress.steps * local_batch, local_batch);
    trainer.optimizer->zero_grad();
    const at::Tensor output = trainer.Forward(train.images.index_select(0, rows));
    const at::Tensor loss = torch::nll_loss(output, train.labels.index_select(0, rows).to(output.device()));
    loss.backward();
    trainer.optimizer->step();
    loss_sum[0] += loss.item<double>();
  }
  Sum(trainer, loss_sum);
  const double mean = loss_sum[0] / static_cast<double>((progress.steps - first) * trainer.size());
  progress = {progress.epochs + 1, 0};
  return mean;
}

// The share of the test set that is recognised; every rank looks at its part.
double TestAccuracy(Trainer& trainer) {
  const torch::NoGradGuard no_grad;
  const Digits& test = trainer.data.test;
  trainer.net->eval();
  const int64_t first = std::min<int64_t>(trainer.rank(), test.count());  // there may be fewer images than ranks
  const at::Tensor mine = torch::arange(first, test.count(), trainer.size());
  std::vector<double> counts(2, 0.0);
  // All ranks compute, because a sharded network needs them all.
  const at::Tensor rows = mine.numel() > 0 ? mine : torch::zeros({1}, torch::kLong);
  const at::Tensor guess = trainer.Forward(test.images.index_select(0, rows)).argmax(1).to(torch::kCPU);
  if (mine.numel() > 0) {
    counts[0] = guess.eq(test.labels.index_select(0, mine)).sum().item<double>();
    counts[1] = static_cast<double>(mine.numel());
  }
  Sum(trainer, counts);
  return counts[0] / counts[1];
}

// So that a full disk or a kill leaves no half-written file under `path`.
void Save(const Trainer& trainer, const std::string& path) {
  std::ostringstream weights;  // torch's own writer ends the process when the disk is full
  torch::save(std::static_pointer_cast<torch::nn::Module>(trainer.net), weights);
  ThrowUnlessOk(runtime::WriteWholeFile(path, weights.str()), "saving the weights");
}

// Finds the step to begin at: after the newest complete checkpoint, if there is one.
Progress Resume(Trainer& trainer) {
  const Options& options = trainer.options;
  if (!options.resume) return {};
  const auto loaded = trainer::LoadLatestTrainingState(
      *trainer.world, options.checkpoints, trainer.state, [&trainer](const std::string& why) {
        if (trainer.prints()) std::fprintf(stderr, "digits_trainer: %s; taking the one before\n", why.c_str());
      });
  if (!loaded.has_value()) return {};
  if (trainer.prints()) std::printf("resumed %s\n", loaded->directory.c_str());
  // Another size would make other steps of an epoch, and give later checkpoints lower numbers than older ones.
  if (loaded->values.contains("batch_size")) {
    const int64_t saved = trainer::WholeNumberOf(loaded->values, "batch_size");
    TORCH_CHECK(saved == options.batch_size, loaded->directory, " was saved with --batch-size ", saved,
                "; go on with the same, or begin from the start in another folder");
  }
  return {trainer::WholeNumberOf(loaded->values, "epochs"), trainer::WholeNumberOf(loaded->values, "steps")};
}

void MakeFolder(Trainer& trainer) {
  const std::string& folder = trainer.options.checkpoints;
  if (folder.empty()) return;
  trainer::TogetherOrNot(*trainer.world, "making " + folder, [&] {
    if (!trainer.prints()) return;
    std::filesystem::create_directories(folder);
    CheckWritable(folder);
  });
}

// Before training: what can't be written is said at once.
void PrepareToSave(Trainer& trainer) {
  MakeFolder(trainer);
  trainer.old_checkpoints.emplace("digits_trainer", trainer.options.keep, trainer.options.resume);
  if (!trainer.options.save.empty() && trainer.prints()) CheckOutputFile(trainer.options.save, "--save");
}

void SaveCheckpoint(Trainer& trainer, const Progress& progress) {
  const std::string& folder = trainer.options.checkpoints;
  if (folder.empty()) return;
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(trainer.StepOf(progress)));
  MakeFolder(trainer);
  trainer::SaveTrainingState(*trainer.world, folder + "/" + name, trainer.state,
                             {{"epochs", std::to_string(progress.epochs)},
                              {"steps", std::to_string(progress.steps)},
                              {"batch_size", std::to_string(trainer.options.batch_size)}});
  if (trainer.prints()) trainer.old_checkpoints->Prune(folder + "/" + name);
}

// Trains from `progress` to the end and returns true, or false where the job is preempted before.
bool Train(Trainer& trainer, Progress progress) {
  const int64_t epochs = trainer.options.epochs;
  double accuracy = progress.epochs < epochs ? 0 : TestAccuracy(trainer);
  while (progress.epochs < epochs) {
    const auto start = std::chrono::steady_clock::now();
    const int64_t steps = trainer.steps_per_epoch() - progress.steps;
    SetLearningRate(*trainer.optimizer, trainer.options, progress.epochs);
    const std::optional<double> loss = TrainEpoch(trainer, progress);
    if (!loss.has_value()) {
      SaveCheckpoint(trainer, progress);
      if (!trainer.prints()) return false;
      std::printf("preempted before step %lld of %lld, saved; --resume goes on\n",
                  static_cast<long long>(trainer.StepOf(progress)),
                  static_cast<long long>(epochs * trainer.steps_per_epoch()));
      return false;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    accuracy = TestAccuracy(trainer);
    if (trainer.prints()) {
      std::printf("epoch %2lld/%lld  loss %.4f  test accuracy %.4f  %6.0f images/s\n",
                  static_cast<long long>(progress.epochs), static_cast<long long>(epochs), *loss, accuracy,
                  static_cast<double>(steps * trainer.options.batch_size) / seconds.count());
      std::fflush(stdout);
    }
    SaveCheckpoint(trainer, progress);
  }
  if (trainer.prints()) std::printf("test accuracy %.4f\n", accuracy);
  return true;
}

void Run(Trainer& trainer) {
  SetUp(trainer);
  PrepareToSave(trainer);
  const bool whole_training = Train(trainer, Resume(trainer));
  if (whole_training && !trainer.options.save.empty()) {
    std::optional<trainer::SummonFullParams> whole;
    if (trainer.fsdp != nullptr) whole.emplace(*trainer.fsdp, /*writeback=*/false);
    if (trainer.prints()) Save(trainer, trainer.options.save);
  }
  if (trainer.runtime != nullptr) {
    trainer.state = {};
    trainer.ddp.reset();
    trainer.fsdp.reset();
    trainer.parallel.reset();
    trainer.optimizer.reset();
    trainer.mesh.reset();
    trainer.world.reset();
    ThrowUnlessOk(trainer.runtime->Finalize(), "ending");
  }
}

// Checks of options: each returns the defect.
std::string NotEmpty(const std::string& text) { return text.empty() ? "a name is missing" : ""; }

int Main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // the limit on files' size is an error with the file's name, not our end
  Trainer trainer;
  Options& options = trainer.options;
  CLI::App app("Trains a small convolutional network on 8x8 handwritten digits, data-parallel over the ranks.");
  app.footer(
      "Examples:\n  digits_trainer --single\n  dlaunch --nproc-per-node 2 digits_trainer --epochs 4\n"
      "  dlaunch --nnodes 2 --simulate-nodes 2 --simulate-gpus 4 --gpus-per-rank 2 digits_trainer");
  app.add_option("--seed", options.seed, "of the split, the initial weights and the order of images")
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "passes over the training set")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{100000}));
  app.add_option("--batch-size", options.batch_size, "images per step, of all ranks together")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--lr", options.learning_rate,
                 "learning rate of SGD with momentum 0.9 in the first epoch; falls linearly")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--mode", options.mode,
                 "what the ranks split: ddp nothing, zero1 the optimizer, zero2 gradients too, "
                 "fsdp parameters too, hsdp the same among a node's ranks; data_parallel: one process, all its devices")
      ->capture_default_str()
      ->check(CLI::IsMember({"ddp", "zero1", "zero2", "fsdp", "hsdp", "data_parallel"}));
  auto* single = app.add_flag("--single", options.single, "train in this process alone, without a job");
  auto* checkpoints =
      app.add_option("--checkpoints", options.checkpoints,
                     "keep a checkpoint of each epoch, and of the step where the job is preempted, in this folder")
          ->excludes(single)
          ->check(NotEmpty);
  app.add_option("--keep", options.keep, "newest checkpoints that stay, of this run's without --resume; 0: all")
      ->needs(checkpoints)
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  app.add_flag("--resume", options.resume, "go on from the newest checkpoint that is whole, if there is one")
      ->needs(checkpoints);
  app.add_option("--data", options.data, "the digits file, if not the one that comes along")->check(NotEmpty);
  app.add_option("--save", options.save, "rank 0 writes the final weights here (torch::save)")->check(NotEmpty);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // CLI11 would end with a code of its own for each kind of error
  }
  try {
    Run(trainer);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "digits_trainer: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "digits_trainer: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace cohort::examples

int main(int argc, char** argv) { return cohort::examples::Main(argc, argv); }
