// The norm of one rank's gradients, before it is added to the others'.
#include "cohort/trainer/state/grad_norm.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(ShardedNorm, TheNormIsThatOfAllParts) {
  const std::vector<at::Tensor> parts = {torch::full({4}, 1.0), torch::zeros({0}), torch::full({2, 3}, -2.0),
                                         torch::full({3}, 0.5, torch::kBFloat16)};
  const at::Tensor norm = ShardedNorm(parts, 2, {});
  EXPECT_EQ(norm.scalar_type(), torch::kFloat32);
  EXPECT_FLOAT_EQ(norm.item<float>(), std::sqrt(4 + 6 * 4 + 3 * 0.25F));
  EXPECT_FLOAT_EQ(ShardedNorm(parts, 1, {}).item<float>(), 4 + 12 + 1.5F);
  EXPECT_FLOAT_EQ(ShardedNorm(parts, kInfinity, {}).item<float>(), 2);
  EXPECT_FLOAT_EQ(ShardedNorm({}, 2, {}).item<float>(), 0);
}

TEST(ShardedNorm, TheNormOfDoublesIsADouble) {
  at::Tensor large = torch::tensor({3e100, -4e100}, torch::kFloat64);  // infinite as float32
  const at::Tensor norm = ShardedNorm({torch::ones({5}), large}, 2, {});
  EXPECT_EQ(norm.scalar_type(), torch::kFloat64);
  EXPECT_DOUBLE_EQ(norm.item<double>(), 5e100);
  ClipByNorm({large}, norm, 1);
  EXPECT_DOUBLE_EQ(large[0].item<double>(), 0.6);
  const double third = 1.0 / 3;
  EXPECT_EQ(ShardedNorm({torch::full({1}, third, torch::kFloat64)}, kInfinity, {}).item<double>(), third);
}

TEST(ShardedNorm, TheNormOfNanIsNan) {
  const at::Tensor bad = torch::tensor({1.0F, std::numeric_limits<float>::quiet_NaN()});
  for (const double norm_type : {1.0, 2.0, kInfinity}) {
    EXPECT_TRUE(std::isnan(ShardedNorm({torch::ones({2}), bad, torch::ones({2})}, norm_type, {}).item<double>()));
  }
  EXPECT_THROW(ShardedNorm({}, 0, {}), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
