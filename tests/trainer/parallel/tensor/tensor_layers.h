// The part that tests of tensor parallelism share: an axis of all ranks, and layers of one process beside those that
// are cut.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/tensor/cut_parameter.h"
#include "cohort/trainer/parallel/tensor/tensor_axis.h"
#include "cohort/trainer/placement/box_copy.h"
#include "cohort/trainer/placement/placement_table.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {

inline at::Tensor Random(std::vector<int64_t> sizes, int seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

inline void ExpectClose(const at::Tensor& actual, const at::Tensor& expected, const std::string& what,
                        double tolerance = 1e-5) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(torch::allclose(actual, expected, tolerance, tolerance)) << what << ", rank " << world->rank() << "\n"
                                                                       << (actual - expected).abs().max();
}

// This rank's part of `whole`, as the table of placements has it for `parameter`.
inline at::Tensor OwnPart(const at::Tensor& parameter, const at::Tensor& whole) {
  at::Tensor part = torch::empty_like(parameter).detach();
  TakeBoxes(whole.detach(), Placements().OrWhole(parameter)->boxes(), part);
  return part;
}

// Every parameter and gradient of `cut` is this rank's part of that of `whole`, a module of one process.
inline void ExpectParts(const torch::nn::Module& cut, const torch::nn::Module& whole, const std::string& what,
                        double tolerance = 1e-5) {
  const auto names = whole.named_parameters();
  for (const auto& item : cut.named_parameters()) {
    const at::Tensor& expected = names[item.key()];
    ExpectClose(item.value().detach(), OwnPart(item.value(), expected), what + ": " + item.key(), tolerance);
    if (!expected.grad().defined() || item.value().numel() == 0) continue;
    ASSERT_TRUE(item.value().grad().defined()) << what << ": " << item.key();
    ExpectClose(item.value().grad(), OwnPart(item.value(), expected.grad()), what + ": gradient of " + item.key(),
                tolerance);
  }
}

// Makes the same module on `axis` and for one process, from the same seed.
template <typename Make>
auto CutAndWhole(Make make, const TensorAxis& axis, int seed = 7) {
  torch::manual_seed(seed);
  auto cut = make(axis);
  torch::manual_seed(seed);
  auto whole = make(TensorAxis());
  return std::make_pair(cut, whole);
}

}  // namespace cohort::trainer
