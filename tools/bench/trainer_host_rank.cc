// trainer_host_rank: what DistributedDataParallel costs the host for each parameter, and FullyShardedDataParallel for
// each unit, beside the plain module. A rank of a job; rank 0 prints a row for each.
//
// A step is a forward and a backward pass of parameters so small that computing takes next to no time. Plain and
// wrapped steps alternate; the cost is the median of their differences, divided. On one rank that is bookkeeping alone;
// on several it includes the transfers of a step and the waiting for the other ranks.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "torch/torch.h"
#include "trainer/distributed_data_parallel.h"
#include "trainer/error.h"
#include "trainer/fully_sharded_data_parallel.h"
#include "trainer/job.h"

namespace cohort::bench {
namespace {

using trainer::DistributedDataParallel;
using trainer::FullyShardedDataParallel;

struct Options {
  int steps = 300;
  int parameters = 400;
  int units = 32;
};

// Each parameter scales the input.
struct Scales : torch::nn::Module {
  explicit Scales(int count) {
    for (int i = 0; i < count; ++i) {
      scales.push_back(register_parameter("scale" + std::to_string(i), torch::ones({16})));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const at::Tensor& scale : scales) x = x * scale;
    return x;
  }
  std::vector<at::Tensor> scales;
};

struct Layer : torch::nn::Module {
  Layer() { linear = register_module("linear", torch::nn::Linear(16, 16)); }
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  torch::nn::Linear linear{nullptr};
};

// Layers, each wrapped or not.
template <typename Each>
struct Stack : torch::nn::Module {
  Stack(int count, const std::function<std::shared_ptr<Each>()>& make) {
    for (int i = 0; i < count; ++i) layers.push_back(register_module("layer" + std::to_string(i), make()));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : layers) x = layer->forward(x);
    return x;
  }
  std::vector<std::shared_ptr<Each>> layers;
};

double FirstDecile(std::vector<double> values) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 10);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

template <typename Model>
double StepMicroseconds(Model& model) {
  const at::Tensor input = torch::ones({1, 16});
  const auto start = std::chrono::steady_clock::now();
  model.forward(input).sum().backward();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

// Prints the row of `wrapped` beside `plain`, which have `count` of `what`.
template <typename Plain, typename Wrapped>
void Compare(trainer::Job& job, const Options& options, const std::string& name, Plain& plain, Wrapped& wrapped,
             int count, const std::string& what, double target) {
  std::vector<double> plain_times, wrapped_times;
  const auto begin_together = [&] { trainer::ThrowUnlessOk(job.world().Barrier().Wait(), "beginning together"); };
  const auto slowest = [&](std::vector<double>& times) {
    const comm::Buffer buffer(times.data(), static_cast<int64_t>(times.size()));
    trainer::ThrowUnlessOk(job.world().AllReduce(buffer, buffer, comm::ReduceOp::kMax).Wait(), "comparing times");
  };
  const int warm_up = std::max(5, options.steps / 10);
  for (int step = -warm_up; step < options.steps; ++step) {
    begin_together();
    const double without = StepMicroseconds(plain);
    begin_together();
    const double with = StepMicroseconds(wrapped);
    if (step < 0) continue;
    plain_times.push_back(without);
    wrapped_times.push_back(with);
  }
  slowest(plain_times);
  slowest(wrapped_times);
  if (job.rank() != 0) return;
  const double without = FirstDecile(plain_times), with = FirstDecile(wrapped_times);
  const double cost = (with - without) / count;
  std::printf("%-34s %d rank%s  plain %8.1f us  wrapped %8.1f us  %7.3f us a %s (target %g: %s)\n", name.c_str(),
              job.size(), job.size() == 1 ? " " : "s", without, with, cost, what.c_str(), target,
              cost <= target ? "met" : "missed");
  std::fflush(stdout);
}

void MeasureDdp(trainer::Job& job, const Options& options) {
  constexpr double kTarget = 1;  // us a parameter
  for (const bool views : {false, true}) {
    auto plain = std::make_shared<Scales>(options.parameters), wrapped = std::make_shared<Scales>(options.parameters);
    trainer::DistributedDataParallelOptions ddp_options;
    ddp_options.gradient_as_bucket_view = views;
    DistributedDataParallel<Scales> ddp(wrapped, job.world(), ddp_options);
    Compare(job, options, views ? "DDP, gradient_as_bucket_view" : "DDP", *plain, ddp, options.parameters, "parameter",
            kTarget);
  }
}

void MeasureFsdp(trainer::Job& job, const Options& options) {
  constexpr double kTarget = 20;  // us a unit
  using Unit = FullyShardedDataParallel<Layer>;
  using trainer::ShardingStrategy;
  const std::vector<std::pair<std::string, ShardingStrategy>> strategies = {
      {"FSDP", ShardingStrategy::kFullShard}, {"FSDP, kShardGradOp", ShardingStrategy::kShardGradOp}};
  for (const auto& [name, strategy] : strategies) {
    trainer::FullyShardedDataParallelOptions fsdp_options;
    fsdp_options.sharding_strategy = strategy;
    Stack<Layer> plain(options.units, [] { return std::make_shared<Layer>(); });
    const auto units = std::make_shared<Stack<Unit>>(
        options.units, [&] { return std::make_shared<Unit>(std::make_shared<Layer>(), job.world(), fsdp_options); });
    const auto wrapped = std::make_shared<FullyShardedDataParallel<Stack<Unit>>>(units, job.world(), fsdp_options);
    Compare(job, options, name, plain, *wrapped, options.units, "unit", kTarget);
  }
}

void Measure(const Options& options) {
  torch::set_num_threads(1);
  trainer::Job job;
  MeasureDdp(job, options);
  MeasureFsdp(job, options);
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  cohort::bench::Options options;
  CLI::App app("Host cost of the wrappers; started by tools/bench/trainer_host under dlaunch.");
  app.add_option("--steps", options.steps, "steps of each kind")->capture_default_str()->check(CLI::Range(1, 1000000));
  app.add_option("--parameters", options.parameters, "of DDP's model")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--units", options.units, "of FSDP's model")->capture_default_str()->check(CLI::Range(1, 10000));
  CLI11_PARSE(app, argc, argv);
  return cohort::trainer::RunRank("trainer_host_rank", [&] { cohort::bench::Measure(options); });
}
