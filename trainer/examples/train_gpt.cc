// Trains a small character-level GPT under any of the data-parallel modes or on a mesh, with checkpoints that any other
// of them and any number of ranks resume:
//
//   dlaunch --simulate-nodes 2 --nproc-per-node 2 train_gpt --mesh shard=2,tensor=2 --checkpoints /tmp/gpt
//   dlaunch --nproc-per-node 3 train_gpt --mode fsdp --checkpoints /tmp/gpt --resume
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
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cohort/trainer/base/bytes_text.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/examples/gpt_model.h"
#include "cohort/trainer/examples/gpt_plan.h"
#include "cohort/trainer/examples/gpt_training.h"
#include "cohort/trainer/examples/mesh_option.h"
#include "cohort/trainer/examples/old_checkpoints.h"
#include "cohort/trainer/examples/output_file.h"
#include "cohort/trainer/state/async_checkpoint.h"
#include "cohort/trainer/state/checkpoint/checkpoint_values.h"
#include "cohort/trainer/state/model_memory.h"
#include "cohort/trainer/state/training_state.h"
#include "cohort/trainer/transfer/autograd_collectives.h"
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
    if (training.prints()) std::printf("no checkpoint in %s: starting anew\n", options.checkpoints.c_str());
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

void Train(Training& training) {
  const Options& options = training.options;
  const int64_t first = Resume(training);
  if (first >= options.steps && training.prints()) {
    std::printf("already at step %lld, --steps is %lld\n", static_cast<long long>(first),
                static_cast<long long>(options.steps));
    std::fflush(stdout);
  }
  auto start = std::chrono::steady_clock::now();
  int64_t since = first;
  for (int64_t step = first; step < options.steps; ++step) {
    training.optimizer->zero_grad();
    const at::Tensor loss = LossAndGradients(training, BatchOf(training, /*train=*/true, step));
    const at::Tensor norm = training.clip_grad_norm(options.clip);
    training.optimizer->step();
    const int64_t done = step + 1;
    if (done % options.log_every == 0 || done == options.steps) {
      const double mean = Mean(training, loss.item<double>());
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      const double characters = static_cast<double>((done - since) * options.batch_size * options.model.context);
      if (training.prints()) {
        std::printf("step %4lld/%lld  loss %.6f  gradient norm %.6f  %7.0f characters/s  %s resident, %s model state\n",
                    static_cast<long long>(done), static_cast<long long>(options.steps), mean, norm.item<double>(),
                    characters / seconds.count(), trainer::BytesText(ResidentBytes()).c_str(),
                    trainer::BytesText(trainer::MeasureModelState(training.state).total()).c_str());
        std::fflush(stdout);
      }
      start = std::chrono::steady_clock::now();
      since = done;
    }
    if (!options.checkpoints.empty() && (done % options.save_every == 0 || done == options.steps)) {
      Save(training, done);
    }
  }
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
    at::Tensor logits = training.forward(codes.narrow(1, codes.size(1) - seen, seen)).select(1, seen - 1);
    if (training.tensor.size() > 1) {
      logits = trainer::gather_from_region(logits, training.tensor.group(), 1, training.options.model.vocabulary);
    }
    const at::Tensor next = torch::multinomial(torch::softmax(logits, 1), 1, false, generator);
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
  const trainer::MeshShape mesh = ParseModelMesh(options.mesh);
  TORCH_CHECK(mesh.ranks() == options.dry_run, "--mesh ", options.mesh, " is of ", mesh.ranks(),
              " ranks, and --dry-run says ", options.dry_run);
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
  SetUp(training);
  const Options& options = training.options;
  if (training.prints()) {
    int64_t elements = 0;
    for (const auto& parameter : training.state.parameters) elements += parameter.data.numel();
    std::printf("train_gpt: %d rank%s, %s, %lld of the parameters on rank 0, batch %lld x %lld characters\n",
                training.world->size(), training.world->size() == 1 ? "" : "s",
                options.mesh.empty() ? options.mode.c_str() : ("mesh " + options.mesh).c_str(),
                static_cast<long long>(elements), static_cast<long long>(options.batch_size),
                static_cast<long long>(options.model.context));
    std::fflush(stdout);
  }
  PrepareToWrite(training);
  Train(training);
  Export(training);
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

// Checks of options: each returns the defect.
std::string NotEmpty(const std::string& text) { return text.empty() ? "a name is missing" : ""; }

template <bool zero_too>
std::string Positive(const std::string& text) {
  double value = 0;
  if (CLI::detail::lexical_cast(text, value) && (zero_too ? value >= 0 && std::isfinite(value) : value > 0)) return "";
  return text + (zero_too ? " is no number from 0 on" : " is no positive number");
}

void AddCheckpointOptions(CLI::App& app, Options& options) {
  auto* checkpoints =
      app.add_option("--checkpoints", options.checkpoints, "keep checkpoints in this directory")->check(NotEmpty);
  app.add_option("--save-every", options.save_every, "steps between checkpoints")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--keep", options.keep, "newest checkpoints that stay, of this run's without --resume; 0: all")
      ->needs(checkpoints)
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  app.add_flag("--resume", options.resume, "go on from the newest checkpoint that is whole")->needs(checkpoints);
  app.add_option("--export", options.export_to, "write the final weights as one safetensors file, for Python")
      ->needs(checkpoints)
      ->check(NotEmpty);
}

// Options of models that are cut over a tensor or pipeline axis.
void AddCutOptions(CLI::App& app, Options& options) {
  app.add_flag("--sequence-parallel", options.sequence_parallel,
               "ranks of the tensor axis have parts of the sequence between layers");
  app.add_option("--chunks", options.chunks, "pieces of the tensor axis's collectives, which move beside products")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app.add_option("--schedule", options.schedule, "of the pipeline axis: gpipe, 1f1b, interleaved, zb_h1 or zbv")
      ->capture_default_str();
  app.add_option("--micro-batches", options.micro_batches,
                 "into which a rank's part of a batch is cut for the pipeline")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_flag("--tie-embeddings", options.model.tied, "the head has the weight of the token embedding");
}

int Main(int argc, char** argv) {
  Training training;
  Options& options = training.options;
  CLI::App app("Trains a small character-level GPT on Shakespeare, on one rank or on any mesh of ranks.");
  app.footer(
      "Examples:\n  train_gpt --steps 50\n  dlaunch --nproc-per-node 2 train_gpt --mode zero2\n"
      "  dlaunch --simulate-nodes 2 --nproc-per-node 2 train_gpt --mesh shard=2,tensor=2");
  auto* mode = app.add_option("--mode", options.mode, "ddp, zero1, zero2 or fsdp");
  mode->capture_default_str()->check(CLI::IsMember({"ddp", "zero1", "zero2", "fsdp"}));
  app.add_option("--mesh", options.mesh,
                 "ranks along pipeline, replicate, shard and tensor: shard=2,tensor=2; instead of --mode")
      ->excludes(mode)
      ->check(NotEmpty);
  app.add_option("--seed", options.seed, "of the initial weights, the batches and the sample")->capture_default_str();
  app.add_option("--steps", options.steps, "optimizer steps, from the beginning")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--batch-size", options.batch_size, "passages a step, of all ranks together")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--layers", options.model.layers, "blocks of the model")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  app.add_option("--width", options.model.width, "of its vectors, a multiple of 4")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{4}, int64_t{65536}));
  app.add_option("--context", options.model.context, "characters that it sees")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  app.add_option("--lr", options.learning_rate, "learning rate of AdamW; a resumed run has its checkpoint's")
      ->capture_default_str()
      ->check(Positive<true>);
  app.add_option("--clip", options.clip, "largest norm of the gradients")
      ->capture_default_str()
      ->check(Positive<false>);
  AddCheckpointOptions(app, options);
  app.add_option("--log-every", options.log_every, "steps between lines of progress")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_flag("--checkpoint-activations", options.checkpoint_activations,
               "compute blocks again in backward instead of keeping their activations");
  AddCutOptions(app, options);
  app.add_option("--dropout", options.model.dropout, "the same masks on any mesh")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.99));
  app.add_option("--dry-run", options.dry_run, "print what each of so many ranks would keep, and end")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--sample", options.sample, "characters to write at the end")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  app.add_option("--data", options.data, "the text, if not the one that comes along")->check(NotEmpty);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // CLI11 would end with a code of its own for each kind of error
  }
  try {
    Run(training);
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
