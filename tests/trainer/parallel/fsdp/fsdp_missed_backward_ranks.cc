// A rank that runs forward and leaves the backward pass out, while the others wait for its gradients.
#include <chrono>
#include <functional>
#include <string>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

using MissedSharded = FullyShardedDataParallel<Net>;

std::shared_ptr<MissedSharded> ShardNet(comm::Communicator& group, ShardingStrategy strategy) {
  FullyShardedDataParallelOptions options;
  options.sharding_strategy = strategy;
  return std::make_shared<MissedSharded>(std::make_shared<Net>(), group, options);
}

bool IsLast() { return world->rank() == world->size() - 1; }

TEST(FsdpMissedBackward, AMissedBackwardPassIsAnErrorOnAllRanksThatNamesIt) {
  if (world->size() == 1) GTEST_SKIP() << "nobody else has it";
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    const auto group = world->Duplicate().value();
    const auto model = ShardNet(*group, strategy);
    std::string error;
    steady_clock::time_point missed;
    for (int step = 0; step < 4 && error.empty(); ++step) {
      if (step == 2) {
        ASSERT_TRUE(world->Barrier().Wait().ok());
        missed = steady_clock::now();
      }
      try {
        const at::Tensor loss = model->forward(InputOf(world->rank(), step)).pow(2).mean();
        if (step != 2 || !IsLast()) loss.backward();
      } catch (const DistributedError& caught) {
        error = caught.what_without_backtrace();
      }
    }
    const auto own = HasSubstr("went on after a forward pass without the backward pass");
    EXPECT_THAT(error, testing::AnyOf(own, HasSubstr("has a rank left out a backward pass that the others run?")));
    if (IsLast()) {
      EXPECT_THAT(error, own);
    }
    EXPECT_LT(steady_clock::now() - missed, std::chrono::seconds(10));  // 1 s on an idle machine
    ASSERT_TRUE(world->Barrier().Wait().ok());
  }
}

TEST(FsdpMissedBackward, ABackwardPassThatNoRankRunsIsNoError) {
  const auto group = world->Duplicate().value();
  const auto model = ShardNet(*group, ShardingStrategy::kFullShard);
  for (int step = 0; step < 4; ++step) {
    at::Tensor loss = model->forward(InputOf(world->rank(), step)).pow(2).mean();
    if (step == 2) continue;  // as an evaluation that has forgotten NoGradGuard
    loss.backward();
  }
  // Two forward passes of one loss.
  const at::Tensor first = model->forward(InputOf(world->rank(), 5)),
                   second = model->forward(InputOf(world->rank(), 6));
  (first * second).sum().backward();
  for (const at::Tensor& parameter : model->parameters()) {
    if (parameter.numel() > 0) {
      EXPECT_TRUE(parameter.grad().defined());
    }
  }
}

}  // namespace
}  // namespace cohort::trainer
