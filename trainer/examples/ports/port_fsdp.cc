// Trains digits with shards that are replicated (HSDP). The same as port_fsdp.py, line by line:
//
//   dlaunch --nproc-per-node 4 port_fsdp --replicate 2
#include <cstdio>

#include "cohort/trainer/data/distributed_sampler.h"
#include "cohort/trainer/examples/digits_data.h"
#include "cohort/trainer/examples/ports/argument_parser.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

using torch::nn::Linear;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using trainer::FullyShardedDataParallel;

struct Block : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::silu(up(x))); }

  Linear up = register_module("up", Linear(64, 256));
  Linear down = register_module("down", Linear(256, 64));
};

struct Net : torch::nn::Module {
  Net(int count, trainer::DeviceMesh& mesh) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(std::make_shared<FullyShardedDataParallel<Block>>(std::make_shared<Block>(), mesh));
      register_module("layer" + std::to_string(i), layers.back());
    }
    out = register_module("out", Linear(64, 10));
  }
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = images.flatten(1);
    for (const auto& layer : layers) x = layer->forward(x);
    return torch::log_softmax(out(x), 1);
  }

  std::vector<std::shared_ptr<FullyShardedDataParallel<Block>>> layers;
  Linear out{nullptr};
};

struct Arguments {
  int epochs = 8;
  double lr = 0.003;
  int replicate = 2;
};

void Train(const Arguments& args) {
  trainer::Job job;
  const auto mesh =
      trainer::init_device_mesh(job.world(), {args.replicate, job.size() / args.replicate}, {"replicate", "shard"});
  torch::manual_seed(0);
  const auto [train, test] = LoadDigits(FindDigits(), /*seed=*/0);
  auto model = std::make_shared<FullyShardedDataParallel<Net>>(std::make_shared<Net>(/*count=*/3, *mesh), *mesh);
  AdamW optimizer(model->parameters(), AdamWOptions(args.lr));
  trainer::DistributedSampler sampler(train.count(), job.size(), job.rank());
  for (int epoch = 0; epoch < args.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    at::Tensor loss;
    for (const at::Tensor& rows : torch::tensor(sampler.indices()).split(12)) {
      const at::Tensor images = train.images.index_select(0, rows), labels = train.labels.index_select(0, rows);
      optimizer.zero_grad();
      loss = torch::nll_loss(model->forward(images), labels);
      loss.backward();
      model->clip_grad_norm_(1.0);
      optimizer.step();
    }
    if (job.rank() == 0) std::printf("epoch %d: loss %.4f\n", epoch + 1, loss.item<double>());
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor correct = model->forward(test.images).argmax(1) == test.labels;
  if (job.rank() == 0) std::printf("test accuracy %.4f\n", correct.to(torch::kFloat32).mean().item<double>());
}

}  // namespace cohort::examples

int main(int argc, char** argv) {
  cohort::examples::Arguments args;
  cohort::examples::ArgumentParser parser("Trains digits with shards that are replicated.");
  parser.AddCount("--epochs", args.epochs);
  parser.Add("--lr", args.lr);
  parser.AddCount("--replicate", args.replicate);
  if (const auto end = parser.Parse(argc, argv)) return *end;
  return cohort::trainer::RunRank("port_fsdp", [&] { cohort::examples::Train(args); });
}
