// ZeRO-2 in the table of placements: norms, clipping and scalers count each gradient once, at its owner.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/state/grad_scaler.h"
#include "cohort/trainer/transfer/job.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using Zero = ZeroRedundancyOptimizer<torch::optim::SGD>;

double WholeNorm(double scale = 1) {
  Net net;
  for (const at::Tensor& parameter : net.parameters()) {
    const comm::Buffer buffer(parameter.data_ptr<float>(), parameter.numel());
    EXPECT_TRUE(world->Broadcast(buffer, 0).Wait().ok());
  }
  double squares = 0;
  for (const at::Tensor& gradient : ExpectedGradients(net)) squares += (gradient * scale).pow(2).sum().item<double>();
  return std::sqrt(squares);
}

struct ShardedByZero {
  ShardedByZero() : net(std::make_shared<Net>()), zero(net->parameters(), *world, torch::optim::SGDOptions(0.1)) {
    model = std::make_unique<ShardedDataParallel<Net>>(net, zero, *world);
  }
  void Backward(double scale = 1) { (model->forward(InputOf(world->rank())).pow(2).mean() * scale).backward(); }

  std::shared_ptr<Net> net;
  Zero zero;
  std::unique_ptr<ShardedDataParallel<Net>> model;
};

TEST(Zero2Placements, TheNormCountsEachGradientAtItsOwner) {
  const double expected = WholeNorm();
  const auto mesh = init_device_mesh(*world, {world->size()}, {"replicate"});
  for (const bool over_mesh : {false, true}) {
    ShardedByZero sharded;
    sharded.Backward();
    const at::Tensor norm = clip_grad_norm_(sharded.net->parameters(), 1e9, 2, over_mesh ? mesh.get() : nullptr);
    EXPECT_NEAR(norm.item<double>(), expected, 1e-5);
    EXPECT_NEAR(sharded.zero.clip_grad_norm_(1e9).item<double>(), expected, 1e-5);
  }
}

TEST(Zero2Placements, TheScalerSkipsOnAllRanksWithoutBeingTold) {
  ShardedByZero sharded;
  GradScaler scaler({.init_scale = 8});
  for (const bool odd : {true, false}) {
    sharded.zero.zero_grad();
    sharded.Backward(scaler.get_scale());
    if (odd && world->rank() == world->size() - 1) {
      for (const at::Tensor& parameter : sharded.net->parameters()) {
        if (parameter.grad().defined()) parameter.mutable_grad().fill_(std::numeric_limits<float>::infinity());
      }
    }
    const bool last_owns = [&] {
      const std::vector<int>& owners = sharded.zero.owners();
      return std::find(owners.begin(), owners.end(), world->size() - 1) != owners.end();
    }();
    const bool skips = odd && last_owns;
    EXPECT_EQ(std::isfinite(scaler.unscale_and_clip_(sharded.zero, 1e9).item<double>()), !skips);
    EXPECT_EQ(scaler.step(sharded.zero), !skips);
    scaler.update();
  }
}

TEST(Zero2Placements, RanksThatPartitionOtherwiseAreToldTheDifference) {
  if (world->size() == 1) GTEST_SKIP() << "one rank has one setup";
  const bool odd = world->rank() == world->size() - 1;
  Net net;
  ZeroRedundancyOptimizerOptions options;
  options.allgather_bucket_bytes = odd ? 64 : 128;
  std::string error;
  try {
    Zero zero(net.parameters(), *world, torch::optim::SGDOptions(0.1), options);
  } catch (const c10::Error& caught) {
    error = caught.what_without_backtrace();
  }
  EXPECT_THAT(error, testing::HasSubstr("rank " + std::to_string(world->size() - 1) +
                                        " was set up otherwise than rank 0: options \"partition"));
}

TEST(Zero2Placements, PlacementsEndWithTheWrapper) {
  ShardedByZero sharded;
  const at::Tensor weight = sharded.net->first->weight;
  ASSERT_NE(Placements().Of(weight), nullptr);
  EXPECT_EQ(Placements().Of(weight)->owner("replicate"), sharded.zero.OwnerOf(weight));
  sharded.model.reset();
  EXPECT_EQ(Placements().Of(weight), nullptr);
}

}  // namespace
}  // namespace cohort::trainer
