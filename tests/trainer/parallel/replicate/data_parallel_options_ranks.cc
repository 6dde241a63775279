// DistributedDataParallel's options, communication hooks and Join, seen from inside a job. Expected values are computed
// by each rank for itself.
#include <memory>
#include <tuple>

#include "cohort/runtime/segment/segment.h"
#include "cohort/trainer/autograd/activation_checkpoint.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/replicate/powersgd_hook.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;

// Three branches, of which a forward pass uses some.
struct Branches : torch::nn::Module {
  Branches() {
    torch::manual_seed(7);
    for (int i = 0; i < 3; ++i) branch.push_back(register_module("b" + std::to_string(i), torch::nn::Linear(4, 2)));
  }
  at::Tensor forward(const at::Tensor& x, const std::vector<int>& used) {
    at::Tensor sum = torch::zeros({x.size(0), 2});
    for (int i : used) sum = sum + branch[i](x) * (i + 1);
    return sum;
  }
  std::vector<torch::nn::Linear> branch;
};

// Branch 0 is used by all, 1 by rank 0 only, 2 by nobody.
std::vector<int> UsedBy(int rank) { return rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{0}; }

// Whether gradients are bucket views, and whether one bucket has parameters of all branches.
class UnusedParameters : public testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(UnusedParameters, UnusedParametersCountAsZerosAndKeepTheirGradientWhenNobodyUsesThem) {
  auto model = std::make_shared<Branches>();
  DistributedDataParallelOptions options;
  options.find_unused_parameters = true;
  const auto& [bucket_view, one_bucket] = GetParam();
  options.gradient_as_bucket_view = bucket_view;
  if (!one_bucket) options.buckets = {.first_bytes = 20, .cap_bytes = 30};
  DistributedDataParallel<Branches> ddp(model, *world, options);
  model->branch[2]->weight.mutable_grad() = torch::full({2, 4}, 7.0f);
  for (int step = 0; step < 3; ++step) {
    const auto give_gradients = [&](const at::Tensor& value) {
      for (int i = 0; i < 2; ++i) {
        model->branch[i]->weight.mutable_grad() = value;
        model->branch[i]->bias.mutable_grad() = at::Tensor();
      }
    };
    at::Tensor expected[2] = {torch::zeros({2, 4}), torch::zeros({2, 4})};
    for (int rank = 0; rank < world->size(); ++rank) {
      for (int i : UsedBy(rank)) {
        const auto grad = torch::autograd::grad({model->forward(InputOf(rank, step), UsedBy(rank)).pow(2).sum()},
                                                {model->branch[i]->weight});
        expected[i] += grad[0] / world->size();
      }
    }
    give_gradients(torch::full({2, 4}, 99.0f));            // of the step before
    ddp.forward(InputOf(0, step), UsedBy(world->rank()));  // without a backward pass: its unused ones count for nothing
    const at::Tensor loss = ddp.forward(InputOf(world->rank(), step), UsedBy(world->rank())).pow(2).sum();
    give_gradients(at::Tensor());  // most loops zero them only here
    loss.backward();
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(model->branch[i]->weight.grad().defined());
      EXPECT_TRUE(torch::allclose(model->branch[i]->weight.grad(), expected[i], 1e-4, 1e-6)) << "branch " << i;
    }
    EXPECT_TRUE(torch::equal(model->branch[2]->weight.grad(), torch::full({2, 4}, 7.0f)));
    EXPECT_FALSE(model->branch[2]->bias.grad().defined());
  }
  EXPECT_FALSE(ddp.reducer().rebuilt());
}
INSTANTIATE_TEST_SUITE_P(BucketViews, UnusedParameters, testing::Combine(testing::Bool(), testing::Bool()));

// Which parameters a checkpointed function uses shows only in backward.
TEST_P(UnusedParameters, UnusedParametersCountAsZerosBesideCheckpointedFunctions) {
  struct Saving : Branches {
    at::Tensor forward(const at::Tensor& x, const std::vector<int>& used) {
      const auto call = [this, used](const at::Tensor& in) { return Branches::forward(in, used); };
      return checkpoint(call, x) + head(x);
    }
    torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 2));
  };
  auto model = std::make_shared<Saving>();
  DistributedDataParallelOptions options;
  options.find_unused_parameters = true;
  const auto& [bucket_view, one_bucket] = GetParam();
  options.gradient_as_bucket_view = bucket_view;
  if (!one_bucket) options.buckets = {.first_bytes = 20, .cap_bytes = 30};
  DistributedDataParallel<Saving> ddp(model, *world, options);
  for (int step = 0; step < 3; ++step) {
    at::Tensor expected[2] = {torch::zeros({2, 4}), torch::zeros({2, 4})};
    for (int rank = 0; rank < world->size(); ++rank) {
      const at::Tensor x = InputOf(rank, step);
      const at::Tensor loss = (model->Branches::forward(x, UsedBy(rank)) + model->head(x)).pow(2).sum();
      std::vector<at::Tensor> weights;
      for (int i : UsedBy(rank)) weights.push_back(model->branch[i]->weight);
      const auto grads = torch::autograd::grad({loss}, weights);
      for (size_t i = 0; i < grads.size(); ++i) expected[i] += grads[i] / world->size();
    }
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    ddp.forward(InputOf(world->rank(), step), UsedBy(world->rank())).pow(2).sum().backward();
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(model->branch[i]->weight.grad().defined());
      EXPECT_TRUE(torch::allclose(model->branch[i]->weight.grad(), expected[i], 1e-4, 1e-6)) << "branch " << i;
    }
    EXPECT_FALSE(model->branch[2]->weight.grad().defined());
  }
}

// Under a pipeline: what nobody has used in any micro-batch is left alone, or is an error where users are not counted.
TEST(UnusedParametersOf, UnusedParametersOfAccumulatedPassesKeepTheirGradientOrAreRefused) {
  for (const bool finds : {true, false}) {
    const auto model = std::make_shared<Branches>();
    DistributedDataParallelOptions options;
    options.find_unused_parameters = finds;
    DistributedDataParallel<Branches> ddp(model, *world, options);
    ASSERT_TRUE(world->Barrier().Wait().ok());  // lest the error meets a rank that is still wrapping
    model->branch[2]->weight.mutable_grad() = torch::full({2, 4}, 7.0f);
    ddp.set_micro_batches_under_way(true);
    const std::vector<at::Tensor> losses = {ddp.forward(InputOf(world->rank(), 0), std::vector<int>{0}).sum(),
                                            ddp.forward(InputOf(world->rank(), 1), std::vector<int>{0, 1}).sum()};
    for (const at::Tensor& loss : losses) loss.backward();
    if (finds) {
      ddp.Reduce();
      EXPECT_TRUE(torch::allclose(model->branch[1]->bias.grad(), torch::full({2}, 12.0f)));
    } else {
      EXPECT_THROW(ddp.Reduce(), DistributedError);
    }
    EXPECT_TRUE(torch::equal(model->branch[2]->weight.grad(), torch::full({2, 4}, 7.0f)));
    EXPECT_FALSE(model->branch[2]->bias.grad().defined());
  }
}

// Its gradient has no hook: unrefused, each rank would silently keep its own.
TEST(UnusedParametersOf, AParameterThatIsThawedLaterIsRefusedOnAllRanks) {
  for (const bool everywhere : {true, false}) {
    auto model = std::make_shared<Net>();
    model->second->weight.requires_grad_(false);
    DistributedDataParallel<Net> ddp(model, *world);
    const auto step = [&] { ddp.forward(InputOf(world->rank())).pow(2).mean().backward(); };
    step();
    EXPECT_FALSE(model->second->weight.grad().defined());
    if (everywhere || world->rank() == world->size() - 1) model->second->weight.requires_grad_(true);
    {
      const at::NoGradGuard no_grad;  // an evaluation averages nothing
      ddp.module()->eval();
      ddp.forward(InputOf(world->rank()));
      ddp.module()->train();
    }
    ASSERT_TRUE(world->Barrier().Wait().ok());  // or a rank fails while others still end the first step
    std::string why = "nothing";
    try {
      step();
    } catch (const DistributedError& error) {
      why = error.what_without_backtrace();
    }
    EXPECT_THAT(why, HasSubstr("parameter second.weight requires a gradient, and did not when the module was wrapped"));
  }
}

// A result of the user's own type hides its tensors: without the refusal all parameters would seem unused.
TEST(UnusedParametersOf, ResultsThatCanNotBeSearchedAreRefused) {
  struct Opaque {
    at::Tensor scores;
  };
  struct Closed : Branches {
    Opaque forward(const at::Tensor& x) { return {Branches::forward(x, {0, 1, 2})}; }
  };
  for (const bool finds : {true, false}) {
    DistributedDataParallelOptions options;
    options.find_unused_parameters = finds;
    bool refuses = finds;
    DistributedDataParallel<Closed> ddp(std::make_shared<Closed>(), *world, options);
    try {
      ddp.forward(InputOf(world->rank())).scores.sum().backward();
      EXPECT_FALSE(refuses);
      EXPECT_TRUE(ddp.module()->branch[2]->weight.grad().defined());
      ddp.forward(InputOf(world->rank()));  // whose backward pass nobody could tell from that of the next
      refuses = true;
      const auto guard = ddp.no_sync();
      ddp.forward(InputOf(world->rank()));
      ADD_FAILURE() << "not refused";
    } catch (const c10::Error& error) {
      EXPECT_TRUE(refuses);
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("AppendTensors"));
    }
  }
}

// Runs the layer again in the backward pass, as activation checkpoints do: a backward pass within a backward pass.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, torch::nn::Linear* layer) {
    ctx->save_for_backward({x});
    ctx->saved_data["layer"] = reinterpret_cast<int64_t>(layer);
    const torch::NoGradGuard no_grad;
    return torch::tanh((*layer)(x));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_(true);
    auto* layer = reinterpret_cast<torch::nn::Linear*>(ctx->saved_data["layer"].toInt());
    at::Tensor y;
    {
      const at::AutoGradMode grad(true);
      y = torch::tanh((*layer)(x));
    }
    torch::autograd::backward({y}, {grads[0]});
    return {x.grad(), at::Tensor()};
  }
};

struct Checkpointed : torch::nn::Module {
  Checkpointed() {
    torch::manual_seed(3);
    layer = register_module("layer", torch::nn::Linear(4, 4));
    unused = register_module("unused", torch::nn::Linear(2, 2));
  }
  at::Tensor forward(const at::Tensor& x, bool recompute) {
    at::Tensor y = x;
    for (int i = 0; i < 2; ++i) y = recompute ? Recomputed::apply(y, &layer) : torch::tanh(layer(y));
    return y;
  }
  torch::nn::Linear layer{nullptr}, unused{nullptr};
};

TEST(StaticGraph, AllowsUnusedParametersAndSeveralGradientsInOnePass) {
  auto model = std::make_shared<Checkpointed>();
  DistributedDataParallelOptions options;
  options.static_graph = true;
  DistributedDataParallel<Checkpointed> ddp(model, *world, options);
  for (int step = 0; step < 4; ++step) {
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    at::Tensor expected = torch::zeros({4, 4});
    for (int rank = 0; rank < world->size(); ++rank) {
      expected +=
          torch::autograd::grad({model->forward(InputOf(rank, step), false).pow(2).sum()}, {model->layer->weight})[0] /
          world->size();
    }
    if (step > 1) ddp.forward(InputOf(0, step).requires_grad_(true), true);  // without a backward pass
    ddp.forward(InputOf(world->rank(), step).requires_grad_(true), true).pow(2).sum().backward();
    EXPECT_TRUE(torch::allclose(model->layer->weight.grad(), expected, 1e-4, 1e-6)) << "step " << step;
    EXPECT_FALSE(model->unused->weight.grad().defined());
  }
}

TEST(GradientAsBucketView, SharesTheBucketsMemoryFromStepToStep) {
  auto model = std::make_shared<Net>();
  DistributedDataParallelOptions options;
  options.gradient_as_bucket_view = true;
  auto ddp = std::make_unique<DistributedDataParallel<Net>>(model, *world, options);
  std::vector<void*> places;
  for (int step = 0; step < 4; ++step) {
    torch::optim::SGD(model->parameters(), 0.1).zero_grad();
    const auto expected = ExpectedGradients(*model, step);
    ddp->forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    ExpectGradients(*model, expected);
    std::vector<void*> now;
    for (const auto& parameter : model->parameters()) now.push_back(parameter.grad().data_ptr());
    if (step >= 2) {
      EXPECT_EQ(now, places) << "step " << step;
    }
    EXPECT_TRUE(model->first->weight.grad().is_alias_of(model->second->weight.grad())) << "one bucket";
    places = now;
  }
  const at::Tensor before = model->first->weight.grad().clone();
  ddp.reset();
  EXPECT_TRUE(torch::equal(model->first->weight.grad(), before)) << "gradients outlive the buckets";
}

// Nobody holds what ends with the job, neither of the buckets in force nor of those before them.
TEST(GradientAsBucketView, LeavesTheBucketsMemoryToHoldersOfViews) {
  auto model = std::make_shared<Net>();
  DistributedDataParallelOptions options;
  options.gradient_as_bucket_view = true;
  auto ddp = std::make_unique<DistributedDataParallel<Net>>(model, *world, options);
  const auto in_segment = [](const at::Tensor& tensor) {
    return job->segment().OffsetOf(tensor.data_ptr(), tensor.nbytes()).has_value();
  };
  std::vector<at::Tensor> held, values;
  for (int step = 0; step < 2; ++step) {
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    ddp->forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    EXPECT_EQ(ddp->reducer().rebuilt(), step > 0);
    for (const auto& parameter : model->parameters()) {
      EXPECT_TRUE(in_segment(parameter.grad())) << "the test shows nothing";
      held.push_back(parameter.grad().view({-1}));
      values.push_back(held.back().clone());
    }
  }
  ddp.reset();
  for (size_t i = 0; i < held.size(); ++i) {
    EXPECT_FALSE(in_segment(held[i])) << i;
    EXPECT_TRUE(torch::equal(held[i], values[i])) << i;
  }
  for (const auto& parameter : model->parameters()) EXPECT_FALSE(in_segment(parameter.grad()));
}

TEST(GradientAsBucketView, AccumulatesInNoSync) {
  auto model = std::make_shared<Net>();
  DistributedDataParallelOptions options;
  options.gradient_as_bucket_view = true;
  DistributedDataParallel<Net> ddp(model, *world, options);
  ddp.forward(InputOf(world->rank(), 5)).pow(2).mean().backward();
  torch::optim::SGD(model->parameters(), 0.1).zero_grad();
  auto expected = ExpectedGradients(*model, 0);
  const auto second = ExpectedGradients(*model, 1);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += second[i];
  {
    const auto guard = ddp.no_sync();
    ddp.forward(InputOf(world->rank(), 0)).pow(2).mean().backward();
  }
  ddp.forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
  ExpectGradients(*model, expected);
}

// The result of a hook after `steps` steps on the same inputs, next to the exact average.
std::vector<at::Tensor> WithHook(const std::shared_ptr<CommHook>& hook, int steps, std::vector<at::Tensor>& exact,
                                 bool views) {
  auto model = std::make_shared<Net>(16);
  DistributedDataParallelOptions options;
  options.gradient_as_bucket_view = views;
  DistributedDataParallel<Net> ddp(model, *world, options);
  ddp.register_comm_hook(hook);
  EXPECT_THROW(ddp.register_comm_hook(hook), c10::Error);
  exact = ExpectedGradients(*model);
  std::vector<at::Tensor> sum;
  for (int step = 0; step < steps; ++step) {
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
    for (size_t i = 0; i < exact.size(); ++i) {
      const at::Tensor grad = model->parameters()[i].grad().clone();
      if (step == 0) {
        sum.push_back(grad);
      } else {
        sum[i] += grad;
      }
    }
  }
  return sum;
}

void ExpectClose(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, double relative) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = (actual[i] - expected[i]).norm().item<double>() / expected[i].norm().item<double>();
    EXPECT_LE(error, relative) << "parameter " << i;
  }
}

TEST(CommHooks, HooksCompressAndAverage) {
  std::vector<at::Tensor> exact;
  for (const bool views : {false, true}) {
    ExpectClose(WithHook(std::make_shared<AllReduceHook>(), 1, exact, views), exact, 1e-6);
    ExpectClose(WithHook(std::make_shared<Fp16CompressHook>(), 1, exact, views), exact, 2e-3);
    ExpectClose(WithHook(std::make_shared<Bf16CompressHook>(), 1, exact, views), exact, 2e-2);
  }
}

TEST(CommHooks, PowerSgdOfFullRankIsExact) {
  std::vector<at::Tensor> exact;
  PowerSGDState state{.matrix_approximation_rank = 16, .start_powerSGD_iter = 2, .min_compression_rate = 0.01};
  const auto sum = WithHook(std::make_shared<PowerSGDHook>(state), 3, exact, false);
  for (auto& grad : exact) grad *= 3;
  ExpectClose(sum, exact, 1e-4);
}

// Rank 1 loses most of a gradient, but what was lost comes later: the sum approaches the exact one.
TEST(CommHooks, PowerSgdFeedsItsErrorBack) {
  std::vector<at::Tensor> exact;
  const int steps = 60;
  PowerSGDState state{.matrix_approximation_rank = 1, .start_powerSGD_iter = 2, .min_compression_rate = 0.5};
  const auto sum = WithHook(std::make_shared<PowerSGDHook>(state), steps, exact, false);
  for (auto& grad : exact) grad *= steps;
  ExpectClose(sum, exact, 0.1);
  state.use_error_feedback = false;
  const auto without = WithHook(std::make_shared<PowerSGDHook>(state), steps, exact, false);
  const double lost = (without[0] / steps - exact[0]).norm().item<double>() / exact[0].norm().item<double>();
  EXPECT_GT(lost, 0.1) << "the comparison shows nothing";
  EXPECT_THROW(PowerSGDHook({.start_powerSGD_iter = 1}), c10::Error);
}

// Rank r has 2 + r inputs.
int InputsOf(int rank) { return 2 + rank; }

class UnevenInputs : public testing::TestWithParam<bool> {};

TEST_P(UnevenInputs, UnevenInputsAreShadowedAndTheFinalModelIsEverybodys) {
  const bool by_initial = GetParam();
  auto model = std::make_shared<Net>();
  auto reference = std::make_shared<Net>();
  DistributedDataParallelOptions options;
  options.buckets = {.first_bytes = 8, .cap_bytes = 70};
  DistributedDataParallel<Net> ddp(model, *world, options);
  DistributedDataParallel<Net> same_start(reference, *world);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  Join join({&ddp}, {.divide_by_initial_world_size = by_initial});
  for (int epoch = 0; epoch < 2; ++epoch) {
    join.run([&] {
      for (int step = 0; step < InputsOf(world->rank()); ++step) {
        optimizer.zero_grad();
        ddp.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
        optimizer.step();
      }
    });
    for (int step = 0; step < InputsOf(world->size() - 1); ++step) {
      std::vector<at::Tensor> sums;
      int active = 0;
      for (int rank = 0; rank < world->size(); ++rank) {
        if (step >= InputsOf(rank)) continue;
        ++active;
        const auto grads =
            torch::autograd::grad({reference->forward(InputOf(rank, step)).pow(2).mean()}, reference->parameters());
        for (size_t i = 0; i < grads.size(); ++i) {
          if (active == 1) sums.push_back(torch::zeros_like(grads[i]));
          sums[i] += grads[i];
        }
      }
      const torch::NoGradGuard no_grad;
      auto parameters = reference->parameters();
      for (size_t i = 0; i < sums.size(); ++i) {
        parameters[i].sub_(sums[i] * (0.1 / (by_initial ? world->size() : active)));
      }
    }
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(model->parameters()[i], reference->parameters()[i], 1e-4, 1e-6))
          << "epoch " << epoch << " parameter " << i;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(DivideByInitialWorldSize, UnevenInputs, testing::Bool());

TEST(UnevenInputs, UnevenInputsEndForAllRanksWhenAskedTo) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks to differ";
  auto model = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(model, *world);
  Join join({&ddp}, {.throw_on_early_termination = true});
  int done = 0;
  try {
    join.run([&] {
      for (; done < InputsOf(world->rank()); ++done) ddp.forward(InputOf(world->rank())).sum().backward();
    });
    FAIL() << "nobody noticed";
  } catch (const DistributedError& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("rank 0"));
  }
  EXPECT_EQ(done, 2);
}

}  // namespace
}  // namespace cohort::trainer
