// Trains digits with FairScale's partition of optimizer state and gradients. The same as port_fairscale.py, line by
// line:
//
//   dlaunch --nproc-per-node 2 port_fairscale
#include <cstdio>

#include "cohort/trainer/data/distributed_sampler.h"
#include "cohort/trainer/examples/digits_data.h"
#include "cohort/trainer/examples/ports/argument_parser.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

using torch::nn::Linear;
using torch::optim::SGD;
using torch::optim::SGDOptions;

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return torch::log_softmax(out(torch::silu(hidden(x.flatten(1)))), 1); }

  Linear hidden = register_module("hidden", Linear(64, 128));
  Linear out = register_module("out", Linear(128, 10));
};

struct Arguments {
  int epochs = 8;
  double lr = 0.05;
};

void Train(const Arguments& args) {
  trainer::Job job;
  torch::manual_seed(0);
  const auto [train, test] = LoadDigits(FindDigits(), /*seed=*/0);
  auto net = std::make_shared<Net>();
  trainer::ZeroRedundancyOptimizer<SGD> optimizer(net->parameters(), job.world(), SGDOptions(args.lr).momentum(0.9),
                                                  {.partition = trainer::ZeroPartition::kInOrder});
  trainer::ShardedDataParallel<Net> model(net, optimizer, job.world());
  trainer::DistributedSampler sampler(train.count(), job.size(), job.rank());
  for (int epoch = 0; epoch < args.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    at::Tensor loss;
    for (const at::Tensor& rows : torch::tensor(sampler.indices()).split(24)) {
      const at::Tensor images = train.images.index_select(0, rows), labels = train.labels.index_select(0, rows);
      optimizer.zero_grad();
      loss = torch::nll_loss(model.forward(images), labels);
      loss.backward();
      optimizer.clip_grad_norm_(1.0);
      optimizer.step();
    }
    if (job.rank() == 0) std::printf("epoch %d: loss %.4f\n", epoch + 1, loss.item<double>());
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor correct = model.forward(test.images).argmax(1) == test.labels;
  if (job.rank() == 0) std::printf("test accuracy %.4f\n", correct.to(torch::kFloat32).mean().item<double>());
}

}  // namespace cohort::examples

int main(int argc, char** argv) {
  cohort::examples::Arguments args;
  cohort::examples::ArgumentParser parser("Trains digits with optimizer state and gradients split as FairScale does.");
  parser.AddCount("--epochs", args.epochs);
  parser.Add("--lr", args.lr);
  if (const auto end = parser.Parse(argc, argv)) return *end;
  return cohort::trainer::RunRank("port_fairscale", [&] { cohort::examples::Train(args); });
}
