// The part that tests of checkpoints share: a folder, groups of fewer ranks, and a model with its optimizer under any
// mode.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/state/checkpoint/remove_tree.h"
#include "cohort/trainer/state/training_state.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {

// A directory that all ranks share, gone with the test.
class Checkpoints : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "cohort-checkpoint-XXXXXX").string();
    if (world->rank() == 0) {
      ASSERT_NE(mkdtemp(name.data()), nullptr);
    }
    const comm::Buffer buffer(reinterpret_cast<uint8_t*>(name.data()), static_cast<int64_t>(name.size()));
    ASSERT_TRUE(world->Broadcast(buffer, 0).Wait().ok());
    folder_ = name;
  }
  void TearDown() override {
    ASSERT_TRUE(world->Barrier().Wait().ok());
    if (world->rank() == 0) RemoveTree(folder_);
  }
  std::string At(const std::string& name) const { return (folder_ / name).string(); }
  std::filesystem::path folder_;
};

// The ranks below `size`, or null on the others.
inline std::unique_ptr<comm::Communicator> First(int size) {
  auto group = world->Split(world->rank() < size ? 0 : -1, world->rank());
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}

// A model and an optimizer under one of the modes, and a step of training.
struct Trained {
  Trained(const std::string& mode, comm::Communicator& group) : net(std::make_shared<Net>(7)) {
    const torch::optim::AdamWOptions adam(0.05);
    if (mode == "fsdp") {
      fsdp = std::make_shared<FullyShardedDataParallel<Net>>(net, group);
      optimizer = std::make_unique<torch::optim::AdamW>(fsdp->parameters(), adam);
      state = StateOf(*fsdp, *optimizer);
    } else if (mode == "ddp") {
      ddp = std::make_unique<DistributedDataParallel<Net>>(net, group);
      optimizer = std::make_unique<torch::optim::AdamW>(net->parameters(), adam);
      state = StateOf(*net, *optimizer, group);
    } else {
      auto zero = std::make_unique<ZeroRedundancyOptimizer<torch::optim::AdamW>>(net->parameters(), group, adam);
      ddp = std::make_unique<ShardedDataParallel<Net>>(net, *zero, group);
      state = StateOf(*net, *zero, group);
      optimizer = std::move(zero);
    }
  }
  // On the same inputs on every rank, so that the number of ranks changes no more than rounding.
  void Train(int from, int to) {
    for (int step = from; step < to; ++step) {
      optimizer->zero_grad();
      const at::Tensor x = InputOf(0, step);
      (fsdp != nullptr ? fsdp->forward(x) : ddp->forward(x)).pow(2).mean().backward();
      optimizer->step();
    }
  }
  std::vector<at::Tensor> Whole() {
    std::vector<at::Tensor> copies;
    const auto copy = [&] {
      for (const auto& parameter : net->parameters()) copies.push_back(parameter.detach().clone());
    };
    if (fsdp != nullptr) {
      const SummonFullParams whole(*fsdp, /*writeback=*/false);
      copy();
    } else {
      copy();
    }
    return copies;
  }

  std::shared_ptr<Net> net;
  std::shared_ptr<FullyShardedDataParallel<Net>> fsdp;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<DistributedDataParallel<Net>> ddp;
  TrainingState state;
};

inline void ExpectEqual(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, bool bits) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(bits ? torch::equal(actual[i], expected[i]) : torch::allclose(actual[i], expected[i], 1e-3, 1e-4))
        << "parameter " << i << ": " << (actual[i] - expected[i]).abs().max();
  }
}

}  // namespace cohort::trainer
