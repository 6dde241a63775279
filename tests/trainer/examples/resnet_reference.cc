// resnet_reference <batches> <batch size> <split size>: the losses of port_resnet's training in one process without a
// pipeline, by port_resnet.py's loop over the splits of each batch.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cohort/trainer/examples/ports/resnet_model.h"
#include "torch/torch.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int batches = std::atoi(argv[1]), batch_size = std::atoi(argv[2]), split_size = std::atoi(argv[3]);
  constexpr int kClasses = 10, kImageSize = 64, kWidth = 4;
  torch::manual_seed(0);
  torch::nn::Sequential model = cohort::examples::MakeResNet50(kClasses, kWidth);
  torch::optim::SGD optimizer(model->parameters(), 0.001);
  for (int batch = 0; batch < batches; ++batch) {
    const at::Tensor inputs = torch::randn({batch_size, 3, kImageSize, kImageSize});
    const at::Tensor classes = torch::randint(kClasses, {batch_size, 1}, torch::kLong);
    const at::Tensor labels = torch::zeros({batch_size, kClasses}).scatter_(1, classes, 1);
    optimizer.zero_grad();
    std::vector<at::Tensor> outputs;
    for (const at::Tensor& split : inputs.split(split_size)) outputs.push_back(model->forward(split));
    const at::Tensor loss = torch::mse_loss(torch::cat(outputs), labels);
    loss.backward();
    optimizer.step();
    std::printf("batch %d: loss %.4f\n", batch + 1, loss.item<double>());
  }
  return 0;
}
