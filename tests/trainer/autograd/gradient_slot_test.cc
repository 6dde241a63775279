// GradientSlot against the same by torch's operations, bit for bit.
#include "cohort/trainer/autograd/gradient_slot.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

constexpr int64_t kElements = 37;

at::Tensor ByTorch(const at::Tensor& gradient, double factor) {
  if (gradient.scalar_type() == at::kHalf || gradient.scalar_type() == at::kBFloat16) {
    return gradient.to(at::kFloat).mul_(factor).to(gradient.scalar_type());
  }
  return gradient.mul(at::scalar_tensor(factor, gradient.options()));
}

TEST(GradientSlot, MultipliesToTorchsBits) {
  torch::manual_seed(4);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const double factor : {1.0, 0.5, 1.0 / 3, 1.0 / 7}) {
      at::Tensor bucket = torch::full({100}, 9, type);
      const GradientSlot slot = SlotIn(bucket, 50, kElements);
      const at::Tensor gradient = (torch::randn({kElements}) * 100).to(type);
      ASSERT_TRUE(FillSlot(slot, gradient, factor)) << type;
      const at::Tensor place = bucket.narrow(0, 50, kElements);
      EXPECT_TRUE(torch::equal(place, ByTorch(gradient, factor))) << type << " " << factor;
      EXPECT_TRUE(torch::equal(bucket.narrow(0, 0, 50), torch::full({50}, 9, type)));
      EXPECT_TRUE(torch::equal(bucket.narrow(0, 50 + kElements, 13), torch::full({13}, 9, type)));

      const at::Tensor before = place.clone();
      EXPECT_TRUE(IsSlot(slot, place));
      ASSERT_TRUE(FillSlot(slot, place, factor));
      EXPECT_TRUE(torch::equal(place, ByTorch(before, factor))) << "in place, " << type << " " << factor;

      at::Tensor out = torch::zeros({kElements}, type);
      const int64_t version = out._version();
      EXPECT_FALSE(IsSlot(slot, out));
      ASSERT_TRUE(CopySlotTo(slot, out));
      EXPECT_TRUE(torch::equal(out, place));
      EXPECT_GT(out._version(), version) << "autograd sees the change";
    }
  }
}

// As FSDP's: 37 elements on ranks that have 10 each, whose shards are 25 elements apart; the last have 7.
TEST(GradientSlot, AGradientMayLieInBlocks) {
  torch::manual_seed(5);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::Tensor bucket = torch::full({100}, 9, type);
    const GradientSlot slot = SlotIn(bucket, 5, kElements, 10, 25);
    const at::Tensor gradient = torch::randn({kElements}).to(type);
    ASSERT_TRUE(FillSlot(slot, gradient, 1.0 / 3));
    const at::Tensor product = ByTorch(gradient, 1.0 / 3);
    at::Tensor expected = torch::full({100}, 9, type);
    for (int64_t block = 0; block < 4; ++block) {
      const int64_t count = std::min<int64_t>(10, kElements - 10 * block);
      expected.narrow(0, 5 + 25 * block, count).copy_(product.narrow(0, 10 * block, count));
    }
    EXPECT_TRUE(torch::equal(bucket, expected)) << type;
    EXPECT_FALSE(CopySlotTo(slot, gradient));
    EXPECT_FALSE(IsSlot(slot, bucket.narrow(0, 5, kElements)));
  }
}

TEST(GradientSlot, LeavesUnknownGradientsToTheCaller) {
  const at::Tensor bucket = torch::zeros({40000});
  const GradientSlot slot = SlotIn(bucket, 0, 6);
  EXPECT_FALSE(FillSlot(slot, torch::ones({2, 3}).t(), 1)) << "not contiguous";
  EXPECT_FALSE(FillSlot(slot, torch::ones({6}, at::kDouble), 1)) << "another type";
  EXPECT_FALSE(FillSlot(slot, torch::ones({5}), 1)) << "another size";
  EXPECT_FALSE(FillSlot(slot, torch::ones({6}).to_sparse(), 1)) << "sparse";
  EXPECT_TRUE(torch::equal(bucket, torch::zeros({40000})));
  EXPECT_EQ(SlotIn(bucket, 0, 40000).data, nullptr) << "large";
  EXPECT_EQ(SlotIn(bucket, 0, 0).data, nullptr) << "empty";
  EXPECT_EQ(SlotIn(torch::zeros({9}, at::kInt), 0, 9).data, nullptr) << "an integer type";
  EXPECT_FALSE(FillSlot(GradientSlot(), torch::ones({6}), 1));
  EXPECT_TRUE(FillSlot(slot, torch::ones({2, 3}), 0.5)) << "any shape in a row";
  EXPECT_TRUE(torch::equal(bucket.narrow(0, 0, 6), torch::full({6}, 0.5)));
}

}  // namespace
}  // namespace cohort::trainer
