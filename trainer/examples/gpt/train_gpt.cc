// Trains a small character-level GPT under any of the data-parallel modes or on a mesh, with checkpoints that any other
// of them and any number of ranks resume:
//
//   dlaunch --simulate-nodes 2 --nproc-per-node 2 train_gpt --mesh shard=2,tensor=2 --checkpoints /tmp/gpt
//   dlaunch --nproc-per-node 3 train_gpt --mode fsdp --checkpoints /tmp/gpt --resume
//   dlaunch --nproc-per-node 2 train_gpt --mesh pipeline=2 --base /tmp/gpt --lora 8 --export-adapter /tmp/adapter
//
// The batch of a step depends on the step alone, so the mode and the number of ranks change rounding and nothing else.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cohort/runtime/ranges.h"
#include "cohort/trainer/base/bytes_text.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/examples/gpt/gpt_adapter.h"
#include "cohort/trainer/examples/gpt/gpt_flops.h"
#include "cohort/trainer/examples/gpt/gpt_model.h"
#include "cohort/trainer/examples/gpt/gpt_options.h"
#include "cohort/trainer/examples/gpt/gpt_plan.h"
#include "cohort/trainer/examples/gpt/gpt_traffic.h"
#include "cohort/trainer/examples/gpt/gpt_training.h"
#include "cohort/trainer/examples/mesh_option.h"
#include "cohort/trainer/examples/old_checkpoints.h"
#include "cohort/trainer/examples/output_file.h"
#include "cohort/trainer/state/async_checkpoint.h"
#include "cohort/trainer/state/checkpoint/checkpoint_folder.h"
#include "cohort/trainer/state/checkpoint/checkpoint_values.h"
#include "cohort/trainer/state/model_memory.h"
#include "cohort/trainer/state/training_state.h"
#include "cohort/trainer/transfer/autograd_collectives.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "torch/torch.h"

namespace cohort::examples {
namespace {

using Options = TrainGptOptions;

double ValidationLoss(Training& training) {
  const torch::NoGradGuard no_grad;
  training.module->eval();
  double sum = 0;
  constexpr int kBatches = 4;
  for (int i = 0; i < kBatches; ++i) {
    sum += Loss(training, BatchOf(training, /*train=*/false, i)).item<double>();
  }
  training.module->train();
  return Mean(training, sum / kBatches);
}

int64_t Resume(Training& training) {
  const Options& options = training.options;
  if (!options.resume) return 0;
  const auto loaded = trainer::LoadLatestTrainingState(
      *training.world, options.checkpoints, training.state, [&](const std::string& why) {
        if (training.prints()) std::fprintf(stderr, "train_gpt: %s; taking the one before\n", why.c_str());
      });
  if (!loaded.has_value()) {
    if (training.prints()) std::printf("no checkpoint in %s: starting at step 0\n", options.checkpoints.c_str());
    return 0;
  }
  training.last_checkpoint = loaded->directory;
  if (training.prints()) std::printf("resumed %s\n", loaded->directory.c_str());
  return trainer::WholeNumberOf(loaded->values, "step");
}

void MakeFolder(Training& training) {
  if (training.options.checkpoints.empty()) return;
  trainer::TogetherOrNot(*training.world, "making " + training.options.checkpoints, [&] {
    if (!training.prints()) return;
    std::filesystem::create_directories(training.options.checkpoints);
    CheckWritable(training.options.checkpoints);
  });
}

// Before training, so that what can't be written is said at once.
void PrepareToWrite(Training& training) {
  MakeFolder(training);
  const Options& options = training.options;
  if (training.prints() && !options.resume && !options.checkpoints.empty()) {
    const std::vector<std::string> others = trainer::CheckpointsIn(options.checkpoints);
    if (!others.empty()) {
      std::fprintf(stderr,
                   "train_gpt: %s is of an earlier run, and --resume would go on from it where this run's numbers are "
                   "lower: give each run a folder of its own\n",
                   others.front().c_str());
    }
  }
  training.old_checkpoints = std::make_unique<OldCheckpoints>("train_gpt", options.keep, options.resume);
  trainer::TogetherOrNot(*training.world, "preparing to export", [&] {
    if (!options.export_to.empty() && training.prints()) CheckOutputFile(options.export_to, "--export");
  });
}

// The checkpoint that was being written, on all ranks; older ones go.
void FinishSaving(Training& training) {
  if (training.checkpointer == nullptr) return;
  training.checkpointer->Wait();
  if (training.prints()) training.old_checkpoints->Prune(training.last_checkpoint);
}

void Save(Training& training, int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  MakeFolder(training);
  FinishSaving(training);
  if (training.checkpointer == nullptr) {
    training.checkpointer = std::make_unique<trainer::AsyncCheckpointer>(*training.world);
  }
  training.last_checkpoint = training.options.checkpoints + "/" + name;
  training.checkpointer->Save(training.last_checkpoint, training.state, {{"step", std::to_string(step)}});
}

// The memory of this process now, as the kernel counts it; 0 if the kernel does not say.
int64_t ResidentBytes() {
  int64_t all = 0, resident = 0;  // pages
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Prints a line about the last `steps` steps, which took `seconds`.
void PrintProgress(const Training& training, int64_t done, int64_t steps, double seconds, double loss, double norm) {
  const Options& options = training.options;
  if (!training.prints()) return;
  const double tokens = static_cast<double>(steps * options.batch_size * options.model.context);
  std::printf("step %4lld/%lld  loss %.6f  gradient norm %.6f  %7.0f tokens/s  %s  %s resident, %s model state\n",
              static_cast<long long>(done), static_cast<long long>(options.steps), loss, norm, tokens / seconds,
              FlopsText(options, FlopsOf(options, training.trainable), static_cast<double>(steps) / seconds,
                        training.world->size())
                  .c_str(),
              trainer::BytesText(ResidentBytes()).c_str(),
              trainer::BytesText(trainer::MeasureModelState(training.state).total()).c_str());
  std::fflush(stdout);
}

void Train(Training& training) {
  const Options& options = training.options;
  const int64_t first = Resume(training);
  if (first >= options.steps && training.prints()) {
    std::printf("already at step %lld, --steps is %lld\n", static_cast<long long>(first),
                static_cast<long long>(options.steps));
    std::fflush(stdout);
  }
  std::optional<trainer::CommunicationLedger> ledger;
  auto start = std::chrono::steady_clock::now();
  int64_t since = first;
  for (int64_t step = first; step < options.steps; ++step) {
    if (options.traffic && step + 1 == options.steps) ledger.emplace();
    runtime::MarkStep(static_cast<uint64_t>(step));
    training.optimizer->zero_grad();
    const at::Tensor loss = LossAndGradients(training, BatchOf(training, /*train=*/true, step));
    const at::Tensor norm = training.clip_grad_norm(options.clip);
    {
      const runtime::Range shown("optimizer", runtime::RangeLane::kPasses);
      training.optimizer->step();
    }
    const int64_t done = step + 1;
    if (done % options.log_every == 0 || done == options.steps) {
      const double mean = Mean(training, loss.item<double>());
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      PrintProgress(training, done, done - since, seconds.count(), mean, norm.item<double>());
      start = std::chrono::steady_clock::now();
      since = done;
    }
    if (ledger.has_value()) {
      const std::string table = TrafficTable(training, *ledger);
      if (training.prints()) std::fputs(table.c_str(), stdout);
    }
    if (!options.checkpoints.empty() && (done % options.save_every == 0 || done == options.steps)) {
      Save(training, done);
    }
  }
  runtime::MarkStep(static_cast<uint64_t>(options.steps));  // ends the last one
}

// This run's last checkpoint, whole, as a file that Python reads: a folder may have others', of higher numbers.
void Export(Training& training) {
  const Options& options = training.options;
  FinishSaving(training);
  if (options.export_to.empty()) return;
  trainer::TogetherOrNot(*training.world, "exporting " + options.export_to, [&] {
    if (!training.prints()) return;
    trainer::ExportSafetensors(training.last_checkpoint, options.export_to);
    std::printf("exported %s as %s\n", training.last_checkpoint.c_str(), options.export_to.c_str());
  });
}

// Lets the model continue a beginning. All ranks compute, because sharded models need them all.
std::string Sample(Training& training, const std::string& beginning) {
  const torch::NoGradGuard no_grad;
  training.module->eval();
  at::Generator generator = at::detail::createCPUGenerator(training.options.seed);
  at::Tensor codes = training.text->Encode(beginning).unsqueeze(0);
  if (codes.numel() == 0) codes = torch::zeros({1, 1}, torch::kInt64);  // a text without any of these characters
  for (int64_t i = 0; i < training.options.sample; ++i) {
    const int64_t seen = std::min(codes.size(1), training.options.model.context);
    at::Tensor logits = training.forward(codes.narrow(1, codes.size(1) - seen, seen).to(training.device))
                            .select(1, seen - 1)
                            .to(torch::kFloat);
    if (training.tensor.size() > 1) {
      logits = trainer::gather_from_region(logits, training.tensor.group(), 1, training.options.model.vocabulary);
    }
    const at::Tensor next = torch::multinomial(torch::softmax(logits.cpu(), 1), 1, false, generator);
    codes = torch::cat({codes, next}, 1);
  }
  return training.text->Decode(codes);
}

// Prints what each of `options.dry_run` ranks would keep, and on a mesh also what it sends, from the sizes alone.
void DryRun(Options options) {
  options.model.vocabulary = Text(options.data.empty() ? FindShakespeare() : options.data).vocabulary();
  const std::vector<std::vector<int64_t>> parameters = GptSizes(options.model);
  if (options.mesh.empty()) {
    const trainer::ModelStateFormula formula = {.mode = trainer::DataParallelModeOf(options.mode),
                                                .shards = options.dry_run};
    std::fputs(trainer::ModelStateTable(parameters, formula).c_str(), stdout);
    return;
  }
  CheckOptions(options, options.dry_run);
  const trainer::MeshShape mesh = ParseModelMesh(options.mesh);
  int64_t elements = 0;
  for (const auto& each : parameters) {
    elements += std::accumulate(each.begin(), each.end(), int64_t{1}, std::multiplies<>());
  }
  std::printf("%lld parameters over %d ranks, %s\n%s%s", static_cast<long long>(elements), options.dry_run,
              mesh.Describe().c_str(), PlanTable(PlanGpt(options, mesh), mesh).c_str(),
              IdleText(options, mesh).c_str());
}

void Run(Training& training) {
  if (training.options.dry_run > 0) return DryRun(training.options);
  Join(training);
  SetUp(training);
  const Options& options = training.options;
  if (training.prints()) {
    int64_t elements = 0;
    for (const auto& parameter : training.state.parameters) elements += parameter.data.numel();
    std::printf("train_gpt: %d rank%s on %s, %s, %lld of the parameters on rank 0, batch %lld x %lld characters\n",
                training.world->size(), training.world->size() == 1 ? "" : "s", training.device.str().c_str(),
                options.mesh.empty() ? options.mode.c_str() : ("mesh " + options.mesh).c_str(),
                static_cast<long long>(elements), static_cast<long long>(options.batch_size),
                static_cast<long long>(options.model.context));
    if (training.lora != nullptr) std::printf("%s\n", AdapterText(training).c_str());
    std::fflush(stdout);
  }
  PrepareToWrite(training);
  Train(training);
  Export(training);
  ExportAdapter(training);
  const double loss = ValidationLoss(training);
  // A pipeline takes whole batches, and gives the logits to the last stage alone.
  const bool samples = options.sample > 0 && training.pipeline == nullptr;
  const std::string sample = samples ? Sample(training, "KING:\n") : "";
  if (training.prints()) {
    if (!sample.empty()) std::printf("----\n%s\n----\n", sample.c_str());
    const trainer::ModelStateBytes bytes = trainer::MeasureModelState(training.state);
    std::printf(
        "model state %s on rank 0: parameters %s, gradients %s, optimizer %s, buffers %s\nvalidation loss %.9f\n",
        trainer::BytesText(bytes.total()).c_str(), trainer::BytesText(bytes.parameters).c_str(),
        trainer::BytesText(bytes.gradients).c_str(), trainer::BytesText(bytes.optimizer).c_str(),
        trainer::BytesText(bytes.buffers).c_str(), loss);
  }
  TearDown(training);
}

int Main(int argc, char** argv) {
  Training training;
  Options& options = training.options;
  CLI::App app("Trains a small character-level GPT on Shakespeare, on one rank or on any mesh of ranks.");
  app.footer(
      "Examples:\n  dlaunch --nproc-per-node 2 train_gpt --mode zero2\n"
      "  dlaunch --nproc-per-node 4 train_gpt --mesh replicate=2,shard=2\n"
      "  dlaunch --nproc-per-node 2 train_gpt --mesh tensor=2 --sequence-parallel\n"
      "  dlaunch --nproc-per-node 2 train_gpt --mesh pipeline=2 --schedule zbv --micro-batches 8\n"
      "  train_gpt --dry-run 8 --mesh pipeline=2,shard=2,tensor=2");
  app.get_formatter()->column_width(44);
  AddOptions(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // CLI11 would end with a code of its own for each kind of error
  }
  try {
    CheckAxesOfOptions(app, options);
    training.command_line = app.config_to_str(/*default_also=*/true);
    Run(training);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what());
    return 2;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace cohort::examples

int main(int argc, char** argv) { return cohort::examples::Main(argc, argv); }
