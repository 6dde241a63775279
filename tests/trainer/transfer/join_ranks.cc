// Join beyond one forward and one backward pass an input: evaluation, no_sync, clipping, forward passes of any order.
// Rank 0 has no input at all, so that it knows of the others only what they tell.
#include <memory>
#include <string>
#include <tuple>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "tests/trainer/wanderer.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;
using torch::optim::SGD;

int InputsOf(int rank) {
  if (world->size() == 1) return 2;
  return rank == 0 ? 0 : 1 + rank;
}
int MostInputs() { return InputsOf(world->size() - 1); }

// Trains `model` on the inputs of all ranks that have one in `step`.
template <typename Model>
void StepOfAll(Model& model, torch::optim::Optimizer& optimizer, int step, bool by_initial, int does) {
  at::Tensor loss = torch::zeros({});
  int active = 0;
  for (int rank = 0; rank < world->size(); ++rank) {
    if (step >= InputsOf(rank)) continue;
    ++active;
    if ((does & kAccumulates) != 0) loss = loss + model.forward(InputOf(rank, 2 * step)).pow(2).mean();
    loss = loss + model.forward(InputOf(rank, 2 * step + 1)).pow(2).mean();
  }
  optimizer.zero_grad();
  (loss / (by_initial ? world->size() : active)).backward();
  if ((does & kClips) != 0) torch::nn::utils::clip_grad_norm_(model.parameters(), kMaxNorm);
  optimizer.step();
}

// This rank's part of it.
template <typename Model, typename Clip>
void StepOfOne(Model& model, torch::optim::Optimizer& optimizer, int step, int does, const Clip& clip) {
  optimizer.zero_grad();
  if ((does & kAccumulates) != 0) {
    const auto guard = model.no_sync();
    model.forward(InputOf(world->rank(), 2 * step)).pow(2).mean().backward();
  }
  model.forward(InputOf(world->rank(), 2 * step + 1)).pow(2).mean().backward();
  if ((does & kClips) != 0) clip();
  optimizer.step();
}

void ExpectClose(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i].to(expected[i].scalar_type()), expected[i], 1e-4, 1e-6))
        << "parameter " << i << ": " << (actual[i] - expected[i]).abs().max();
  }
}

// Parameters: the content of steps, whether averages are of all ranks, whether gradients go to their owners.
class JoinOfReplicas : public testing::TestWithParam<std::tuple<int, bool, bool>> {};

TEST_P(JoinOfReplicas, RanksWithoutInputsAnswerAveragesClippingAndSteps) {
  const auto& [does, by_initial, second_stage] = GetParam();
  auto model = std::make_shared<Net>();
  auto reference = std::make_shared<Net>();
  const DistributedDataParallel<Net> same_start(reference, *world);
  ZeroRedundancyOptimizer<SGD> optimizer(model->parameters(), *world, Momentum());
  std::unique_ptr<DistributedDataParallel<Net>> ddp;
  if (second_stage) {
    ddp = std::make_unique<ShardedDataParallel<Net>>(model, optimizer, *world);
  } else {
    ddp = std::make_unique<DistributedDataParallel<Net>>(model, *world);
  }
  Join({ddp.get(), &optimizer}, {.divide_by_initial_world_size = by_initial}).run([&] {
    for (int step = 0; step < InputsOf(world->rank()); ++step) {
      if ((does & kEvaluates) != 0 && world->rank() == world->size() - 1) {  // which nobody else does
        const torch::NoGradGuard no_grad;
        model->eval();
        ddp->forward(InputOf(0));
        model->train();
      }
      StepOfOne(*ddp, optimizer, step, does, [&] { optimizer.clip_grad_norm_(kMaxNorm); });
    }
  });
  SGD plain(reference->parameters(), Momentum());
  for (int step = 0; step < MostInputs(); ++step) StepOfAll(*reference, plain, step, by_initial, does);
  ExpectClose(model->parameters(), reference->parameters());
}
INSTANTIATE_TEST_SUITE_P(Does, JoinOfReplicas,
                         testing::Combine(testing::Values(kEvaluates, kAccumulates, kClips, kEverything),
                                          testing::Bool(), testing::Bool()));

double RateOf(int step) { return 0.2 / (1 + step); }
void SetRate(torch::optim::Optimizer& optimizer, int step) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(RateOf(step));
}

TEST(JoinOfReplicas, StepsWithTheLearningRatesOfRanksWithInputs) {
  auto model = std::make_shared<Net>();
  auto reference = std::make_shared<Net>();
  const DistributedDataParallel<Net> same_start(reference, *world);
  ZeroRedundancyOptimizer<SGD> optimizer(model->parameters(), *world, Momentum());
  DistributedDataParallel<Net> ddp(model, *world);
  Join({&ddp, &optimizer}).run([&] {
    for (int step = 0; step < InputsOf(world->rank()); ++step) {
      SetRate(optimizer, step);
      StepOfOne(ddp, optimizer, step, kNothingElse, [] {});
    }
  });
  SGD plain(reference->parameters(), Momentum());
  for (int step = 0; step < MostInputs(); ++step) {
    SetRate(plain, step);
    StepOfAll(*reference, plain, step, /*by_initial=*/true, kNothingElse);
  }
  ExpectClose(model->parameters(), reference->parameters());
}

// Options of a user's own may have no get_lr() and set_lr(), which torch's schedulers alone ask for.
struct PlainOptions : torch::optim::OptimizerCloneableOptions<PlainOptions> {
  double rate = 0.2;
};

class PlainDescent : public torch::optim::Optimizer {
 public:
  PlainDescent(std::vector<torch::optim::OptimizerParamGroup> groups, const PlainOptions& defaults)
      : Optimizer(std::move(groups), std::make_unique<PlainOptions>(defaults)) {}
  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      const double rate = static_cast<const PlainOptions&>(group.options()).rate;
      for (auto& parameter : group.params()) {
        if (parameter.grad().defined()) parameter.sub_(parameter.grad() * rate);
      }
    }
    return {};
  }
};

TEST(JoinOfReplicas, StepsByOptionsWithoutALearningRate) {
  auto model = std::make_shared<Net>();
  auto reference = std::make_shared<Net>();
  const DistributedDataParallel<Net> same_start(reference, *world);
  ZeroRedundancyOptimizer<PlainDescent> optimizer(model->parameters(), *world, PlainOptions());
  DistributedDataParallel<Net> ddp(model, *world);
  Join({&ddp, &optimizer}).run([&] {
    for (int step = 0; step < InputsOf(world->rank()); ++step) {
      StepOfOne(ddp, optimizer, step, kNothingElse, [] {});
    }
  });
  SGD plain(reference->parameters(), torch::optim::SGDOptions(PlainOptions().rate));
  for (int step = 0; step < MostInputs(); ++step) StepOfAll(*reference, plain, step, /*by_initial=*/true, kNothingElse);
  ExpectClose(model->parameters(), reference->parameters());
}

// A rank whose inputs end between two averages still has what it accumulated in the next one; only there.
TEST(JoinOfReplicas, GradientsAccumulatedBeforeARanksEndAreAveraged) {
  for (const auto& [bucket_view, second_stage] : {std::pair(false, false), {true, false}, {false, true}}) {
    auto model = std::make_shared<Net>();
    auto reference = std::make_shared<Net>();
    const DistributedDataParallel<Net> same_start(reference, *world);
    ZeroRedundancyOptimizer<SGD> optimizer(model->parameters(), *world, Momentum());
    DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = bucket_view;
    options.buckets = {.first_bytes = 8, .cap_bytes = 70};
    std::unique_ptr<DistributedDataParallel<Net>> ddp;
    if (second_stage) {
      ddp = std::make_unique<ShardedDataParallel<Net>>(model, optimizer, *world, options);
    } else {
      ddp = std::make_unique<DistributedDataParallel<Net>>(model, *world, options);
    }
    const bool ends_early = world->size() > 1 && world->rank() == 0;
    Join({ddp.get(), &optimizer}, {.divide_by_initial_world_size = false}).run([&] {
      {
        const auto guard = ddp->no_sync();
        ddp->forward(InputOf(world->rank(), 0)).pow(2).mean().backward();
      }
      for (int step = 1; step < 3 && !ends_early; ++step) {
        ddp->forward(InputOf(world->rank(), step)).pow(2).mean().backward();
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    SGD plain(reference->parameters(), Momentum());
    for (int step = 1; step < 3; ++step) {
      at::Tensor loss = torch::zeros({});
      for (int rank = 0; rank < world->size(); ++rank) {
        if (step == 1) loss = loss + reference->forward(InputOf(rank, 0)).pow(2).mean();
        if (world->size() == 1 || rank > 0) loss = loss + reference->forward(InputOf(rank, step)).pow(2).mean();
      }
      plain.zero_grad();
      (loss / std::max(world->size() - 1, 1)).backward();
      plain.step();
    }
    ExpectClose(model->parameters(), reference->parameters());
  }
}

// The order of buckets is that of a rank with inputs, also when it comes after the Join.
TEST(JoinOfReplicas, AgreesOnTheOrderOfBuckets) {
  DistributedDataParallelOptions options;
  options.buckets = {.first_bytes = 8, .cap_bytes = 70};
  for (const bool joined_again : {false, true}) {
    auto model = std::make_shared<Net>();
    DistributedDataParallel<Net> ddp(model, *world, options);
    const auto steps = [&](int inputs) {
      for (int step = 0; step < inputs; ++step) {
        for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
        ddp.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
      }
    };
    Join join({&ddp});
    join.run([&] { steps(world->size() == 1 || world->rank() > 0 ? 1 : 0); });
    if (joined_again) {
      join.run([&] { steps(2); });
    } else {
      steps(2);
    }
    EXPECT_TRUE(ddp.reducer().rebuilt());
    ExpectGradients(*model, ExpectedGradients(*model, 1));
  }
}

TEST(JoinOfReplicas, RefusesCallsThatDiffer) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks to differ";
  auto model = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(model, *world);
  if (world->rank() == 0) model->eval();
  try {
    Join({&ddp}).run([&] { ddp.forward(InputOf(0)).sum().backward(); });
    FAIL() << "nobody noticed";
  } catch (const DistributedError& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank 0"));
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank 1"));
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("broadcasts buffers"));
  }
}

std::shared_ptr<Wanderer> PlainWanderer() {
  auto model = std::make_shared<Wanderer>([](std::shared_ptr<Block> block) {
    return std::make_pair(block, [block](const at::Tensor& x) { return block->forward(x); });
  });
  const DistributedDataParallel<Wanderer> same_start(model, *world);
  return model;
}

void ExpectJoined(ShardedWanderer& model, bool by_initial, int does) {
  auto reference = PlainWanderer();
  SGD optimizer(model.parameters(), Momentum());
  SGD plain(reference->parameters(), Momentum());
  JoinableOptimizer steps(optimizer, *world);
  Join join({&model, &steps}, {.divide_by_initial_world_size = by_initial});
  join.run([&] {
    for (int step = 0; step < InputsOf(world->rank()); ++step) {
      model.module()->Turn(step + 1, does);
      if ((does & kEvaluates) != 0) {
        const torch::AutoGradMode grad(step % 2 == 0);
        model.forward(InputOf(0));
      }
      model.module()->Turn(step, does);
      StepOfOne(model, optimizer, step, does, [&] { model.clip_grad_norm_(kMaxNorm); });
    }
  });
  for (int step = 0; step < MostInputs(); ++step) {
    reference->Turn(step, does);
    StepOfAll(*reference, plain, step, by_initial, does);
  }
  ExpectClose(Whole(model), reference->parameters());
  // All of them again, of which some have only answered.
  model.module()->Turn(1, does);
  reference->Turn(1, does);
  optimizer.zero_grad();
  model.forward(InputOf(world->rank())).pow(2).mean().backward();
  const auto expected = ExpectedGradients(*reference);
  const auto parts = model.sharded_parameters();
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(torch::allclose(parts[i].tensor.grad(), PartOf(parts[i], expected[i]), 1e-3, 1e-5)) << parts[i].name;
  }
}

// Parameters: the content of steps, and whether averages are of all ranks.
class JoinOfShards : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(JoinOfShards, RanksWithoutInputsAnswerAnyForwardPassOrderAndClipping) {
  const auto& [does, by_initial] = GetParam();
  FullyShardedDataParallelOptions options;
  ExpectJoined(*ShardWanderer(*world, options), by_initial, does);
  if (does != kEverything) return;
  options.sharding_strategy = ShardingStrategy::kShardGradOp;
  options.backward_prefetch = BackwardPrefetch::kNone;
  ExpectJoined(*ShardWanderer(*world, options), by_initial, does);
  options.reshard_after_forward = world->size() % 2 == 0 ? ReshardAfterForward(2) : ReshardAfterForward(true);
  options.mixed_precision.param_dtype = torch::kDouble;
  ExpectJoined(*ShardWanderer(*world, options), by_initial, does);
}

TEST_P(JoinOfShards, RanksWithoutInputsAnswerRanksOfReplicas) {
  const auto& [does, by_initial] = GetParam();
  if (world->size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok());
  FullyShardedDataParallelOptions options;
  options.sharding_strategy = ShardingStrategy::kHybridShard;
  for (const bool over_world : {false, true}) {
    options.reduce_over_world = over_world;
    ExpectJoined(*ShardWanderer(**mesh, options), by_initial, does);
  }
}
INSTANTIATE_TEST_SUITE_P(Does, JoinOfShards,
                         testing::Combine(testing::Values(kNothingElse, kWanders, kEvaluates, kAccumulates, kClips,
                                                          kEverything),
                                          testing::Bool()));

TEST(JoinOfShards, JoinGoesOnWithAScheduleOfLearningRates) {
  auto model = ShardWanderer(*world, {});
  auto reference = PlainWanderer();
  model->module()->Turn(0, kNothingElse);
  reference->Turn(0, kNothingElse);
  SGD optimizer(model->parameters(), Momentum());
  SGD plain(reference->parameters(), Momentum());
  int steps_done = 0;
  SetRate(optimizer, 0);
  const auto schedule = [&] { SetRate(optimizer, ++steps_done); };
  JoinableOptimizer steps(optimizer, *world, schedule);
  Join({model.get(), &steps}).run([&] {
    for (int step = 0; step < InputsOf(world->rank()); ++step) {
      StepOfOne(*model, optimizer, step, kNothingElse, [] {});
      schedule();
    }
  });
  EXPECT_EQ(steps_done, MostInputs());
  for (int step = 0; step < MostInputs(); ++step) {
    SetRate(plain, step);
    StepOfAll(*reference, plain, step, /*by_initial=*/true, kNothingElse);
  }
  ExpectClose(Whole(*model), reference->parameters());
}

// A rank whose inputs end between two averages still has what it accumulated in the next one.
TEST(JoinOfShards, GradientsAccumulatedBeforeARanksEndAreAveraged) {
  auto model = ShardWanderer(*world, {});
  auto reference = PlainWanderer();
  model->module()->Turn(0, kWanders);
  reference->Turn(0, kWanders);
  const bool ends_early = world->size() > 1 && world->rank() == 0;
  Join({model.get()}, {.divide_by_initial_world_size = false}).run([&] {
    {
      const auto guard = model->no_sync();
      model->forward(InputOf(world->rank(), 0)).pow(2).mean().backward();
    }
    if (!ends_early) model->forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
  });
  at::Tensor loss = torch::zeros({});
  for (int rank = 0; rank < world->size(); ++rank) {
    loss = loss + reference->forward(InputOf(rank, 0)).pow(2).mean();
    if (world->size() == 1 || rank > 0) loss = loss + reference->forward(InputOf(rank, 1)).pow(2).mean();
  }
  (loss / std::max(world->size() - 1, 1)).backward();
  const auto parts = model->sharded_parameters();
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor expected = PartOf(parts[i], reference->parameters()[i].grad());
    EXPECT_TRUE(torch::allclose(parts[i].tensor.grad(), expected, 1e-4, 1e-6)) << parts[i].name;
  }
}

}  // namespace
}  // namespace cohort::trainer
