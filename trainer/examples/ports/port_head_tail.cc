// Trains digits with a head and a tail on two devices of each rank, replicated over the ranks (DDP). The same as
// port_head_tail.py, which srun starts; dlaunch takes its place in a Slurm allocation and anywhere else:
//
//   sbatch --nodes=2 --gres=gpu:8 job.sh --gpus-per-rank 2 port_head_tail --groups_size 2 --group_per_node 4
//   dlaunch --simulate-nodes 2 --simulate-gpus 8 --gpus-per-rank 2 port_head_tail --micro_batches 4
//
// job.sh is deploy/slurm/job.sh. A group is a rank's devices: --groups_size of them, and --group_per_node ranks a node.
#include <cstdio>
#include <functional>

#include "cohort/trainer/base/local_device.h"
#include "cohort/trainer/data/distributed_sampler.h"
#include "cohort/trainer/examples/digits_data.h"
#include "cohort/trainer/examples/ports/argument_parser.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

using torch::nn::Linear;
using torch::nn::SiLU;
using trainer::DistributedDataParallel;
using Devices = std::vector<trainer::LocalDevice>;

struct HeadTail : torch::nn::Module {
  explicit HeadTail(const Devices& devices) : first(devices.front().device), last(devices.back().device) {
    const torch::nn::Sequential all(torch::nn::Flatten(), Linear(64, 256), SiLU(), Linear(256, 256), SiLU(),
                                    Linear(256, 10));
    head = register_module("head", TakeLayers(trainer::LayersOf(all), {0, 3, 6}, 0));
    tail = register_module("tail", TakeLayers(trainer::LayersOf(all), {0, 3, 6}, 1));
    head->to(first);
    tail->to(last);
  }
  at::Tensor forward(const at::Tensor& images) { return tail->forward(head->forward(images.to(first)).to(last)); }

  c10::Device first, last;
  std::shared_ptr<trainer::StageModule> head, tail;
};

struct Arguments {
  int epochs = 5;
  double lr = 0.003;
  int groups_size = 2, group_per_node = 4, micro_batches = 1;
};

// The rank's devices, if they are as many as the options say.
Devices DevicesOf(const runtime::Runtime& runtime, const Arguments& args) {
  const Devices devices = trainer::LocalDevices(runtime);
  TORCH_CHECK(args.groups_size >= 2, "--groups_size is at least 2: the head and the tail are on devices of their own");
  TORCH_CHECK(static_cast<int>(devices.size()) == args.groups_size && runtime.local_world_size() == args.group_per_node,
              "rank ", runtime.rank(), " has ", devices.size(), " devices, and its node ", runtime.local_world_size(),
              " ranks; start it by: dlaunch --gpus-per-rank ", args.groups_size, " --nproc-per-node ",
              args.group_per_node, " port_head_tail --groups_size ", args.groups_size, " --group_per_node ",
              args.group_per_node);
  return devices;
}

at::Tensor Loss(const at::Tensor& output, const at::Tensor& labels) {
  return torch::cross_entropy_loss(output, labels.to(output.device()));
}

void Train(const Arguments& args) {
  trainer::Job job;
  const Devices devices = DevicesOf(job.runtime(), args);
  torch::manual_seed(0);
  const auto [train, test] = LoadDigits(FindDigits(), /*seed=*/0);
  const auto model = std::make_shared<HeadTail>(devices);
  const std::vector<trainer::ModulePart> parts = {{model->head.get(), devices.front()},
                                                  {model->tail.get(), devices.back()}};
  trainer::DistributedDataParallelOptions options;
  const auto mesh = trainer::init_device_mesh(job.world(), {1, job.size()}, {"pipeline", "replicate"});
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> step;
  if (args.micro_batches > 1) {  // both devices work at once
    std::vector<trainer::PipelineStage> stages;
    for (const auto& module : {model->head, model->tail}) {
      options.parts = {parts[stages.size()]};
      stages.emplace_back(
          static_cast<int>(stages.size()),
          std::make_shared<DistributedDataParallel<trainer::StageModule>>(module, job.world(), options));
    }
    const trainer::PipelineOptions on_devices{.loss = Loss, .devices = {devices.front(), devices.back()}};
    const auto pipeline =
        std::make_shared<trainer::Pipeline>(stages, *trainer::BuildSchedule("gpipe", {2, 2, args.micro_batches}),
                                            **mesh->get_group("pipeline"), on_devices);
    step = [pipeline](const at::Tensor& x, const at::Tensor& labels) { return pipeline->step(x, labels).loss; };
  } else {
    options.parts = parts;
    const auto ddp = std::make_shared<DistributedDataParallel<HeadTail>>(model, job.world(), options);
    step = [ddp](const at::Tensor& images, const at::Tensor& labels) {
      const at::Tensor loss = Loss(ddp->forward(images), labels);
      loss.backward();
      return loss;
    };
  }
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(args.lr));
  trainer::DistributedSampler sampler(train.count(), job.size(), job.rank());
  for (int epoch = 0; epoch < args.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    at::Tensor loss;
    for (const at::Tensor& rows : torch::tensor(sampler.indices()).split(12)) {
      if (rows.size(0) < 12) continue;
      optimizer.zero_grad();
      loss = step(train.images.index_select(0, rows), train.labels.index_select(0, rows));
      optimizer.step();
    }
    if (job.rank() == 0) std::printf("epoch %d: loss %.4f\n", epoch + 1, loss.item<double>());
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor correct = model->forward(test.images).argmax(1).cpu() == test.labels;
  if (job.rank() == 0) std::printf("test accuracy %.4f\n", correct.to(torch::kFloat32).mean().item<double>());
}

}  // namespace cohort::examples

int main(int argc, char** argv) {
  cohort::examples::Arguments args;
  cohort::examples::ArgumentParser parser("Trains digits with a head and a tail on two devices of each rank.");
  parser.AddCount("--epochs", args.epochs);
  parser.Add("--lr", args.lr);
  parser.AddCount("--groups_size", args.groups_size, "Devices of a group, which is a rank");
  parser.AddCount("--group_per_node", args.group_per_node, "Ranks of a node");
  parser.AddCount("--micro_batches", args.micro_batches);
  if (const auto end = parser.Parse(argc, argv)) return *end;
  return cohort::trainer::RunRank("port_head_tail", [&] { cohort::examples::Train(args); });
}
