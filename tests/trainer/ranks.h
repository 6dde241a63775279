// The part that every test that runs as a rank of a job shares. In `dlaunch --nproc-per-node N <program>` all ranks run
// all tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainer/error_of.h"
#include "torch/torch.h"

namespace cohort::trainer {

// Set before the first test runs.
extern std::unique_ptr<runtime::Runtime> job;
extern std::unique_ptr<comm::Communicator> world;

// All ranks, whose sums have the same bits in any order of the ranks.
inline std::unique_ptr<comm::Communicator> OrderInvariantWorld() {
  auto made = comm::Communicator::World(*job, {.determinism = comm::Determinism::kOrderInvariant});
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// Two linear layers and a buffer; weights differ per rank until a wrapper makes them rank 0's.
struct Net : torch::nn::Module {
  explicit Net(int64_t hidden = 5) {
    torch::manual_seed(100 + world->rank());
    first = register_module("first", torch::nn::Linear(4, hidden));
    second = register_module("second", torch::nn::Linear(hidden, 3));
    count = register_buffer("count", torch::full({2}, world->rank(), torch::kFloat32));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor count;
};

inline at::Tensor InputOf(int rank, int step = 0) {
  return torch::randn({6, 4}, at::detail::createCPUGenerator(1000 + 10 * rank + step));
}

// The mean over all ranks of the gradients of `model` on their inputs, computed here.
template <typename Model>
std::vector<at::Tensor> ExpectedGradients(Model& model, int step = 0) {
  std::vector<at::Tensor> sums;
  for (int rank = 0; rank < world->size(); ++rank) {
    const auto grads = torch::autograd::grad({model.forward(InputOf(rank, step)).pow(2).mean()}, model.parameters());
    for (size_t i = 0; i < grads.size(); ++i) {
      if (rank == 0) sums.push_back(torch::zeros_like(grads[i]));
      sums[i] += grads[i] / world->size();
    }
  }
  return sums;
}

// The part of the whole tensor that `part`, a ShardedParameter, has.
template <typename Part>
at::Tensor PartOf(const Part& part, const at::Tensor& whole) {
  return whole.detach().reshape({-1}).narrow(0, part.begin, part.end - part.begin).view(part.tensor.sizes());
}

inline void ExpectGradients(const torch::nn::Module& model, const std::vector<at::Tensor>& expected, double rtol = 1e-5,
                            double atol = 1e-7) {
  const auto parameters = model.parameters();
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(parameters[i].grad().defined()) << i;
    EXPECT_TRUE(torch::allclose(parameters[i].grad(), expected[i], rtol, atol))
        << parameters[i].grad() << "\nexpected\n"
        << expected[i];
  }
}

}  // namespace cohort::trainer
