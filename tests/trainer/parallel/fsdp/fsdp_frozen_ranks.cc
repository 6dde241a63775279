// Units of FullyShardedDataParallel without gradients of their own, or of some of their parameters only.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

void Freeze(FullyShardedModule& model, const std::function<bool(const std::string&)>& frozen) {
  for (const auto& part : model.sharded_parameters()) at::Tensor(part.tensor).requires_grad_(!frozen(part.name));
}

void Freeze(torch::nn::Module& model, const std::function<bool(const std::string&)>& frozen) {
  for (const auto& item : model.named_parameters()) at::Tensor(item.value()).requires_grad_(!frozen(item.key()));
}

bool InABlock(const std::string& name) { return name.rfind("block", 0) == 0; }
bool InUp(const std::string& name) { return name.find(".up.") != std::string::npos; }
bool InDown(const std::string& name) { return name.find(".down.") != std::string::npos; }

// The gradients, and those of the input, are those of DistributedDataParallel with the same parameters frozen.
void ExpectLikeDdp(Sharded& model, const std::function<bool(const std::string&)>& frozen) {
  auto reference = Plain();
  Freeze(*reference, frozen);
  DistributedDataParallel<Tower> ddp(reference, *world);
  Freeze(model, frozen);
  for (int step = 0; step < 2; ++step) {
    SCOPED_TRACE(step);
    at::Tensor x = InputOf(world->rank(), step).requires_grad_(), y = InputOf(world->rank(), step).requires_grad_();
    for (auto& parameter : model.parameters()) parameter.mutable_grad() = at::Tensor();
    for (auto& parameter : reference->parameters()) parameter.mutable_grad() = at::Tensor();
    model.forward(x).pow(2).mean().backward();
    ddp.forward(y).pow(2).mean().backward();
    EXPECT_TRUE(torch::allclose(x.grad(), y.grad(), 1e-4, 1e-6));
    const auto parts = model.sharded_parameters();
    for (size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor whole = reference->parameters()[i].grad();
      ASSERT_EQ(parts[i].tensor.grad().defined(), whole.defined()) << parts[i].name;
      if (!whole.defined()) continue;
      EXPECT_TRUE(torch::allclose(parts[i].tensor.grad(), PartOf(parts[i], whole), 1e-4, 1e-6)) << parts[i].name;
    }
    for (const auto& unit : model.root().units()) EXPECT_TRUE(unit->sharded());
  }
}

class FsdpFrozen : public testing::TestWithParam<std::tuple<ShardingStrategy, BackwardPrefetch>> {
 protected:
  FullyShardedDataParallelOptions options() const {
    FullyShardedDataParallelOptions options;
    options.sharding_strategy = std::get<0>(GetParam());
    options.backward_prefetch = std::get<1>(GetParam());
    return options;
  }
};

TEST_P(FsdpFrozen, FrozenUnitsTrainAsInDdp) { ExpectLikeDdp(*Shard(*world, options()), InABlock); }
// The last gradient of a unit comes before what needs the frozen weights of its first layer.
TEST_P(FsdpFrozen, FrozenFirstLayersTrainAsInDdp) { ExpectLikeDdp(*Shard(*world, options()), InUp); }
TEST_P(FsdpFrozen, FrozenLastLayersTrainAsInDdp) { ExpectLikeDdp(*Shard(*world, options()), InDown); }

// At the end of backward no more than at its beginning: the root, and with prefetching another block.
TEST_P(FsdpFrozen, FrozenUnitsAreFreedWhenBackwardHasPassedThem) {
  auto model = Shard(*world, options());
  Freeze(*model, InABlock);
  const auto gathered = [&model] {
    const auto& units = model->root().units();
    return std::count_if(units.begin(), units.end(), [](const auto& unit) { return unit->unsharded(); });
  };
  at::Tensor x = InputOf(world->rank()).requires_grad_();
  int64_t at_the_end = -1;
  x.register_hook([&](const at::Tensor&) { at_the_end = gathered(); });
  model->forward(x).pow(2).mean().backward();
  EXPECT_LE(at_the_end, 2) << "the root, and the first block";
  EXPECT_EQ(gathered(), 0);
}

INSTANTIATE_TEST_SUITE_P(Options, FsdpFrozen,
                         testing::Combine(testing::Values(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp),
                                          testing::Values(BackwardPrefetch::kNone, BackwardPrefetch::kBackwardPre)));

// A frozen unit around others is needed again after them.
struct Around : torch::nn::Module {
  explicit Around(const Tower::Wrap& wrap) {
    torch::manual_seed(80 + 1000 * world->rank());
    first = register_module("first", torch::nn::Linear(4, 4));
    auto [module, forward] = wrap(std::make_shared<Block>(1));
    register_module("inner", module);
    inner = forward;
    last = register_module("last", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return last(torch::tanh(inner(torch::tanh(first(x))))); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  Tower::Forward inner;
};

struct Outermost : torch::nn::Module {
  explicit Outermost(std::shared_ptr<FullyShardedDataParallel<Around>> within) : around(within) {
    register_module("around", within);
    torch::manual_seed(90);
    before = register_module("before", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return around->forward(before(x)); }
  std::shared_ptr<FullyShardedDataParallel<Around>> around;
  torch::nn::Linear before{nullptr};
};

TEST(FsdpFrozenAround, AFrozenUnitStaysForLayersBeforeTheUnitWithin) {
  auto around = std::make_shared<Around>([](std::shared_ptr<Block> block) {
    auto wrapped = std::make_shared<FullyShardedDataParallel<Block>>(block, *world);
    return std::make_pair(wrapped, [wrapped](const at::Tensor& x) { return wrapped->forward(x); });
  });
  FullyShardedDataParallel<Outermost> model(
      std::make_shared<Outermost>(std::make_shared<FullyShardedDataParallel<Around>>(around, *world)), *world);
  Freeze(model, [](const std::string& name) { return name.rfind("around.", 0) == 0; });
  at::Tensor x = InputOf(0).requires_grad_();
  model.forward(x).pow(2).mean().backward();
  const auto whole = Whole(model);  // before (weight, bias) last, around's in order
  const auto linear = [&](const at::Tensor& in, size_t weight) {
    return torch::nn::functional::linear(in, whole[weight], whole[weight + 1]);
  };
  at::Tensor y = InputOf(0).requires_grad_();
  ASSERT_EQ(whole.size(), 10U);
  // Order of registration: first, inner.up, inner.down, last, before.
  const at::Tensor a = torch::tanh(linear(linear(y, 8), 0));
  const at::Tensor b = a + linear(torch::tanh(linear(a, 2)), 4);
  linear(torch::tanh(b), 6).pow(2).mean().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), y.grad(), 1e-4, 1e-6));
}

// Nothing that ran before the first unit frees it, and nobody else has views of it.
TEST(FsdpDetached, AUnitWithoutDetachedUsesIsFreedWithItsLastGradient) {
  auto model = Shard(*world);
  at::Tensor x = InputOf(world->rank()).requires_grad_();
  int calls = 0;
  x.register_hook([&](const at::Tensor&) {
    ++calls;
    for (const auto& unit : model->root().units()) EXPECT_TRUE(unit->sharded()) << unit->parameters().front().name;
  });
  model->forward(x * 2).pow(2).mean().backward();
  EXPECT_EQ(calls, 1);
}

// Uses its weight once more in a way that brings it no gradient, before the use that does: in backward after it.
struct Shy : torch::nn::Module {
  Shy() {
    torch::manual_seed(95 + world->rank());
    layer = register_module("layer", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return layer(torch::tanh(x.mm(layer->weight.detach().t()))); }
  torch::nn::Linear layer{nullptr};
};

TEST(FsdpDetached, DetachedUsesOfAWeightFindItAfterItsLastGradient) {
  using Unit = FullyShardedDataParallel<Shy>;
  struct Chain : torch::nn::Module {
    Chain() {
      for (int i = 0; i < 4; ++i) units.push_back(std::make_shared<Unit>(std::make_shared<Shy>(), *world));
      for (int i = 0; i < 4; ++i) register_module("unit" + std::to_string(i), units[i]);
    }
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor y = x;
      for (const auto& unit : units) {
        y = unit->forward(y);
        if (y.requires_grad()) y.register_hook([this](const at::Tensor&) { watch(); });
      }
      return y;
    }
    std::vector<std::shared_ptr<Unit>> units;
    std::function<void()> watch;
  };
  FullyShardedDataParallel<Chain> model(std::make_shared<Chain>(), *world);
  int64_t most = 0;
  model.module()->watch = [&] {
    const auto& units = model.root().units();
    most = std::max(most, std::count_if(units.begin(), units.end(), [](const auto& unit) {
                      return !unit->parameters().empty() && !unit->sharded();
                    }));
  };
  std::vector<at::Tensor> whole = Whole(model);
  for (at::Tensor& each : whole) each.requires_grad_();
  at::Tensor x = InputOf(world->rank()).requires_grad_();
  model.forward(x).pow(2).mean().backward();
  EXPECT_EQ(most, 2);  // this one and the next
  std::vector<at::Tensor> expected;
  at::Tensor x_gradient;
  for (int rank = 0; rank < world->size(); ++rank) {
    const at::Tensor input = InputOf(rank).requires_grad_();
    at::Tensor y = input;
    for (size_t i = 0; i < whole.size(); i += 2) {
      y = torch::nn::functional::linear(torch::tanh(y.mm(whole[i].detach().t())), whole[i], whole[i + 1]);
    }
    std::vector<at::Tensor> inputs = whole;
    inputs.push_back(input);
    const auto grads = torch::autograd::grad({y.pow(2).mean()}, inputs);
    if (rank == world->rank()) x_gradient = grads.back();
    for (size_t i = 0; i < whole.size(); ++i) {
      if (rank == 0) expected.push_back(torch::zeros_like(grads[i]));
      expected[i] += grads[i] / world->size();
    }
  }
  EXPECT_TRUE(torch::allclose(x.grad(), x_gradient, 1e-4, 1e-6));
  const auto parts = model.sharded_parameters();
  ASSERT_EQ(parts.size(), expected.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(torch::allclose(parts[i].tensor.grad(), PartOf(parts[i], expected[i]), 1e-4, 1e-6)) << parts[i].name;
  }
}

}  // namespace
}  // namespace cohort::trainer
