// Trains a head of very many classes, cut over the ranks with TorchShard's API, and its loss, and says how much memory
// a rank needs: here of the host. The same as port_million_classes.py:
//
//   dlaunch --nproc-per-node 4 port_million_classes --classes 1000000
#include <sys/resource.h>

#include <chrono>
#include <cstdio>

#include "cohort/trainer/examples/ports/argument_parser.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/torchshard/convert.h"
#include "cohort/trainer/torchshard/distributed.h"
#include "cohort/trainer/torchshard/head_memory.h"
#include "cohort/trainer/torchshard/layers.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

namespace ts = trainer::torchshard;

struct Net : torch::nn::Module {
  Net(int64_t features, int64_t classes) {
    body = register_module("body", torch::nn::Sequential(torch::nn::Linear(features, features), torch::nn::ReLU()));
    head = register_module("head", ts::nn::ParallelLinear(ts::nn::ParallelLinearOptions(features, classes).dim(1)));
  }
  at::Tensor forward(const at::Tensor& images) { return head(ts::distributed::gather(body->forward(images), 0)); }

  torch::nn::Sequential body{nullptr};
  ts::nn::ParallelLinear head{nullptr};
};

// The largest memory that this process has had, in MiB.
double PeakMiB() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

struct Arguments {
  int64_t classes = 1'000'000, features = 64, batch_size = 64;
  int steps = 5;
  double lr = 1;
};

void Train(const Arguments& args) {
  trainer::Job job;
  ts::distributed::init_process_group(job.world());
  TORCH_CHECK(args.batch_size % job.size() == 0, "--batch-size ", args.batch_size, " does not divide by ", job.size());
  torch::manual_seed(0);
  const double before = PeakMiB();
  auto model = std::make_shared<Net>(args.features, args.classes);
  trainer::DistributedDataParallelOptions options;
  options.ignored_parameters = ts::register_ddp_parameters_to_ignore(*model);
  trainer::DistributedDataParallel ddp(model, job.world(), options);
  ts::nn::ParallelCrossEntropyLoss criterion(trainer::VocabParallelCrossEntropyOptions().num_classes(args.classes));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(args.lr).momentum(0.9));
  torch::manual_seed(job.rank());
  const at::Tensor images = torch::randn({args.batch_size / job.size(), args.features});
  const at::Tensor labels = torch::randint(args.classes, {args.batch_size / job.size()}, torch::kLong);
  for (int step = 0; step < args.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    // zero_grad of libtorch 1.13 would keep the memory.
    for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    const at::Tensor logits = ddp.forward(images);
    const at::Tensor loss = criterion(logits, ts::distributed::gather(labels, 0));
    loss.backward();
    optimizer.step();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (job.rank() == 0) std::printf("step %d: loss %.4f, %.2f s\n", step + 1, loss.item<double>(), seconds.count());
  }
  const int64_t predicted = ts::PredictHeadMemory(
      {.features = args.features, .classes = args.classes, .batch = args.batch_size, .ranks = job.size()});
  std::printf("%ld classes: %.0f MiB, by formula %.0f MiB\n", static_cast<long>(model->head->weight.size(0)),
              PeakMiB() - before, static_cast<double>(predicted) / (1 << 20));
  ts::distributed::destroy_process_group();
}

}  // namespace cohort::examples

int main(int argc, char** argv) {
  cohort::examples::Arguments args;
  cohort::examples::ArgumentParser parser("Trains a head of very many classes that are cut over the ranks.");
  parser.AddCount("--classes", args.classes);
  parser.AddCount("--features", args.features);
  parser.AddCount("--batch-size", args.batch_size);
  parser.AddCount("--steps", args.steps);
  parser.Add("--lr", args.lr);
  if (const auto end = parser.Parse(argc, argv)) return *end;
  return cohort::trainer::RunRank("port_million_classes", [&] { cohort::examples::Train(args); });
}
