// Trains ResNet-50 on the devices of a rank, in splits that keep all at work. The same as port_resnet.py; several ranks
// make a longer pipeline:
//
//   dlaunch --simulate-gpus 2 --gpus-per-rank 2 port_resnet --split-size 20
#include <chrono>
#include <cstdio>
#include <optional>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/local_device.h"
#include "cohort/trainer/examples/ports/argument_parser.h"
#include "cohort/trainer/examples/ports/resnet_model.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

struct Arguments {
  int batches = 3;
  int batch_size = 120;
  int split_size = 20;
  int classes = 1000;
  int image_size = 128;
  int width = 64;
};

void Train(const Arguments& args) {
  trainer::Job job;
  torch::manual_seed(0);
  const auto layers = trainer::LayersOf(MakeResNet50(args.classes, args.width));
  const std::vector<trainer::LocalDevice> devices = trainer::LocalDevices(job.runtime());
  const int per_rank = static_cast<int>(devices.size()), parts = per_rank * job.size();
  const auto schedule = [&](int splits) {
    const auto built = trainer::BuildSchedule("gpipe", {parts, parts, splits});
    trainer::ThrowUnlessOk(built.status(), "--split-size");
    return *built;
  };
  std::vector<trainer::PipelineStage> stages;
  std::vector<at::Tensor> parameters;
  for (const int stage : StagesOf(schedule(1), job.rank(), per_rank)) {
    stages.emplace_back(stage, TakeLayers(layers, CutByNumber(layers, parts), stage));
    stages.back().module->to(devices[static_cast<size_t>(stage % per_rank)].device);
    for (const at::Tensor& parameter : stages.back().module->parameters()) parameters.push_back(parameter);
  }
  trainer::PipelineOptions options;
  options.loss = [](const at::Tensor& output, const at::Tensor& labels) { return torch::mse_loss(output, labels); };
  options.devices = devices;
  // The micro-batches of a step are of one size, so a shorter last split is a step of its own.
  const int rest = args.batch_size % args.split_size, even = args.batch_size - rest;
  std::optional<trainer::Pipeline> splits, last_split;
  if (even > 0) splits.emplace(stages, schedule(even / args.split_size), job.world(), options);
  if (rest > 0) last_split.emplace(stages, schedule(1), job.world(), options);
  torch::optim::SGD optimizer(parameters, 0.001);
  for (int batch = 0; batch < args.batches; ++batch) {
    const auto begin = std::chrono::steady_clock::now();
    const at::Tensor inputs = torch::randn({args.batch_size, 3, args.image_size, args.image_size});
    const at::Tensor classes = torch::randint(args.classes, {args.batch_size, 1}, torch::kLong);
    const at::Tensor labels = torch::zeros({args.batch_size, args.classes}).scatter_(1, classes, 1);
    optimizer.zero_grad();
    at::Tensor loss;
    const auto step = [&](trainer::Pipeline& pipeline, int first, int rows) {
      const double share = static_cast<double>(rows) / args.batch_size;
      const auto result = pipeline.step(inputs.narrow(0, first, rows), labels.narrow(0, first, rows), share);
      if (result.loss.defined()) loss = result.loss * share + (loss.defined() ? loss : torch::zeros({}));
    };
    if (splits.has_value()) step(*splits, 0, even);
    if (last_split.has_value()) step(*last_split, even, rest);
    optimizer.step();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (loss.defined()) std::printf("batch %d: loss %.4f, %.2f s\n", batch + 1, loss.item<double>(), seconds.count());
  }
}

}  // namespace cohort::examples

int main(int argc, char** argv) {
  cohort::examples::Arguments args;
  cohort::examples::ArgumentParser parser("Trains ResNet-50 on the devices of a rank.");
  parser.AddCount("--batches", args.batches);
  parser.AddCount("--batch-size", args.batch_size);
  parser.AddCount("--split-size", args.split_size);
  parser.AddCount("--classes", args.classes);
  parser.AddCount("--image-size", args.image_size);
  parser.AddCount("--width", args.width);
  if (const auto end = parser.Parse(argc, argv)) return *end;
  return cohort::trainer::RunRank("port_resnet", [&] { cohort::examples::Train(args); });
}
