#include "cohort/trainer/examples/gpt/gpt_options.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "CLI/CLI.hpp"
#include "c10/util/Exception.h"
#include "cohort/trainer/examples/gpt/gpt_pipeline.h"
#include "cohort/trainer/examples/mesh_option.h"
#include "cohort/trainer/mesh/axis.h"

namespace cohort::examples {
namespace {

using Options = TrainGptOptions;

// Checks of options: each returns the defect.
std::string NotEmpty(const std::string& text) { return text.empty() ? "a name is missing" : ""; }

template <bool zero_too>
std::string Positive(const std::string& text) {
  double value = 0;
  if (CLI::detail::lexical_cast(text, value) && (zero_too ? value >= 0 && std::isfinite(value) : value > 0)) return "";
  return text + (zero_too ? " is no number from 0 on" : " is no positive number");
}

// An option whose help is one line: it does not say the range.
template <typename Number>
CLI::Option* AddNumber(CLI::App& app, const std::string& name, Number& value, Number least, Number most,
                       const std::string& help) {
  return app.add_option(name, value, help)->capture_default_str()->check(CLI::Range(least, most).description(""));
}

void AddModelOptions(CLI::App& app, Options& options) {
  AddNumber(app, "--layers", options.model.layers, int64_t{1}, int64_t{1000}, "blocks of the model");
  AddNumber(app, "--width", options.model.width, int64_t{4}, int64_t{65536}, "of its vectors, a multiple of 4");
  AddNumber(app, "--context", options.model.context, int64_t{1}, int64_t{4096}, "characters that it sees");
  app.add_flag("--tie-embeddings", options.model.tied, "the head has the weight of the token embedding");
  AddNumber(app, "--dropout", options.model.dropout, 0.0, 0.99, "the same masks on any mesh");
}

void AddTrainingOptions(CLI::App& app, Options& options) {
  app.add_option("--seed", options.seed, "of the initial weights, the batches and the sample")->capture_default_str();
  AddNumber(app, "--steps", options.steps, int64_t{1}, int64_t{1} << 40, "optimizer steps, from the beginning");
  AddNumber(app, "--batch-size", options.batch_size, int64_t{1}, int64_t{1} << 20,
            "passages a step, of all ranks together");
  app.add_option("--lr", options.learning_rate, "learning rate of AdamW; a resumed run has its checkpoint's")
      ->capture_default_str()
      ->check(Positive<true>);
  app.add_option("--clip", options.clip, "largest norm of the gradients")
      ->capture_default_str()
      ->check(Positive<false>);
  app.add_flag("--checkpoint-activations", options.checkpoint_activations,
               "compute blocks again in backward instead of keeping their activations");
  AddNumber(app, "--log-every", options.log_every, int64_t{1}, int64_t{1} << 40, "steps between lines of progress");
  app.add_option("--peak-flops", options.peak_flops, "of a rank, a second: progress has the share of it (MFU)")
      ->check(Positive<false>);
  app.add_flag("--traffic", options.traffic, "print what the last step has sent, by axis of the mesh");
  AddNumber(app, "--sample", options.sample, int64_t{0}, int64_t{1} << 30, "characters to write at the end");
  app.add_option("--data", options.data, "the text, if not the one that comes along")->check(NotEmpty);
}

void AddCheckpointOptions(CLI::App& app, Options& options) {
  auto* checkpoints =
      app.add_option("--checkpoints", options.checkpoints, "keep checkpoints in this directory")->check(NotEmpty);
  AddNumber(app, "--save-every", options.save_every, int64_t{1}, int64_t{1} << 40, "steps between checkpoints");
  AddNumber(app, "--keep", options.keep, int64_t{0}, int64_t{1} << 40,
            "newest checkpoints that stay, of this run's without --resume; 0: all")
      ->needs(checkpoints);
  app.add_flag("--resume", options.resume, "go on from the newest checkpoint that is whole")->needs(checkpoints);
  app.add_option("--export", options.export_to, "write the final weights as one safetensors file, for Python")
      ->needs(checkpoints)
      ->check(NotEmpty);
}

// Options of models that are cut over a tensor or pipeline axis.
void AddCutOptions(CLI::App& app, Options& options) {
  app.add_flag("--sequence-parallel", options.sequence_parallel,
               "ranks of the tensor axis have parts of the sequence between layers");
  AddNumber(app, "--chunks", options.chunks, 1, 64, "pieces of the tensor axis's collectives, beside products");
  app.add_option("--schedule", options.schedule, "of the pipeline axis: gpipe, 1f1b, interleaved, zb_h1 or zbv")
      ->capture_default_str();
  AddNumber(app, "--micro-batches", options.micro_batches, 1, 1 << 20,
            "into which a rank's part of a batch is cut for the pipeline");
}

// Options of adapters. --dry-run plans the training of all weights, in float32.
void AddAdapterOptions(CLI::App& app, Options& options, CLI::Option* dry_run) {
  app.add_option("--base", options.base, "begin with the weights of the newest checkpoint in this directory")
      ->check(NotEmpty);
  auto* lora = AddNumber(app, "--lora", options.lora, int64_t{1}, int64_t{1} << 20,
                         "train adapters of this rank (LoRA) in place of the weights");
  lora->excludes(dry_run);
  app.add_option("--lora-alpha", options.lora_alpha, "adapters count alpha / rank; twice the rank unless set")
      ->needs(lora)
      ->check(Positive<false>);
  app.add_option("--lora-targets", options.lora_targets, "layers with adapters: all-linear, or names")
      ->needs(lora)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--export-adapter", options.export_adapter, "write the adapters in this directory, for peft")
      ->needs(lora)
      ->check(NotEmpty);
}

}  // namespace

void AddOptions(CLI::App& app, TrainGptOptions& options) {
  auto* mode = app.add_option("--mode", options.mode, "ddp, zero1, zero2 or fsdp");
  mode->capture_default_str()->check(CLI::IsMember({"ddp", "zero1", "zero2", "fsdp"}).description(""));
  app.add_option("--mesh", options.mesh, "ranks by axis: pipeline=2,replicate=2,shard=2,tensor=2")
      ->excludes(mode)
      ->check(NotEmpty);
  AddCutOptions(app, options);
  AddModelOptions(app, options);
  AddTrainingOptions(app, options);
  AddCheckpointOptions(app, options);
  auto* dry_run = AddNumber(app, "--dry-run", options.dry_run, 1, 1 << 16,
                            "print what each of N ranks would keep and send, and end");
  AddNumber(app, "--accumulate", options.accumulate, 1, 1 << 20,
            "parts into which a rank's rows of a batch are cut, one after another (gradient accumulation)")
      ->excludes(dry_run);
  app.add_option("--dtype", options.dtype, "to compute in: float32 or bfloat16; weights stay float32")
      ->capture_default_str()
      ->excludes(dry_run)
      ->check(CLI::IsMember({"float32", "bfloat16"}).description(""));
  AddAdapterOptions(app, options, dry_run);
}

void CheckAxesOfOptions(const CLI::App& app, const TrainGptOptions& options) {
  std::vector<std::string> axes;
  if (!options.mesh.empty()) AsUsage([&] { axes = ParseModelMesh(options.mesh).names; });
  const auto has = [&](const char* axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); };
  const std::pair<const char*, const char*> needs[] = {{"--sequence-parallel", trainer::kTensorAxis},
                                                       {"--chunks", trainer::kTensorAxis},
                                                       {"--schedule", trainer::kPipelineAxis},
                                                       {"--micro-batches", trainer::kPipelineAxis}};
  if (app.count("--accumulate") > 0 && has(trainer::kPipelineAxis)) {
    throw UsageError("a pipeline accumulates over its micro-batches: give --micro-batches in place of --accumulate");
  }
  for (const auto& [option, axis] : needs) {
    if (app.count(option) == 0 || has(axis)) continue;
    throw UsageError(c10::str(option, " acts on the ", axis, " axis, and ",
                              options.mesh.empty() ? "there is no --mesh" : "--mesh " + options.mesh + " has none",
                              ": give --mesh ", axis, "=N, or leave ", option, " out"));
  }
  if (app.count("--sample") > 0 && options.sample > 0 && has(trainer::kPipelineAxis)) {
    throw UsageError("--sample writes one character at a time, and a pipeline takes whole batches: give --sample 0");
  }
}

void AsUsage(const std::function<void()>& check) {
  try {
    check();
  } catch (const c10::Error& error) {
    throw UsageError(error.what_without_backtrace());
  }
}

void CheckOptions(const TrainGptOptions& options, int ranks) {
  AsUsage([&] {
    int data_ranks = ranks, parts = options.accumulate;
    if (!options.mesh.empty()) {
      const trainer::MeshShape mesh = ParseModelMesh(options.mesh);
      TORCH_CHECK(mesh.ranks() == ranks, "--mesh ", options.mesh, " is of ", mesh.ranks(), " ranks, and there ",
                  ranks == 1 ? "is " : "are ", ranks);
      for (size_t i = 0; i < mesh.names.size(); ++i) {
        if (mesh.names[i] == trainer::kTensorAxis) data_ranks /= mesh.sizes[i];
        if (mesh.names[i] != trainer::kPipelineAxis) continue;
        data_ranks /= mesh.sizes[i];
        parts = ScheduleOf(options, mesh.sizes[i]).micro_batches;
      }
    }
    TORCH_CHECK(options.model.width % options.model.heads == 0, "--width ", options.model.width,
                " can't be shared evenly by ", options.model.heads, " heads");
    const bool accumulates = options.accumulate > 1;
    TORCH_CHECK(options.batch_size % (int64_t{data_ranks} * parts) == 0, "a batch of ", options.batch_size,
                " passages can't be shared evenly by ", data_ranks, " ranks",
                parts > 1 ? c10::str(", in ", parts, accumulates ? " parts each" : " micro-batches each") : "",
                "; choose another --batch-size",
                parts == 1    ? ""
                : accumulates ? " or --accumulate"
                              : " or --micro-batches");
  });
}

}  // namespace cohort::examples
