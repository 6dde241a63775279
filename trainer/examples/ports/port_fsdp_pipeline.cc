// Trains digits in pipeline stages that are sharded each (FSDP), on a mesh of two axes. The same as
// port_fsdp_pipeline.py:
//
//   dlaunch --nproc-per-node 4 port_fsdp_pipeline --stages 2
#include <cstdio>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/data/distributed_sampler.h"
#include "cohort/trainer/examples/digits_data.h"
#include "cohort/trainer/examples/ports/argument_parser.h"
#include "cohort/trainer/parallel/fsdp/fully_shard.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

using torch::nn::Linear;
using Shards = trainer::FullyShardedDataParallel<trainer::StageModule>;

struct Block : trainer::Shardable<Block> {
  at::Tensor call(at::Tensor x) { return x + down(torch::silu(up(x))); }

  Linear up = register_module("up", Linear(64, 256));
  Linear down = register_module("down", Linear(256, 64));
};

torch::nn::Sequential MakeModel() {
  return torch::nn::Sequential(torch::nn::Flatten(), Block(), Block(), Block(), Block(), Linear(64, 10));
}

struct Arguments {
  int epochs = 6;
  double lr = 0.003;
  int stages = 2;
  int micro_batches = 4;
};

void Train(const Arguments& args) {
  trainer::Job job;
  const auto mesh =
      trainer::init_device_mesh(job.world(), {args.stages, job.size() / args.stages}, {"pipeline", "shard"});
  const auto pipeline_axis = *mesh->axis("pipeline"), shard_axis = *mesh->axis("shard");
  torch::manual_seed(0);
  const auto [train, test] = LoadDigits(FindDigits(), /*seed=*/0);
  const auto layers = trainer::LayersOf(MakeModel());
  const auto cut = trainer::CutByNumber(layers, args.stages);
  for (int i = cut[pipeline_axis.rank]; i < cut[pipeline_axis.rank + 1]; ++i) {
    const auto block = std::dynamic_pointer_cast<Block>(layers[i].module.ptr());
    if (block != nullptr) fully_shard(*block, *shard_axis.group);
  }
  const auto module = std::make_shared<Shards>(TakeLayers(layers, cut, pipeline_axis.rank), *shard_axis.group);
  const auto schedule = trainer::BuildSchedule("1f1b", {args.stages, args.stages, args.micro_batches});
  trainer::ThrowUnlessOk(schedule.status(), "--micro-batches");
  trainer::Pipeline pipeline({{pipeline_axis.rank, module}}, *schedule, *pipeline_axis.group,
                             {.loss = [](const at::Tensor& output, const at::Tensor& labels) {
                               return torch::cross_entropy_loss(output, labels);
                             }});
  torch::optim::AdamW optimizer(module->parameters(), torch::optim::AdamWOptions(args.lr));
  trainer::DistributedSampler sampler(train.count(), shard_axis.size, shard_axis.rank);
  const int64_t batch = 6 * args.micro_batches;
  for (int epoch = 0; epoch < args.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    at::Tensor loss;
    for (const at::Tensor& rows : torch::tensor(sampler.indices()).split(batch)) {
      if (rows.size(0) < batch) continue;
      optimizer.zero_grad();
      loss = pipeline.step(train.images.index_select(0, rows), train.labels.index_select(0, rows)).loss;
      optimizer.step();
    }
    if (loss.defined() && shard_axis.rank == 0) {
      std::printf("epoch %d: loss %.4f\n", epoch + 1, loss.item<double>());
    }
  }
  const int64_t count = test.count() / args.micro_batches * args.micro_batches;
  const at::Tensor output = pipeline.eval(test.images.narrow(0, 0, count)).output;
  if (!output.defined() || shard_axis.rank != 0) return;
  const at::Tensor correct = output.argmax(1) == test.labels.narrow(0, 0, count);
  std::printf("test accuracy %.4f\n", correct.to(torch::kFloat32).mean().item<double>());
}

}  // namespace cohort::examples

int main(int argc, char** argv) {
  cohort::examples::Arguments args;
  cohort::examples::ArgumentParser parser("Trains digits in pipeline stages that are sharded each.");
  parser.AddCount("--epochs", args.epochs);
  parser.Add("--lr", args.lr);
  parser.AddCount("--stages", args.stages);
  parser.AddCount("--micro-batches", args.micro_batches);
  if (const auto end = parser.Parse(argc, argv)) return *end;
  return cohort::trainer::RunRank("port_fsdp_pipeline", [&] { cohort::examples::Train(args); });
}
