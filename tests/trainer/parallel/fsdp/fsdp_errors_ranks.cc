// Errors under FullyShardedDataParallel: models that differ, forward passes that throw, batches that one rank has more
// of.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/fsdp/fully_shard.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/join.h"
#include "tests/support/delayed_collectives.h"
#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

std::string SetupErrorOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const DistributedError& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    return error.what_without_backtrace();
  }
  return "";
}

// Two layers and more, of which something differs on the last rank.
struct Odd : torch::nn::Module {
  using Wrapped = FullyShardedDataParallel<torch::nn::LinearImpl>;
  Odd(const std::string& how, const FullyShardedDataParallelOptions& options) {
    const bool odd = world->rank() == world->size() - 1;
    const auto add = [&](const std::string& name, int64_t width) {
      layers.push_back(register_module(
          name, std::make_shared<Wrapped>(std::make_shared<torch::nn::LinearImpl>(width, 4), *world, options)));
    };
    add("first", 4);
    if (!odd || how != "missing") add("second", odd && how == "wider" ? 6 : 4);
    register_parameter(odd && how == "renamed" ? "shift" : "scale", torch::ones({4}), !(odd && how == "frozen"));
    register_buffer("count", torch::ones({odd && how == "counted" ? 3 : 2}));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (const auto& layer : layers) y = layer->forward(y);
    return y;
  }
  std::vector<std::shared_ptr<Wrapped>> layers;
};

// On all ranks, at once; with rank 0's values and with each rank's own, whose first gathering tells.
TEST(FsdpErrors, ErrorsNameWhatRanksHaveMadeDifferently) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks";
  const std::string odd = "rank " + std::to_string(world->size() - 1) + " was set up otherwise than rank 0: model";
  for (const bool sync : {true, false}) {
    FullyShardedDataParallelOptions options;
    options.sync_module_states = sync;
    const auto error_of = [&](const std::string& how) {
      return SetupErrorOf([&] {
        FullyShardedDataParallel<Odd> model(std::make_shared<Odd>(how, options), *world, options);
        model.forward(torch::ones({2, 4}));
      });
    };
    EXPECT_THAT(error_of("wider"), AllOf(HasSubstr(odd), HasSubstr("weight: Float [4, 6]\" there, \""),
                                         HasSubstr("weight: Float [4, 4]\"")))
        << sync;
    EXPECT_THAT(error_of("renamed"),
                AllOf(HasSubstr(odd), HasSubstr("shift: Float [4]\" there, \""), HasSubstr("scale: Float [4]\"")))
        << sync;
    EXPECT_THAT(error_of("frozen"), AllOf(HasSubstr(odd), HasSubstr("scale: Float [4] (frozen)\" there, \""),
                                          HasSubstr("scale: Float [4]\"")))
        << sync;
    if (sync) {
      EXPECT_THAT(error_of("counted"), AllOf(HasSubstr(odd), HasSubstr("\"buffer count: Float [3]\"")));
    }
    EXPECT_THAT(error_of("missing"), AllOf(HasSubstr(odd), HasSubstr("\" there, \""))) << sync;
    EXPECT_EQ(error_of("not at all"), "") << sync;
  }
}

// The next unit is being gathered then, from shards that the step writes: it must be over, and the step must find the
// shards and not the whole parameters.
TEST(FsdpForward, AForwardPassThatThrowsLeavesShardsToTheOptimizer) {
  const DelayedCollectives delayed;  // shows by name what is changed too early
  auto model = Shard(*world), same = Shard(*world);
  SGD optimizer(model->parameters(), SGDOptions(0.1)), undisturbed(same->parameters(), SGDOptions(0.1));
  Train(*model, optimizer, 2);
  Train(*same, undisturbed, 2);
  const Tower::Forward block = std::exchange(model->module()->blocks[2], [](const at::Tensor&) -> at::Tensor {
    throw std::runtime_error("a picture that is none");
  });
  EXPECT_THROW(model->forward(InputOf(world->rank(), 2)), std::runtime_error);
  for (const auto& unit : model->root().units()) EXPECT_TRUE(unit->sharded());
  model->module()->blocks[2] = block;
  optimizer.step();  // by the gradients of the step before
  undisturbed.step();
  Train(*model, optimizer, 2);
  Train(*same, undisturbed, 2);
  ExpectSame(Whole(*model), Whole(*same), /*bits=*/true);
}

// The next step frees unit after unit again: it is each unit's only run.
TEST(FsdpForward, AForwardPassThatThrowsIsNoRunOfTheNextStep) {
  auto model = Shard(*world);
  const Tower::Forward block = std::exchange(model->module()->blocks.back(), [](const at::Tensor&) -> at::Tensor {
    throw std::runtime_error("a picture that is none");
  });
  EXPECT_THROW(model->forward(InputOf(world->rank())), std::runtime_error);
  model->module()->blocks.back() = block;
  const auto& units = model->root().units();
  const at::Tensor input = InputOf(world->rank()).requires_grad_();
  int kept = -1;
  input.register_hook([&](const at::Tensor&) {  // of the first block, unit 1, backward may not be through with all
    kept = static_cast<int>(std::count_if(units.begin() + 2, units.end(), [](const auto& u) { return !u->sharded(); }));
  });
  model->forward(input).pow(2).mean().backward();
  EXPECT_EQ(kept, 0);
}

// Parameters of its own before the unit and after it, of which those before are frozen.
struct Surrounding : torch::nn::Module {
  explicit Surrounding(const Tower::Wrap& wrap) {
    torch::manual_seed(40);
    first = register_module("first", torch::nn::Linear(4, 4));
    for (auto& parameter : first->parameters()) parameter.requires_grad_(false);
    std::tie(module, inner) = wrap(std::make_shared<Block>(1));
    register_module("inner", module);
    last = register_module("last", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = first(x);
    if (throws) throw std::runtime_error("a picture that is none");
    return last(inner(y));
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  std::shared_ptr<torch::nn::Module> module;
  Tower::Forward inner;
  bool throws = false;
};

// Nor does it count for those before: backward needs the first layer after the unit, which had its last run before the
// exception and not after it.
TEST(FsdpForward, AForwardPassThatThrowsLeavesEarlierBackwardPassesAlone) {
  const auto gradient = [](auto& model, Surrounding& surrounding, bool throws) {
    const at::Tensor input = InputOf(world->rank()).requires_grad_();
    const at::Tensor loss = model.forward(input).pow(2).mean();
    surrounding.throws = throws;
    if (throws) {
      EXPECT_THROW(model.forward(input), std::runtime_error);
    }
    surrounding.throws = false;
    loss.backward();
    return input.grad();
  };
  const auto make = [] {
    auto module = std::make_shared<Surrounding>([](std::shared_ptr<Block> block) {
      auto wrapped = std::make_shared<FullyShardedDataParallel<Block>>(block, *world);
      return std::make_pair(wrapped, [wrapped](const at::Tensor& x) { return wrapped->forward(x); });
    });
    return FullyShardedDataParallel<Surrounding>(module, *world);
  };
  auto model = make(), same = make();
  const at::Tensor expected = gradient(same, *same.module(), false);
  EXPECT_TRUE(torch::equal(gradient(model, *model.module(), true), expected));
}

// A module may catch what another one within it throws, and go on with its own parameters.
TEST(FsdpForward, AForwardPassGoesOnWhereAModuleCatches) {
  struct Careful : torch::nn::Module {
    explicit Careful(std::shared_ptr<FullyShardedDataParallel<Block>> inner) : inner(inner) {
      register_module("inner", inner);
      scale = register_parameter("scale", torch::full({8, 4}, 2.0));
    }
    at::Tensor forward(const at::Tensor& x) {
      try {
        return inner->forward(x.flatten()).sum() * scale.sum();  // of a shape that does not fit
      } catch (const c10::Error&) {
        return scale.sum();
      }
    }
    std::shared_ptr<FullyShardedDataParallel<Block>> inner;
    at::Tensor scale;
  };
  auto inner = std::make_shared<FullyShardedDataParallel<Block>>(std::make_shared<Block>(1), *world);
  FullyShardedDataParallel<Careful> model(std::make_shared<Careful>(inner), *world);
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(model.forward(torch::ones({3, 4})).item<float>(), 64);
  EXPECT_EQ(model.forward(torch::ones({3, 4})).item<float>(), 64);
}

// Its loss, whose backward pass throws on the last rank after all that it has sent.
at::Tensor LossOf(Sharded& model) {
  const at::Tensor input = InputOf(world->rank()).requires_grad_();
  if (world->rank() == world->size() - 1) {
    input.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a gradient that is none"); });
  }
  return model.forward(input * 2).pow(2).mean();
}

void Backward(const at::Tensor& loss) {
  if (world->rank() == world->size() - 1) {
    EXPECT_THROW(loss.backward(), std::runtime_error);
  } else {
    loss.backward();
  }
}

// The others wait in Join's own group then.
TEST(FsdpErrors, AnErrorInABackwardPassReachesTheNextIterationsOfAJoin) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks";
  auto model = Shard(*world);
  Join join({model.get()});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(join.run([&] {
    Backward(LossOf(*model));
    model->forward(InputOf(world->rank(), 1));
  }),
               DistributedError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// Nobody begins another iteration, or only those do that had no exception.
TEST(FsdpErrors, AnErrorInTheLastBackwardPassReachesTheOthersOfAJoin) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks";
  for (const int more : {0, 1}) {
    auto model = Shard(*world);
    Join join({model.get()});
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(join.run([&] {
      Backward(LossOf(*model));
      if (more > 0 && world->rank() != world->size() - 1) model->forward(InputOf(world->rank(), 1));
    }),
                 DistributedError)
        << more;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  }
}

// They have all lost the same.
TEST(FsdpErrors, AnErrorInTheLastBackwardPassOfAllRanksEndsNoJoin) {
  auto model = Shard(*world);
  Join join({model.get()});
  join.run([&] {
    const at::Tensor input = InputOf(world->rank()).requires_grad_();
    input.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a gradient that is none"); });
    EXPECT_THROW(model->forward(input * 2).pow(2).mean().backward(), std::runtime_error);
    if (world->rank() == 0) model->forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
  });
  model->forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
}

// Nothing has been sent, so nothing is out of step: neither for the next forward pass nor for a backward pass that had
// its own before.
TEST(FsdpErrors, AnErrorInABackwardPassWithoutCollectivesStaysOnItsRank) {
  FullyShardedDataParallelOptions options;
  options.sharding_strategy = ShardingStrategy::kShardGradOp;
  for (const bool forward_between : {true, false}) {
    auto model = Shard(*world, options);
    const auto loss_of = [&] { return model->forward(InputOf(world->rank(), 1)).pow(2).mean(); };
    const at::Tensor failing = LossOf(*model);
    at::Tensor loss = forward_between ? at::Tensor() : loss_of();
    {
      const auto accumulating = model->no_sync();
      Backward(failing);
    }
    if (forward_between) loss = loss_of();
    loss.backward();
    for (const auto& part : model->sharded_parameters()) {
      EXPECT_TRUE(part.tensor.numel() == 0 || part.tensor.grad().defined()) << part.name;
    }
  }
}

// The pass has added to what others before it accumulated, which can't be told apart: one rank alone would average less
// than the others.
TEST(FsdpErrors, AnErrorAfterAccumulationReachesAllRanksWithoutCollectives) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks";
  FullyShardedDataParallelOptions options;
  options.sharding_strategy = ShardingStrategy::kShardGradOp;
  auto model = Shard(*world, options);
  {
    const auto accumulating = model->no_sync();
    model->forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
    Backward(LossOf(*model));
  }
  ASSERT_TRUE(world->Barrier().Wait().ok());  // lest the error meets a rank before that
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(model->forward(InputOf(world->rank(), 2)).pow(2).mean().backward(), DistributedError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// Throws once, as a gradient comes to `tensor`.
void Tire(const at::Tensor& tensor) {
  tensor.register_hook([tired = std::make_shared<bool>(true)](const at::Tensor& gradient) {
    if (std::exchange(*tired, false)) throw std::runtime_error("a gradient that is none");
    return gradient;
  });
}

void ExpectSameGradients(Sharded& model, Sharded& expected, const char* where) {
  const auto parts = model.sharded_parameters(), others = expected.sharded_parameters();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].tensor.numel() == 0) continue;
    ASSERT_TRUE(parts[i].tensor.grad().defined()) << parts[i].name << ", " << where;
    EXPECT_TRUE(torch::allclose(parts[i].tensor.grad(), others[i].tensor.grad(), 1e-5, 1e-6))
        << parts[i].name << ", " << where;
  }
}

// It is forgotten on all ranks, and the next one has the average of its own gradients; whatever the first had got to.
TEST(FsdpErrors, AnErrorInABackwardPassOfAllRanksLeavesTheNextOneAlone) {
  for (const bool early : {false, true}) {
    const char* where = early ? "early" : "late";
    const auto loss_of = [&](Sharded& sharded, int batch, bool tires) {
      const at::Tensor input = InputOf(world->rank(), batch).requires_grad_();
      if (tires && !early) Tire(input);
      const at::Tensor output = sharded.forward(input * 2);
      if (tires && early) Tire(output);  // after the module's own hook, which has gathered by then
      return output.pow(2).mean();
    };
    auto same = Shard(*world);
    loss_of(*same, 1, false).backward();
    {
      auto model = Shard(*world);
      const at::Tensor first = loss_of(*model, 0, true), second = loss_of(*model, 1, false);
      EXPECT_THROW(first.backward(), std::runtime_error);
      second.backward();  // of a forward pass before
      ExpectSameGradients(*model, *same, where);
    }
    {
      auto model = Shard(*world);
      const at::Tensor loss = loss_of(*model, 1, true);
      EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), std::runtime_error);  // with reductions under way
      loss.backward();
      ExpectSameGradients(*model, *same, where);
    }
    auto model = Shard(*world);
    loss_of(*model, 0, false).backward();
    EXPECT_THROW(loss_of(*model, 2, true).backward(), std::runtime_error);
    for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    loss_of(*model, 1, false).backward();
    ExpectSameGradients(*model, *same, where);
  }
}

// The contributions of the others' parts of the loss would be lost without a word.
TEST(FsdpErrors, AModelCheckpointedInOneOfTwoForwardPassesIsRefused) {
  auto model = Shard(*world);
  const at::Tensor input = InputOf(world->rank()).requires_grad_();
  const at::Tensor again = checkpoint([&](const at::Tensor& x) { return model->forward(x); }, input);
  const at::Tensor once = model->forward(input);
  try {
    (again.pow(2).mean() + once.pow(2).mean()).backward();
    ADD_FAILURE() << "gradients that lack one of the two";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("within a backward pass of its own"));
  }
  ASSERT_TRUE(world->Barrier().Wait().ok());  // lest the model's end meets a rank before that
}

// The others may get the error within their first, where they reduce what both forward passes have used.
TEST(FsdpErrors, AnErrorOnOneRankReachesTheBackwardPassOfAnotherForwardPass) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks";
  auto model = Shard(*world);
  const at::Tensor first = LossOf(*model), second = model->forward(InputOf(world->rank(), 1)).pow(2).mean();
  ASSERT_TRUE(world->Barrier().Wait().ok());  // lest the error meets a rank before that
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(
      {
        Backward(first);
        second.backward();
      },
      DistributedError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// The others have gone on to what follows the loop.
TEST(FsdpErrors, TheErrorNamesJoinWhereOneRankHasABatchMore) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks";
  FullyShardedDataParallelOptions options;
  options.sharding_strategy = ShardingStrategy::kShardGradOp;  // whose backward pass begins with a reduction
  auto model = Shard(*world, options);
  const auto step = [&](int batch) { model->forward(InputOf(world->rank(), batch)).pow(2).mean().backward(); };
  step(0);
  if (world->rank() == 0) {
    EXPECT_THAT(SetupErrorOf([&] { step(1); }), HasSubstr("Do ranks have different numbers of batches?"));
  } else {
    EXPECT_THROW(
        {  // may get the error before the norm
          {
            const torch::NoGradGuard no_grad;
            model->forward(InputOf(0));
          }
          model->clip_grad_norm_(1.0);
        },
        DistributedError);
  }
}

// Each rank would write its own shards, under the names of whole parameters.
TEST(FsdpErrors, SavingShardsAsIfTheyWereWholeIsRefused) {
  struct Own : Shardable<Own> {
    at::Tensor call(const at::Tensor& x) { return layer(x); }
    torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 4));
  };
  const auto wrapped = Shard(*world);
  const auto in_place = std::make_shared<Own>();
  std::ostringstream before;
  torch::save(in_place, before);
  FullyShardedModule& shards = fully_shard(*in_place, *world);
  const auto check = [](FullyShardedModule& sharded, std::shared_ptr<torch::nn::Module> module) {
    std::stringstream text;
    if (world->size() > 1) {
      EXPECT_THROW(torch::save(module, text), c10::Error);
    }
    const SummonFullParams whole(sharded);
    std::stringstream summoned;
    torch::save(module, summoned);
    torch::load(module, summoned);
  };
  check(*wrapped, wrapped);
  check(shards, in_place);
}

}  // namespace
}  // namespace cohort::trainer
