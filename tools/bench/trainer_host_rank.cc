// trainer_host_rank: the cost of DistributedDataParallel on the host for each parameter, and of
// FullyShardedDataParallel for each unit, beside the plain module. It runs as a rank of a job; rank 0 prints a row for
// each.
//
// A step is a forward and a backward pass of parameters so small that computing takes next to no time. Plain and
// wrapped steps alternate. The excess of a wrapped step over a plain one is split, for each parameter or unit:
//
//   host      bookkeeping and the calls that start operations; this is what the targets are about
//   of it     the calls alone
//   waiting   in Work::Wait: for the other ranks, and moving the data, which the waiting thread does
//
// Each figure is the first decile over the steps, of each step's slowest rank.
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
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/transfer/communication_timer.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

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

// Microseconds of steps, one of each for every step.
struct Times {
  std::vector<double> whole, calling, waiting, host;  // host: the whole without waiting
};

template <typename Model>
void Step(Model& model, Times& times) {
  const at::Tensor input = torch::ones({1, 16});
  const trainer::CommunicationTimer timer;
  const auto start = std::chrono::steady_clock::now();
  model.forward(input).sum().backward();
  const std::chrono::duration<double, std::micro> whole = std::chrono::steady_clock::now() - start;
  times.whole.push_back(whole.count());
  times.calling.push_back(timer.calling() * 1e6);
  times.waiting.push_back(timer.waiting() * 1e6);
  times.host.push_back(whole.count() - times.waiting.back());
}

// The first decile of what the slowest rank took. Collective.
double Slowest(trainer::Job& job, std::vector<double>& times) {
  const comm::Buffer buffer(times.data(), static_cast<int64_t>(times.size()));
  trainer::ThrowUnlessOk(job.world().AllReduce(buffer, buffer, comm::ReduceOp::kMax).Wait(), "comparing times");
  return FirstDecile(times);
}

// Prints the row of `wrapped` beside `plain`, which have `count` of `what`.
template <typename Plain, typename Wrapped>
void Compare(trainer::Job& job, const Options& options, const std::string& name, Plain& plain, Wrapped& wrapped,
             int count, const std::string& what, double target) {
  Times plain_times, wrapped_times;
  const auto begin_together = [&] { trainer::ThrowUnlessOk(job.world().Barrier().Wait(), "beginning together"); };
  const int warm_up = std::max(5, options.steps / 10);
  for (int step = -warm_up; step < options.steps; ++step) {
    if (step == 0) plain_times = wrapped_times = {};
    begin_together();
    Step(plain, plain_times);
    begin_together();
    Step(wrapped, wrapped_times);
  }
  const double without = Slowest(job, plain_times.whole), with = Slowest(job, wrapped_times.whole);
  const double host = (Slowest(job, wrapped_times.host) - without) / count;
  const double calling = Slowest(job, wrapped_times.calling) / count;
  const double waiting = Slowest(job, wrapped_times.waiting) / count;
  if (job.rank() != 0) return;
  std::printf(
      "%-28s %d rank%s  plain %7.1f  wrapped %7.1f us  a %-9s host %7.3f  of it calls %6.3f  waiting %7.3f us  "
      "(target %g: %s)\n",
      name.c_str(), job.size(), job.size() == 1 ? " " : "s", without, with, what.c_str(), host, calling, waiting,
      target, host <= target ? "met" : "missed");
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
