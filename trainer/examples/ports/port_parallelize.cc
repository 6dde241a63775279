// Trains a small transformer whose layers are cut over some ranks, and shared by FSDP over the others (2-D). An image
// of a digit is a sequence of 8 rows. The same as port_parallelize.py, line by line:
//
//   dlaunch --nproc-per-node 4 port_parallelize --tensor 2 --save digits
#include <cmath>
#include <cstdio>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/data/distributed_sampler.h"
#include "cohort/trainer/examples/digits_data.h"
#include "cohort/trainer/examples/ports/argument_parser.h"
#include "cohort/trainer/nn/linear.h"
#include "cohort/trainer/parallelize/parallelize.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

using torch::nn::LayerNorm;
using trainer::ColwiseParallel;
using trainer::RowwiseParallel;
using trainer::nn::Linear;  // torch's layers can be cut in a Sequential only

constexpr int64_t kRows = 8, kWidth = 48, kHead = 12;

struct Attention : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const auto queries = Heads(q(x)), keys = Heads(k(x)), values = Heads(v(x));
    const at::Tensor scores = queries.matmul(keys.transpose(-2, -1)) / std::sqrt(kHead);
    return out(scores.softmax(-1).matmul(values).transpose(1, 2).flatten(2));
  }
  // The features that the cut has left to this rank say how many heads it has.
  static at::Tensor Heads(const at::Tensor& x) {
    return x.view({x.size(0), kRows, x.size(-1) / kHead, kHead}).transpose(1, 2);
  }

  Linear q = register_module("q", Linear(kWidth, kWidth));
  Linear k = register_module("k", Linear(kWidth, kWidth));
  Linear v = register_module("v", Linear(kWidth, kWidth));
  Linear out = register_module("out", Linear(kWidth, kWidth));
};

struct Block : torch::nn::Module {
  at::Tensor forward(const at::Tensor& before) {
    const at::Tensor x = before + attention->forward(norm1(before));
    return x + down(torch::gelu(up(norm2(x))));
  }

  LayerNorm norm1 = register_module("norm1", LayerNorm(std::vector<int64_t>{kWidth}));
  std::shared_ptr<Attention> attention = register_module("attention", std::make_shared<Attention>());
  LayerNorm norm2 = register_module("norm2", LayerNorm(std::vector<int64_t>{kWidth}));
  Linear up = register_module("up", Linear(kWidth, 4 * kWidth));
  Linear down = register_module("down", Linear(4 * kWidth, kWidth));
};

struct Net : torch::nn::Module {
  explicit Net(int layers) {
    for (int i = 0; i < layers; ++i) blocks->push_back(Block());
  }
  at::Tensor forward(const at::Tensor& images) {
    const at::Tensor x = rows(images.squeeze(1)) + places;
    return head(norm(blocks->forward(x)).mean(1));
  }

  Linear rows = register_module("rows", Linear(8, kWidth));
  at::Tensor places = register_parameter("places", 0.02 * torch::randn({kRows, kWidth}));
  torch::nn::Sequential blocks = register_module("blocks", torch::nn::Sequential());
  LayerNorm norm = register_module("norm", LayerNorm(std::vector<int64_t>{kWidth}));
  Linear head = register_module("head", Linear(kWidth, 10));
};

struct Arguments {
  int epochs = 2;
  double lr = 0.003;
  int batch_size = 48;  // of all ranks together
  int tensor = 2;
  std::string save;
};

void Train(const Arguments& args) {
  trainer::Job job;
  const auto mesh =
      trainer::init_device_mesh(job.world(), {job.size() / args.tensor, args.tensor}, {"shard", "tensor"});
  torch::manual_seed(0);  // the same on all ranks: each keeps its part of the values
  const auto [train, test] = LoadDigits(FindDigits(), /*seed=*/0);
  // The units are elements of a Sequential. Elsewhere they would have to be Shardables.
  auto model = trainer::parallelize(std::make_shared<Net>(/*layers=*/2), *mesh,
                                    {.tensor = {{"blocks.*.attention.q", ColwiseParallel().unit(kHead)},
                                                {"blocks.*.attention.k", ColwiseParallel().unit(kHead)},
                                                {"blocks.*.attention.v", ColwiseParallel().unit(kHead)},
                                                {"blocks.*.attention.out", RowwiseParallel().unit(kHead)},
                                                {"blocks.*.up", ColwiseParallel()},
                                                {"blocks.*.down", RowwiseParallel()},
                                                {"head", ColwiseParallel().gather_output(true)}},
                                     .units = {"blocks.*"}});
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(args.lr));
  // Ranks along "tensor" have the same data_rank, and so the same images.
  trainer::DistributedSampler sampler(train.count(), model.data_ranks(), model.data_rank());
  int step = 0;
  for (int epoch = 0; epoch < args.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    for (const at::Tensor& rows : torch::tensor(sampler.indices()).split(args.batch_size / model.data_ranks())) {
      const at::Tensor images = train.images.index_select(0, rows), labels = train.labels.index_select(0, rows);
      optimizer.zero_grad();
      const at::Tensor loss = torch::nn::functional::cross_entropy(model.forward(images), labels);
      loss.backward();
      optimizer.step();
      ++step;
      double mean = loss.item<double>();
      const comm::Buffer buffer(&mean, 1);
      trainer::ThrowUnlessOk(job.world().AllReduce(buffer, buffer, comm::ReduceOp::kAvg).Wait(), "averaging the loss");
      if (job.rank() == 0) std::printf("step %d: loss %.6f\n", step, mean);
    }
  }
  if (args.save.empty()) return;
  trainer::SaveTrainingState(job.world(), args.save, model.state(optimizer), {{"step", std::to_string(step)}});
}

}  // namespace cohort::examples

int main(int argc, char** argv) {
  cohort::examples::Arguments args;
  cohort::examples::ArgumentParser parser("Trains a small transformer on a mesh of shards and cut layers.");
  parser.AddCount("--epochs", args.epochs);
  parser.Add("--lr", args.lr);
  parser.AddCount("--batch-size", args.batch_size);
  parser.AddCount("--tensor", args.tensor, "Ranks over which layers are cut");
  parser.Add("--save", args.save, "The folder of the checkpoint");
  if (const auto end = parser.Parse(argc, argv)) return *end;
  return cohort::trainer::RunRank("port_parallelize", [&] { cohort::examples::Train(args); });
}
