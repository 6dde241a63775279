// The part that tests of Join share: a model of blocks that may be sharded one by one and run in any order.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "tests/trainer/tower.h"

namespace cohort::trainer {

inline constexpr double kMaxNorm = 0.05;

// The work of a step beyond one forward and one backward pass.
enum Does {
  kNothingElse = 0,
  kWanders = 1,      // through the units in another order than that of registration
  kEvaluates = 2,    // before it, without a backward pass
  kAccumulates = 4,  // two micro-batches, of which the second averages
  kClips = 8,
  kEverything = 15
};

inline auto Momentum() { return torch::optim::SGDOptions(0.1).momentum(0.9); }

// Equal blocks, so that gathering one instead of another would go unnoticed; in any order.
struct Wanderer : torch::nn::Module {
  explicit Wanderer(const Tower::Wrap& wrap) {
    for (int i = 0; i < kBlocks; ++i) {
      auto [module, forward] = wrap(std::make_shared<Block>(i));
      register_module("block" + std::to_string(i), module);
      blocks.push_back(forward);
    }
    torch::manual_seed(80);
    head = register_module("head", torch::nn::Linear(4, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (const int i : order) y = blocks[i](y);
    return head(y);
  }
  // Another in each step, never that of registration; or that.
  void Turn(int step, int does) {
    order = {0, 1, 2, 3, 4};
    if ((does & kWanders) != 0)
      order = step % 2 == 0 ? std::vector<int>{3, 0, 4, 2, 1} : std::vector<int>{1, 4, 0, 3, 2};
  }
  std::vector<Tower::Forward> blocks;
  std::vector<int> order;
  torch::nn::Linear head{nullptr};
};

using ShardedWanderer = FullyShardedDataParallel<Wanderer>;

template <typename Where>
std::shared_ptr<ShardedWanderer> ShardWanderer(Where& where, const FullyShardedDataParallelOptions& options) {
  auto inside = std::make_shared<Wanderer>([&](std::shared_ptr<Block> block) {
    auto wrapped = std::make_shared<FullyShardedDataParallel<Block>>(block, where, options);
    return std::make_pair(wrapped, [wrapped](const at::Tensor& x) { return wrapped->forward(x); });
  });
  return std::make_shared<ShardedWanderer>(inside, where, options);
}

}  // namespace cohort::trainer
