// Trains a small GPT all of whose matrices are cut over the ranks with TorchShard's API. The same as
// port_torchshard_gpt.py; here the vocabulary need not divide by the ranks:
//
//   dlaunch --nproc-per-node 4 port_torchshard_gpt --group-size 2
#include <cmath>
#include <cstdio>

#include "cohort/trainer/examples/ports/argument_parser.h"
#include "cohort/trainer/examples/text_data.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/torchshard/convert.h"
#include "cohort/trainer/torchshard/distributed.h"
#include "cohort/trainer/torchshard/layers.h"
#include "cohort/trainer/transfer/job.h"
#include "torch/torch.h"

namespace cohort::examples {

namespace ts = trainer::torchshard;
using torch::nn::LayerNorm;
using ts::nn::ParallelLinear;

struct Arguments {
  double lr = 0.003;
  int steps = 100, batch_size = 16, context = 32, layers = 2, heads = 4, width = 64, group_size = -1;
};

ParallelLinear Linear(int64_t in, int64_t out, int64_t dim) {
  return ParallelLinear(ts::nn::ParallelLinearOptions(in, out).dim(dim));
}

struct Attention : torch::nn::Module {
  Attention(int64_t width, int64_t heads) : width(width), size(width / heads) {}
  at::Tensor forward(const at::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1);
    const auto parts = qkv(x).view({batch, length, -1, 3, size}).permute({3, 0, 2, 1, 4});
    const at::Tensor scores = parts[0].matmul(parts[1].transpose(-2, -1)) / std::sqrt(size);
    const at::Tensor hidden = torch::ones({length, length}, x.options().dtype(torch::kBool)).triu(1);
    const at::Tensor heads = scores.masked_fill(hidden, -INFINITY).softmax(-1).matmul(parts[2]);
    const at::Tensor y = heads.transpose(1, 2).reshape({batch, length, -1});
    ts::register_parallel_dim(y, -1);
    return out(y);
  }

  const int64_t width, size;
  // Each head's query, key and value are neighbours, so that a cut leaves heads whole.
  ParallelLinear qkv = register_module("qkv", Linear(width, 3 * width, 1));
  ParallelLinear out = register_module("out", Linear(width, width, 0));
};

struct Block : torch::nn::Module {
  Block(int64_t width, int64_t heads) : width(width), heads(heads) {}
  at::Tensor forward(const at::Tensor& before) {
    const at::Tensor x = before + attention->forward(norm1(before));
    const at::Tensor y = torch::gelu(up(norm2(x)));
    ts::register_parallel_dim(y, -1);
    return x + down(y);
  }

  const int64_t width, heads;
  LayerNorm norm1 = register_module("norm1", LayerNorm(std::vector<int64_t>{width}));
  std::shared_ptr<Attention> attention = register_module("attention", std::make_shared<Attention>(width, heads));
  LayerNorm norm2 = register_module("norm2", LayerNorm(std::vector<int64_t>{width}));
  ParallelLinear up = register_module("up", Linear(width, 4 * width, 1));
  ParallelLinear down = register_module("down", Linear(4 * width, width, 0));
};

struct Gpt : torch::nn::Module {
  Gpt(int64_t vocabulary, const Arguments& args) : vocabulary(vocabulary), args(args) {
    tokens->parallelize(0);
    for (int i = 0; i < args.layers; ++i) blocks->push_back(Block(args.width, args.heads));
  }
  at::Tensor forward(const at::Tensor& codes) {
    const at::Tensor x = tokens(codes) + positions(torch::arange(codes.size(1), codes.options()));
    return head(norm(blocks->forward(x)).flatten(0, 1));
  }

  const int64_t vocabulary;
  const Arguments args;
  ts::nn::ParallelEmbedding tokens = register_module("tokens", ts::nn::ParallelEmbedding(vocabulary, args.width));
  torch::nn::Embedding positions = register_module("positions", torch::nn::Embedding(args.context, args.width));
  torch::nn::Sequential blocks = register_module("blocks", torch::nn::Sequential());
  LayerNorm norm = register_module("norm", LayerNorm(std::vector<int64_t>{args.width}));
  ParallelLinear head = register_module("head", Linear(args.width, vocabulary, 1));
};

void Train(const Arguments& args) {
  trainer::Job job;
  ts::distributed::init_process_group(job.world(), args.group_size);
  TORCH_CHECK(args.heads % ts::distributed::get_group_size() == 0, "--heads do not divide by the ranks of a group");
  const int group = ts::distributed::get_replicas().rank(), groups = ts::distributed::get_replicas().size();
  torch::manual_seed(0);
  const Text text(FindShakespeare());
  auto model = std::make_shared<Gpt>(text.vocabulary(), args);
  trainer::DistributedDataParallelOptions options;
  options.ignored_parameters = ts::register_ddp_parameters_to_ignore(*model);
  trainer::DistributedDataParallel ddp(model, job.world(), options);
  ts::nn::ParallelCrossEntropyLoss criterion(
      trainer::VocabParallelCrossEntropyOptions().num_classes(text.vocabulary()));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(args.lr));
  for (int step = 0; step < args.steps; ++step) {
    const TextBatch batch = text.Batch(true, 0, step, args.batch_size, args.context, group, groups);
    optimizer.zero_grad();
    const at::Tensor loss = criterion(ddp.forward(batch.inputs), batch.targets.flatten());
    loss.backward();
    optimizer.step();
    if (job.rank() == 0 && (step + 1) % 20 == 0) std::printf("step %d: loss %.4f\n", step + 1, loss.item<double>());
  }
  const TextBatch batch = text.Batch(false, 0, 0, 4 * args.batch_size, args.context, group, groups);
  const torch::NoGradGuard no_grad;
  const at::Tensor loss = criterion(ddp.forward(batch.inputs), batch.targets.flatten());
  if (job.rank() == 0) std::printf("validation loss %.4f\n", loss.item<double>());
  ts::distributed::destroy_process_group();
}

}  // namespace cohort::examples

int main(int argc, char** argv) {
  cohort::examples::Arguments args;
  cohort::examples::ArgumentParser parser("Trains a small GPT all of whose matrices are cut over the ranks.");
  parser.AddCount("--steps", args.steps);
  parser.Add("--lr", args.lr);
  parser.AddCount("--batch-size", args.batch_size);
  parser.AddCount("--context", args.context);
  parser.AddCount("--layers", args.layers);
  parser.AddCount("--heads", args.heads);
  parser.AddCount("--width", args.width);
  parser.Add("--group-size", args.group_size, "Ranks that share the model; -1: all");
  if (const auto end = parser.Parse(argc, argv)) return *end;
  return cohort::trainer::RunRank("port_torchshard_gpt", [&] { cohort::examples::Train(args); });
}
