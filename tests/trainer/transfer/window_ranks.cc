// Tensors in windows: what they hold survives each move, and FSDP's shards come home when the wrapper goes.
#include <memory>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/transfer/window_pool.h"
#include "cohort/trainer/transfer/window_tensor.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

TEST(WindowTensors, TensorsKeepTheirValuesAndViewsOnTheirWayInAndOut) {
  const at::Tensor whole = torch::arange(1000, torch::kFloat64) + world->rank();
  const at::Tensor view = whole.narrow(0, 10, 20).view({4, 5});
  const void* const before = whole.data_ptr();
  EnterWindow(*world, whole, "a test");
  EXPECT_NE(whole.data_ptr(), before);
  EXPECT_EQ(view.data_ptr(), whole.data_ptr<double>() + 10);
  EXPECT_EQ(view[3][4].item<double>(), 29 + world->rank());
  const void* const inside = whole.data_ptr();
  LeaveWindowForGood(whole);
  EXPECT_NE(whole.data_ptr(), inside);
  EXPECT_EQ(view.data_ptr(), whole.data_ptr<double>() + 10);
  EXPECT_TRUE(torch::equal(whole, torch::arange(1000, torch::kFloat64) + world->rank()));
  EnterWindow(*world, torch::empty({0}), "a test");
}

TEST(WindowTensors, WindowTensorsComeFromAPoolWhileItHasAny) {
  const auto pool = std::make_unique<WindowPool>(*world, 4096, 2);
  at::Tensor first = pool->Take(1024, torch::kFloat32);
  const void* const place = first.data_ptr();
  const at::Tensor second = pool->Take(7, torch::kInt64);
  EXPECT_NE(second.data_ptr(), place);
  EXPECT_NE(pool->Take(1, torch::kFloat32).data_ptr(), place);  // both are out
  const at::Tensor view = first.narrow(0, 1000, 24);
  first = at::Tensor();
  EXPECT_NE(pool->Take(1, torch::kFloat32).data_ptr(), place);  // the view holds it
  view.unsafeGetTensorImpl()->release_resources();
  EXPECT_EQ(pool->Take(1024, torch::kFloat32).data_ptr(), place);
  EXPECT_NE(pool->Take(1025, torch::kFloat32).data_ptr(), place);  // too large
  const WindowPool none(*world, 0, 2);
  EXPECT_EQ(none.Take(3, torch::kFloat32).numel(), 3);
}

TEST(WindowTensors, WindowsHoldFsdpShardsUntilTheWrapperGoes) {
  auto net = std::make_shared<Net>(64);
  auto model = std::make_unique<FullyShardedDataParallel<Net>>(net, *world);
  const auto place = [&] {
    for (const at::Tensor& parameter : net->parameters()) {
      if (parameter.numel() > 0) return parameter.data_ptr();
    }
    return static_cast<void*>(nullptr);
  };
  const void* const ordinary = place();
  model->forward(InputOf(world->rank())).sum().backward();
  if (world->size() > 1) {
    EXPECT_NE(place(), ordinary);
  }
  std::vector<at::Tensor> shards;
  for (const at::Tensor& parameter : net->parameters()) shards.push_back(parameter.detach().clone());
  const void* const inside = place();
  ASSERT_TRUE(world->Barrier().Wait().ok());
  model.reset();
  const auto after = net->parameters();
  for (size_t i = 0; i < shards.size(); ++i) EXPECT_TRUE(torch::equal(after[i], shards[i])) << i;
  if (world->size() > 1) {
    EXPECT_NE(place(), inside);
  }
}

}  // namespace
}  // namespace cohort::trainer
