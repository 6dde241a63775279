// The types that FullyShardedDataParallel computes in: casts of what forward takes and returns, and those of Autocast.
#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/trainer/autograd/autocast.h"
#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

using Pieces = std::vector<at::Tensor>;

// Sums up tensors from containers of several kinds, and returns others.
struct Containers : torch::nn::Module {
  Containers() { layer = register_module("layer", torch::nn::Linear(4, 4)); }
  std::tuple<at::Tensor, Pieces> forward(const Pieces& pieces, const std::optional<at::Tensor>& more,
                                         const std::pair<at::Tensor, int>& weighed, const std::vector<int>& sizes) {
    for (const at::Tensor& piece : pieces) types.push_back(piece.scalar_type());
    types.push_back(more->scalar_type());
    types.push_back(weighed.first.scalar_type());
    const at::Tensor y = layer(pieces[0] + pieces[1] * sizes[0] + *more + weighed.first * weighed.second);
    return {y, {y * 2, torch::ones({1}, torch::kLong)}};
  }
  torch::nn::Linear layer{nullptr};
  std::vector<at::ScalarType> types;
};

TEST(FsdpTypes, ComputeTypesReachTensorsInContainers) {
  FullyShardedDataParallelOptions options;
  options.mixed_precision.param_dtype = torch::kBFloat16;
  options.mixed_precision.output_dtype = torch::kFloat32;
  FullyShardedDataParallel<Containers> model(std::make_shared<Containers>(), *world, options);
  const at::Tensor x = InputOf(world->rank());
  const auto [y, rest] = model.forward(Pieces{x, x}, std::optional(x), std::pair(x, 2), std::vector<int>{3});
  EXPECT_EQ(model.module()->types, std::vector<at::ScalarType>(4, torch::kBFloat16));
  EXPECT_EQ(y.scalar_type(), torch::kFloat32);
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(rest[0].scalar_type(), torch::kFloat32);
  EXPECT_EQ(rest[1].scalar_type(), torch::kLong);
  (y.sum() + rest[0].sum()).backward();
  for (const auto& part : model.sharded_parameters()) EXPECT_TRUE(part.tensor.grad().defined()) << part.name;
}

// A type that refers to tensors cannot refer to their casts. A type that is more than a tensor would lose that part.
struct Labelled : at::Tensor {
  int label = 0;
};
static_assert(Mappable<at::Tensor> && Mappable<std::tuple<at::Tensor, int>> && Mappable<std::pair<int, Pieces>>);
static_assert(!Mappable<Labelled> && !Mappable<std::vector<Labelled>> && !Mappable<std::tuple<Labelled, int>>);
static_assert(!Mappable<std::tuple<at::Tensor&, at::Tensor&>> && !Mappable<std::tuple<const at::Tensor&, int>>);
static_assert(!Mappable<std::pair<at::Tensor&, int>> && !Mappable<std::pair<const at::Tensor&, at::Tensor>>);

TEST(FsdpTypes, TuplesOfReferencesAreLeftAsTheyAre) {
  struct Tied : torch::nn::Module {
    at::Tensor forward(const std::tuple<at::Tensor&, at::Tensor&>& two) {
      return layer(std::get<0>(two) + std::get<1>(two));
    }
    torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 4));
  };
  FullyShardedDataParallel<Tied> model(std::make_shared<Tied>(), *world);
  at::Tensor a = InputOf(0), b = InputOf(1);
  const at::Tensor given = model.forward(std::tie(a, b));
  EXPECT_TRUE(torch::equal(given, model.forward(std::tie(b, a))));
}

// A guard around several steps computes with the weights of each of them.
TEST(FsdpTypes, AutocastCastsWeightsAgainInEachForwardPass) {
  auto model = Shard(*world), expected = Shard(*world);
  torch::optim::SGD optimizer(model->parameters(), 0.5), plain(expected->parameters(), 0.5);
  {
    const Autocast autocast(at::kCPU);
    Train(*model, optimizer, 3);
  }
  for (int step = 0; step < 3; ++step) {
    const Autocast autocast(at::kCPU);
    plain.zero_grad();
    expected->forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    plain.step();
  }
  ExpectSame(Whole(*model), Whole(*expected), /*bits=*/true);
}

// Weights that an optimizer or a loader has changed after a forward pass that threw.
TEST(FsdpTypes, AutocastCastsWeightsAgainAfterAForwardPassThatThrew) {
  struct Tired : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor y = layer(x);
      if (std::exchange(tired, false)) throw std::runtime_error("no more today");
      return y;
    }
    torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 4));
    bool tired = true;
  };
  FullyShardedDataParallel<Tired> model(std::make_shared<Tired>(), *world);
  const Autocast autocast(at::kCPU);
  EXPECT_THROW(model.forward(InputOf(0)), std::runtime_error);
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model.parameters()) parameter.zero_();
  }
  EXPECT_EQ(model.forward(InputOf(0)).abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace cohort::trainer
