// A model with dropout, for tests of ranks: blocks that each test computes in its own way.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {

// Dropout, and running statistics.
struct Noisy : torch::nn::Module {
  explicit Noisy(bool statistics = true) {
    torch::manual_seed(7);
    first = register_module("first", torch::nn::Linear(4, 6));
    if (statistics) norm = register_module("norm", torch::nn::BatchNorm1d(6));
    second = register_module("second", torch::nn::Linear(6, 4));
  }
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    at::Tensor hidden = first(x);
    if (!norm.is_empty()) hidden = norm(hidden);
    return x + second(torch::dropout(torch::tanh(hidden), 0.5, is_training()));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  int calls = 0;
};

// Three of them, each computed by `call`.
struct Stack : torch::nn::Module {
  using Call = std::function<std::pair<std::shared_ptr<torch::nn::Module>, std::function<at::Tensor(at::Tensor)>>(
      std::shared_ptr<Noisy>)>;
  explicit Stack(const Call& call, bool statistics = true) {
    for (int i = 0; i < 3; ++i) {
      auto [module, forward] = call(std::make_shared<Noisy>(statistics));
      register_module("block" + std::to_string(i), module);
      blocks.push_back(forward);
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<std::function<at::Tensor(at::Tensor)>> blocks;
};

template <typename Module>
auto Called(std::shared_ptr<Module> module) {
  return std::make_pair(std::static_pointer_cast<torch::nn::Module>(module),
                        std::function<at::Tensor(at::Tensor)>([module](at::Tensor x) { return module->forward(x); }));
}

inline std::shared_ptr<Stack> PlainStack(bool statistics = true) {
  return std::make_shared<Stack>([](std::shared_ptr<Noisy> noisy) { return Called(noisy); }, statistics);
}
inline std::shared_ptr<Stack> CheckpointedStack() {
  return std::make_shared<Stack>(
      [](std::shared_ptr<Noisy> noisy) { return Called(std::make_shared<CheckpointWrapper<Noisy>>(noisy)); });
}

template <typename Model>
void TrainNoisy(Model& model, torch::optim::Optimizer& optimizer, int steps = 4) {
  torch::manual_seed(900 + world->rank());
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    model.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    optimizer.step();
  }
}

inline std::vector<at::Tensor> Copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

inline void ExpectBits(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i << ": " << (actual[i] - expected[i]).abs().max();
  }
}

}  // namespace cohort::trainer
