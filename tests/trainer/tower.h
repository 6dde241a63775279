// A model of blocks that may be sharded one by one, and its training with and without shards.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {

inline constexpr int kSteps = 5;
inline constexpr int kBlocks = 5;  // as many as show calls in the wrong order when one rank answers the others

struct Block : torch::nn::Module {
  explicit Block(int seed) {
    torch::manual_seed(seed + 1000 * world->rank());  // wrapping makes them rank 0's
    up = register_module("up", torch::nn::Linear(4, 7));
    down = register_module("down", torch::nn::Linear(7, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::tanh(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};

// Blocks that `wrap` may wrap, and parameters outside them.
struct Tower : torch::nn::Module {
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  using Wrap = std::function<std::pair<std::shared_ptr<torch::nn::Module>, Forward>(std::shared_ptr<Block>)>;
  explicit Tower(const Wrap& wrap) {
    for (int i = 0; i < kBlocks; ++i) {
      auto [module, forward] = wrap(std::make_shared<Block>(i));
      register_module("block" + std::to_string(i), module);
      blocks.push_back(forward);
    }
    torch::manual_seed(50);
    head = register_module("head", torch::nn::Linear(4, 3));
    scale = register_parameter("scale", torch::ones({}));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (const Forward& block : blocks) y = block(y);
    return head(y) * scale;
  }
  std::vector<Forward> blocks;
  torch::nn::Linear head{nullptr};
  at::Tensor scale;
};

inline std::shared_ptr<Tower> Plain() {
  return std::make_shared<Tower>([](std::shared_ptr<Block> block) {
    return std::make_pair(block, [block](const at::Tensor& x) { return block->forward(x); });
  });
}

using Sharded = FullyShardedDataParallel<Tower>;

// `where` is a Communicator or a DeviceMesh.
template <typename Where>
std::shared_ptr<Sharded> Shard(Where& where, const FullyShardedDataParallelOptions& options = {}) {
  auto tower = std::make_shared<Tower>([&](std::shared_ptr<Block> block) {
    auto wrapped = std::make_shared<FullyShardedDataParallel<Block>>(block, where, options);
    return std::make_pair(wrapped, [wrapped](const at::Tensor& x) { return wrapped->forward(x); });
  });
  return std::make_shared<Sharded>(tower, where, options);
}

inline bool WorldIsPowerOfTwo() { return (world->size() & (world->size() - 1)) == 0; }

template <typename Model>
void Train(Model& model, torch::optim::Optimizer& optimizer, int steps = kSteps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    model.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    optimizer.step();
  }
}

// The parameters of `module`, which `shards` shards.
inline std::vector<at::Tensor> Whole(FullyShardedModule& shards, const torch::nn::Module& module) {
  const SummonFullParams whole(shards, /*writeback=*/false);
  std::vector<at::Tensor> copies;
  for (const auto& parameter : module.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}
inline std::vector<at::Tensor> Whole(FullyShardedModule& model) { return Whole(model, model); }

inline std::vector<at::Tensor> TrainedByDdp(comm::Communicator& group) {
  auto model = Plain();
  DistributedDataParallel<Tower> ddp(model, group);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.02));
  Train(ddp, optimizer);
  std::vector<at::Tensor> copies;
  for (const auto& parameter : model->parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

inline void ExpectSame(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, bool bits,
                       double tolerance = 1e-4) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(actual[i].sizes(), expected[i].sizes()) << i;
    EXPECT_TRUE(bits ? torch::equal(actual[i], expected[i])
                     : torch::allclose(actual[i], expected[i], tolerance, tolerance / 10))
        << "parameter " << i << ": " << (actual[i] - expected[i]).abs().max();
  }
}

}  // namespace cohort::trainer
