// pipeline_rank: a pipeline whose layers only wait, beside the time that the simulator predicts. It runs as a rank of a
// job; the rank of the last stage prints a row for each schedule.
//
// Each layer waits --forward, --input and --weight milliseconds in its F, I and W; B is both of the last. Waiting takes
// no CPU, so more ranks than CPUs can do it at once. The measured time is the shortest of --steps steps. The idle share
// is that of the rank's devices in this step, without what its layers have really waited.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/local_device.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/parallel/pipeline/schedule/simulator.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::bench {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Options {
  int forward_ms = 40;
  int input_ms = 40;
  int weight_ms = 40;
  int micro_batches = 8;
  int steps = 3;
  int width = 256;
  std::string schedule;  // empty: all
};

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Time that this rank's layers have waited, on all devices together. Sleeping takes longer than asked for.
std::atomic<int64_t> waited_us{0};

void WaitFor(int64_t milliseconds) {
  const double begin = Seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  waited_us += static_cast<int64_t>((Seconds() - begin) * 1e6);
}

// The identity, whose backward pass takes its time.
struct Waits : torch::autograd::Function<Waits> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t milliseconds) {
    context->saved_data["milliseconds"] = milliseconds;
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    WaitFor(context->saved_data["milliseconds"].toInt());
    return {gradients[0], at::Tensor()};
  }
};

struct WaitingLayer : torch::nn::Module {
  explicit WaitingLayer(const Options& options) : options(options) {
    weight = register_parameter("weight", torch::ones({options.width}));
  }
  at::Tensor forward(const at::Tensor& x) {
    WaitFor(options.forward_ms);
    // The first stage's input needs no gradient, and its I takes no time; its weight waits for both then.
    const int64_t weight_ms = options.weight_ms + (x.requires_grad() ? 0 : options.input_ms);
    const at::Tensor w = Waits::apply(weight, weight_ms);
    return (x.requires_grad() ? Waits::apply(x, int64_t{options.input_ms}) : x) * w;
  }
  Options options;
  at::Tensor weight;
};

void Measure(trainer::Job& job, const std::string& name, const Options& options) {
  const std::vector<trainer::LocalDevice> devices = trainer::LocalDevices(job.runtime());
  const int per_rank = static_cast<int>(devices.size()), places = per_rank * job.size();
  const int stages = places * trainer::FindSchedule(name)->traits.least_stages_per_rank;
  const auto schedule = trainer::BuildSchedule(name, {places, stages, options.micro_batches});
  trainer::ThrowUnlessOk(schedule.status(), name);
  std::vector<trainer::PipelineStage> own;
  for (const int stage : StagesOf(*schedule, job.rank(), per_rank)) {
    own.emplace_back(stage, std::make_shared<WaitingLayer>(options));
  }
  trainer::PipelineOptions pipeline_options;
  pipeline_options.loss = [](const at::Tensor& output, const at::Tensor&) { return output.mean(); };
  pipeline_options.devices = devices;
  trainer::Pipeline pipeline(own, *schedule, job.world(), pipeline_options);
  const at::Tensor inputs = torch::ones({options.micro_batches, options.width});
  double shortest = 1e9, busy = 0;
  bool last = false;
  for (int step = 0; step < options.steps; ++step) {
    waited_us = 0;
    const double begin = Seconds();
    last = pipeline.step(inputs, inputs).loss.defined();
    trainer::ThrowUnlessOk(job.world().Barrier().Wait(), "the end of a step");
    const double took = Seconds() - begin;
    if (took >= shortest) continue;
    shortest = took;
    busy = static_cast<double>(waited_us) / 1e6 / per_rank;
  }
  trainer::Costs costs;
  costs.pass = {options.forward_ms, options.input_ms + options.weight_ms, options.input_ms, options.weight_ms};
  costs.by_stage.assign(static_cast<size_t>(stages), costs.pass);
  costs.by_stage[0].input_gradient = 0;
  costs.by_stage[0].weight_gradient = options.input_ms + options.weight_ms;
  const auto timing = SimulateSchedule(*schedule, costs);
  trainer::ThrowUnlessOk(timing.status(), name);
  if (!last) return;
  const double predicted = static_cast<double>(timing->total) / 1000;
  const double unsplit = static_cast<double>(stages * options.micro_batches) *
                         (options.forward_ms + options.input_ms + options.weight_ms) / 1000;
  std::printf(
      "%-12s %2d ranks x %d devices %3d micro-batches %8.1f ms, simulated %8.1f: %5.3f; idle %4.1f %%, simulated "
      "%4.1f; "
      "of unsplit time %5.3f\n",
      name.c_str(), job.size(), per_rank, options.micro_batches, shortest * 1e3, predicted * 1e3, shortest / predicted,
      (1 - busy / shortest) * 100, (1 - unsplit / places / predicted) * 100, shortest / unsplit);
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  cohort::bench::Options options;
  CLI::App app("Times pipelines of layers that only wait, beside the simulator.");
  app.add_option("--forward", options.forward_ms)->check(CLI::NonNegativeNumber);
  app.add_option("--input", options.input_ms)->check(CLI::NonNegativeNumber);
  app.add_option("--weight", options.weight_ms)->check(CLI::NonNegativeNumber);
  app.add_option("--micro-batches", options.micro_batches)->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  app.add_option("--schedule", options.schedule, "only this one");
  CLI11_PARSE(app, argc, argv);
  return cohort::trainer::RunRank("pipeline_rank", [&] {
    torch::set_num_threads(1);
    cohort::trainer::Job job;
    for (const auto& info : cohort::trainer::Schedules()) {
      if (!options.schedule.empty() && info.name != options.schedule) continue;
      cohort::bench::Measure(job, std::string(info.name), options);
    }
  });
}
