// Classifies digits with TorchShard's API: a data-parallel backbone, and a head whose classes are cut over the ranks.
// The same as port_torchshard.py; here the classes need not divide by the ranks:
//
//   dlaunch --nproc-per-node 4 port_torchshard --group-size 2
#include <cstdio>

#include "cohort/trainer/data/distributed_sampler.h"
#include "cohort/trainer/examples/digits_data.h"
#include "cohort/trainer/examples/ports/argument_parser.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/torchshard/convert.h"
#include "cohort/trainer/torchshard/distributed.h"
#include "cohort/trainer/torchshard/layers.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

namespace ts = trainer::torchshard;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::SiLU;

struct Net : torch::nn::Module {
  explicit Net(int64_t classes) {
    features = register_module("features", torch::nn::Sequential(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), SiLU(),
                                                                 Conv2d(Conv2dOptions(16, 32, 3).padding(1)), SiLU(),
                                                                 torch::nn::AvgPool2d(2), torch::nn::Flatten()));
    head = register_module("head", ts::nn::ParallelLinear(32 * 4 * 4, classes));
  }
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = features->forward(images);
    x = ts::distributed::gather(x, 0);
    return head(x);
  }

  torch::nn::Sequential features{nullptr};
  ts::nn::ParallelLinear head{nullptr};
};

struct Arguments {
  int epochs = 3;
  double lr = 0.003;
  int group_size = -1;
};

void Train(const Arguments& args) {
  trainer::Job job;
  ts::distributed::init_process_group(job.world(), args.group_size);
  torch::manual_seed(0);
  const auto [train, test] = LoadDigits(FindDigits(), /*seed=*/0);
  auto model = std::make_shared<Net>(/*classes=*/10);
  ts::convert_parallel_linear(*model->head, 1);
  trainer::DistributedDataParallelOptions options;
  options.ignored_parameters = ts::register_ddp_parameters_to_ignore(*model);
  trainer::DistributedDataParallel ddp(model, job.world(), options);
  ts::nn::ParallelCrossEntropyLoss criterion(trainer::VocabParallelCrossEntropyOptions().num_classes(10));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(args.lr));
  trainer::DistributedSampler sampler(train.count(), job.size(), job.rank());
  for (int epoch = 0; epoch < args.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    at::Tensor loss;
    for (const at::Tensor& rows : torch::tensor(sampler.indices()).split(16)) {
      const at::Tensor images = train.images.index_select(0, rows), labels = train.labels.index_select(0, rows);
      optimizer.zero_grad();
      loss = criterion(ddp.forward(images), ts::distributed::gather(labels, 0));
      loss.backward();
      optimizer.step();
    }
    if (job.rank() == 0) std::printf("epoch %d: loss %.4f\n", epoch + 1, loss.item<double>());
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor logits = ts::distributed::gather(model->forward(test.images), -1, 10);
  const at::Tensor correct = logits.narrow(0, 0, test.count()).argmax(1) == test.labels;
  if (job.rank() == 0) std::printf("test accuracy %.4f\n", correct.to(torch::kFloat32).mean().item<double>());
  ts::distributed::destroy_process_group();
}

}  // namespace cohort::examples

int main(int argc, char** argv) {
  cohort::examples::Arguments args;
  cohort::examples::ArgumentParser parser("Classifies digits with a head whose classes are cut over the ranks.");
  parser.AddCount("--epochs", args.epochs);
  parser.Add("--lr", args.lr);
  parser.Add("--group-size", args.group_size, "Ranks that share the head; -1: all");
  if (const auto end = parser.Parse(argc, argv)) return *end;
  return cohort::trainer::RunRank("port_torchshard", [&] { cohort::examples::Train(args); });
}
