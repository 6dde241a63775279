// Trains digits with a DeepSpeed configuration of ZeRO stage 2. The same as port_deepspeed.py, line by line:
//
//   dlaunch --nproc-per-node 2 port_deepspeed --deepspeed_config port_deepspeed.json
#include <cstdio>

#include "cohort/trainer/compat/deepspeed_engine.h"
#include "cohort/trainer/data/distributed_sampler.h"
#include "cohort/trainer/examples/digits_data.h"
#include "cohort/trainer/examples/ports/argument_parser.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

using torch::nn::Linear;

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return torch::log_softmax(out(torch::silu(hidden(x.flatten(1)))), 1); }

  Linear hidden = register_module("hidden", Linear(64, 128));
  Linear out = register_module("out", Linear(128, 10));
};

struct Arguments {
  int epochs = 8;
  uint64_t seed = 0;
  std::string deepspeed_config;
};

void Train(const Arguments& args) {
  trainer::Job job;
  torch::manual_seed(args.seed);
  const auto [train, test] = LoadDigits(FindDigits(), /*seed=*/0);
  const auto config = trainer::ReadDeepSpeedConfig(args.deepspeed_config, job.size());
  trainer::DeepSpeedEngine<Net> engine(std::make_shared<Net>(), config, job.world());
  trainer::DistributedSampler sampler(train.count(), job.size(), job.rank());
  for (int epoch = 0; epoch < args.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    for (const at::Tensor& rows : torch::tensor(sampler.indices()).split(engine.train_micro_batch_size_per_gpu())) {
      const at::Tensor images = train.images.index_select(0, rows), labels = train.labels.index_select(0, rows);
      const at::Tensor loss = torch::nll_loss(engine.forward(images), labels);
      engine.backward(loss);
      engine.step();
    }
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor correct = engine.forward(test.images).argmax(1) == test.labels;
  if (job.rank() == 0) std::printf("test accuracy %.4f\n", correct.to(torch::kFloat32).mean().item<double>());
}

}  // namespace cohort::examples

int main(int argc, char** argv) {
  cohort::examples::Arguments args;
  cohort::examples::ArgumentParser parser("Trains digits with a DeepSpeed configuration.");
  parser.AddCount("--epochs", args.epochs);
  parser.Add("--seed", args.seed);
  parser.AddRequired("--deepspeed_config", args.deepspeed_config);
  if (const auto end = parser.Parse(argc, argv)) return *end;
  return cohort::trainer::RunRank("port_deepspeed", [&] { cohort::examples::Train(args); });
}
