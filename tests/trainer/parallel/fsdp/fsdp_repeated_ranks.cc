// Units of FullyShardedDataParallel that run more than once before a backward pass: all of their gradients are in the
// average, whatever the parameters' type in between.
#include <memory>
#include <optional>
#include <tuple>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;

// Two blocks, called one after the other, twice.
struct Looped : torch::nn::Module {
  explicit Looped(const Tower::Wrap& wrap) {
    for (int i = 0; i < 2; ++i) {
      auto [module, forward] = wrap(std::make_shared<Block>(i));
      register_module("block" + std::to_string(i), module);
      blocks.push_back(forward);
    }
    torch::manual_seed(60);
    head = register_module("head", torch::nn::Linear(4, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (int round = 0; round < rounds; ++round) {
      for (const auto& block : blocks) y = block(y);
    }
    return head(y);
  }
  std::vector<Tower::Forward> blocks;
  int rounds = 2;
  torch::nn::Linear head{nullptr};
};

// With rank 0's weights.
std::shared_ptr<Looped> PlainLooped() {
  auto model = std::make_shared<Looped>([](std::shared_ptr<Block> block) {
    return std::make_pair(block, [block](const at::Tensor& x) { return block->forward(x); });
  });
  const DistributedDataParallel<Looped> same_start(model, *world);
  return model;
}

template <typename Module>
std::pair<std::shared_ptr<torch::nn::Module>, Tower::Forward> ShardBlock(
    std::shared_ptr<Module> module, const FullyShardedDataParallelOptions& options) {
  auto wrapped = std::make_shared<FullyShardedDataParallel<Module>>(module, *world, options);
  return {wrapped, [wrapped](const at::Tensor& x) { return wrapped->forward(x); }};
}

using ShardedLooped = FullyShardedDataParallel<Looped>;

std::shared_ptr<ShardedLooped> ShardLooped(const FullyShardedDataParallelOptions& options, bool checkpointed) {
  auto model = std::make_shared<Looped>([&](std::shared_ptr<Block> block) {
    if (!checkpointed) return ShardBlock(block, options);
    return ShardBlock(std::make_shared<CheckpointWrapper<Block>>(block), options);
  });
  return std::make_shared<ShardedLooped>(model, *world, options);
}

void ExpectShardGradients(ShardedLooped& model, const std::vector<at::Tensor>& expected) {
  const auto parts = model.sharded_parameters();
  ASSERT_EQ(parts.size(), expected.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    ASSERT_TRUE(parts[i].tensor.grad().defined()) << parts[i].name;
    EXPECT_TRUE(torch::allclose(parts[i].tensor.grad(), PartOf(parts[i], expected[i]), 1e-4, 1e-6)) << parts[i].name;
  }
}

void ZeroGradients(ShardedLooped& model) {
  for (auto& parameter : model.parameters()) parameter.mutable_grad() = at::Tensor();
}

// The type to compute in, the strategy, whether blocks are checkpointed.
class FsdpRepeated : public testing::TestWithParam<std::tuple<std::optional<at::ScalarType>, ShardingStrategy, bool>> {
 protected:
  std::shared_ptr<ShardedLooped> Make() const {
    const auto& [type, strategy, checkpointed] = GetParam();
    FullyShardedDataParallelOptions options;
    options.sharding_strategy = strategy;
    options.mixed_precision.param_dtype = type;
    return ShardLooped(options, checkpointed);
  }
};

TEST_P(FsdpRepeated, RepeatedUnitsGiveAllTheirGradientsInTheSameStep) {
  auto reference = PlainLooped();
  auto model = Make();
  for (int step = 0; step < 3; ++step) {
    SCOPED_TRACE(step);
    ZeroGradients(*model);
    model->forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    ExpectShardGradients(*model, ExpectedGradients(*reference, step));
  }
}

TEST_P(FsdpRepeated, SeveralForwardPassesOfOneLossGiveAllTheirGradients) {
  auto reference = PlainLooped();
  auto model = Make();
  for (int step = 0; step < 2; ++step) {
    SCOPED_TRACE(step);
    ZeroGradients(*model);
    const at::Tensor first = model->forward(InputOf(world->rank(), step)).pow(2).mean();
    (first + model->forward(InputOf(world->rank(), step + 1)).pow(2).mean()).backward();
    auto expected = ExpectedGradients(*reference, step);
    const auto second = ExpectedGradients(*reference, step + 1);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += second[i];
    ExpectShardGradients(*model, expected);
  }
}

// Accumulated, then averaged: all of it once.
TEST_P(FsdpRepeated, GradientsOfRepeatedUnitsAccumulateUnderNoSync) {
  auto reference = PlainLooped();
  auto model = Make();
  {
    const auto guard = model->no_sync();
    model->forward(InputOf(world->rank(), 0)).pow(2).mean().backward();
  }
  model->forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
  auto expected = ExpectedGradients(*reference, 0);
  const auto second = ExpectedGradients(*reference, 1);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += second[i];
  ExpectShardGradients(*model, expected);
}

INSTANTIATE_TEST_SUITE_P(Options, FsdpRepeated,
                         testing::Combine(testing::Values(std::nullopt, std::optional(at::kDouble)),
                                          testing::Values(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp),
                                          testing::Bool()));

// One run of one unit in which a checkpointed function is called twice: the last of its gradients comes after the unit
// had one of every parameter.
struct TwiceInside : torch::nn::Module {
  TwiceInside() {
    torch::manual_seed(70);
    shared = register_module("shared", torch::nn::Linear(4, 4));
    first = register_module("first", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = checkpoint([this](const at::Tensor& in) { return first(shared(in)); }, x);
    return checkpoint([this](const at::Tensor& in) { return shared(in); }, y);
  }
  torch::nn::Linear shared{nullptr}, first{nullptr};
};

// It would be lost, or come into the next step's average.
template <typename Backward>
void ExpectRefused(const Backward& backward) {
  try {
    backward();
    FAIL() << "a gradient is lost";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("got another gradient"));
  }
}

TEST(FsdpRepeatedInside, AUnitRepeatedInsideAnotherIsRefused) {
  auto model = std::make_shared<FullyShardedDataParallel<TwiceInside>>(std::make_shared<TwiceInside>(), *world);
  ExpectRefused([&] { model->forward(InputOf(world->rank())).pow(2).mean().backward(); });
}

TEST(FsdpRepeatedInside, AGraphAfterItsBackwardPassIsRefusedBesideAnother) {
  FullyShardedDataParallelOptions options;
  options.mixed_precision.param_dtype = torch::kDouble;
  auto model = ShardLooped(options, /*checkpointed=*/true);
  model->module()->rounds = 1;
  const at::Tensor first = model->forward(InputOf(world->rank(), 0)).pow(2).mean();
  first.backward({}, /*retain_graph=*/true);
  const at::Tensor second = model->forward(InputOf(world->rank(), 1)).pow(2).mean();
  ExpectRefused([&] { (first + second).backward(); });
}

}  // namespace
}  // namespace cohort::trainer
