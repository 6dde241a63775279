// Trains digits with linear layers whose output features are cut over the ranks. The same as port_tensor_linear.py;
// here the features need not divide by the ranks:
//
//   dlaunch --nproc-per-node 4 port_tensor_linear --hidden 256
#include <cstdio>

#include "cohort/trainer/examples/digits_data.h"
#include "cohort/trainer/examples/ports/argument_parser.h"
#include "cohort/trainer/parallel/tensor/column_parallel_linear.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

using trainer::TensorParallelLinear;

struct Net : torch::nn::Module {
  Net(int64_t hidden, const trainer::TensorAxis& axis) {
    first = register_module("first", TensorParallelLinear(64, hidden, axis));
    second = register_module("second", TensorParallelLinear(hidden, hidden, axis));
    out = register_module("out", torch::nn::Linear(hidden, 10));
  }
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = torch::silu(first(images.flatten(1)));
    x = torch::silu(second(x));
    return torch::log_softmax(out(x), 1);
  }

  TensorParallelLinear first{nullptr}, second{nullptr};
  torch::nn::Linear out{nullptr};
};

struct Arguments {
  int epochs = 4;
  double lr = 0.003;
  int64_t hidden = 256;
};

// All ranks have the same images. The seed is the same on all, so that they agree on `out` and on the order.
void Train(const Arguments& args) {
  trainer::Job job;
  torch::manual_seed(0);
  const auto [train, test] = LoadDigits(FindDigits(), /*seed=*/0);
  Net model(args.hidden, trainer::TensorAxis(job.world()));
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(args.lr));
  for (int epoch = 0; epoch < args.epochs; ++epoch) {
    at::Tensor loss;
    for (const at::Tensor& rows : torch::randperm(train.count()).split(48)) {
      const at::Tensor images = train.images.index_select(0, rows), labels = train.labels.index_select(0, rows);
      optimizer.zero_grad();
      loss = torch::nll_loss(model.forward(images), labels);
      loss.backward();
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
  cohort::examples::ArgumentParser parser("Trains digits with linear layers that are cut over the ranks.");
  parser.AddCount("--epochs", args.epochs);
  parser.Add("--lr", args.lr);
  parser.AddCount("--hidden", args.hidden);
  if (const auto end = parser.Parse(argc, argv)) return *end;
  return cohort::trainer::RunRank("port_tensor_linear", [&] { cohort::examples::Train(args); });
}
