// Parameters and buffers of every type and form in one model: they are averaged and kept as they are, or refused by
// name when they are wrapped.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/fsdp/fully_shard.h"
#include "cohort/trainer/state/master_weights.h"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer::element_types {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

struct Mixed : torch::nn::Module {
  explicit Mixed(int rank = world->rank()) {
    torch::manual_seed(20 + rank);
    const auto add = [this](const std::string& name, const at::Tensor& tensor) {
      return register_parameter(name, tensor, at::isFloatingType(tensor.scalar_type()));
    };
    single = add("single", torch::randn({4, 3}));
    wide = add("wide", torch::randn({3}, torch::kDouble));
    half = add("half", torch::randn({3}).to(torch::kHalf));
    brain = add("brain", torch::randn({3}).to(torch::kBFloat16));
    none = add("none", torch::empty({0, 3}));
    number = add("number", torch::randn({}));
    last = add("last", torch::randn({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast));
    turned = add("turned", torch::randn({3, 4}).t());
    table = add("table", torch::randint(-5, 5, {3}, torch::kInt));
    mask = add("mask", torch::randint(0, 2, {3}, torch::kBool));
    register_buffer("flags", torch::randint(0, 2, {5}, torch::kBool));
    register_buffer("small", torch::randint(-5, 5, {5}, torch::kChar));
    register_buffer("short", torch::randint(-5, 5, {5}, torch::kShort));
    register_buffer("count", torch::randint(0, 100, {}, torch::kLong));
    register_buffer("turned_buffer", torch::randn({3, 4}).t());
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x.matmul(single + turned) * wide.to(torch::kFloat);
    y = y + half.to(torch::kFloat) * brain.to(torch::kFloat) + none.sum() + table * mask;
    return x.matmul(single) * y * number + last.pow(2).sum();  // `single` twice
  }
  at::Tensor single, wide, half, brain, none, number, last, turned, table, mask;
};

std::vector<at::Tensor> Gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

// The mean of the gradients on all ranks' inputs.
std::vector<at::Tensor> Expected(Mixed& net) {
  Mixed alone;
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < net.parameters().size(); ++i) alone.parameters()[i].copy_(net.parameters()[i]);
  const torch::AutoGradMode grad(true);
  for (int rank = 0; rank < world->size(); ++rank) {
    (alone.forward(InputOf(rank)).pow(2).mean() / world->size()).backward();
  }
  return Gradients(alone.parameters());
}

TEST(ElementTypes, ParametersOfAnyTypeAreAveragedAndGivenToAllRanks) {
  for (const bool view : {false, true}) {
    for (const bool second_stage : {false, true}) {
      if (view && second_stage) continue;
      auto net = std::make_shared<Mixed>();
      ZeroRedundancyOptimizer<SGD> optimizer(net->parameters(), *world, SGDOptions(0.0));
      std::unique_ptr<DistributedDataParallel<Mixed>> ddp;
      if (second_stage) {
        ddp = std::make_unique<ShardedDataParallel<Mixed>>(net, optimizer, *world);
      } else {
        DistributedDataParallelOptions options;
        options.gradient_as_bucket_view = view;
        ddp = std::make_unique<DistributedDataParallel<Mixed>>(net, *world, options);
      }
      const Mixed first(0);
      for (const auto& item : net->named_buffers()) {
        EXPECT_TRUE(torch::equal(item.value(), first.named_buffers()[item.key()])) << item.key();
      }
      for (int step = 0; step < 2; ++step) {
        net->zero_grad();
        ddp->forward(InputOf(world->rank())).pow(2).mean().backward();
        const auto expected = Expected(*net);
        size_t i = 0;
        for (const auto& item : net->named_parameters()) {
          if (!item.value().requires_grad()) continue;
          const at::Tensor& wanted = expected[i++];
          if (second_stage && optimizer.OwnerOf(item.value()) != world->rank()) continue;
          const double rtol = wanted.element_size() == 2 ? 2e-2 : 1e-4;
          ASSERT_TRUE(item.value().grad().defined()) << item.key();
          EXPECT_EQ(item.value().grad().scalar_type(), item.value().scalar_type()) << item.key();
          EXPECT_TRUE(torch::allclose(item.value().grad(), wanted, rtol, 1e-3)) << item.key();
        }
        optimizer.step();
      }
    }
  }
}

TEST(ElementTypes, ParametersOfAnyTypeAreSteppedByTheirOwners) {
  for (const bool views : {false, true}) {
    auto net = std::make_shared<Mixed>();
    DistributedDataParallel<Mixed> ddp(net, *world);
    ZeroRedundancyOptimizer<SGD> optimizer(net->parameters(), *world, SGDOptions(0.01),
                                           {.parameters_as_bucket_view = views, .allgather_bucket_bytes = 32});
    ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
    std::vector<at::Tensor> wanted;
    for (const at::Tensor& parameter : net->parameters()) {
      at::Tensor stepped = parameter.detach().clone();
      if (parameter.requires_grad()) stepped.add_(parameter.grad(), -0.01);
      wanted.push_back(stepped);
    }
    optimizer.step();
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(torch::equal(net->parameters()[i], wanted[i])) << i;
  }
}

class ElementTypesInCheckpoints : public Checkpoints {};

TEST_F(ElementTypesInCheckpoints, ParametersOfAnyTypeAreKeptInCheckpoints) {
  auto net = std::make_shared<Mixed>();
  DistributedDataParallel<Mixed> ddp(net, *world);
  SGD optimizer(net->parameters(), SGDOptions(0.1).momentum(0.9));
  ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
  optimizer.step();
  SaveTrainingState(*world, At("mixed"), StateOf(*net, optimizer, *world), {});
  auto other = std::make_shared<Mixed>();
  SGD resumed(other->parameters(), SGDOptions(0.1).momentum(0.9));
  LoadTrainingState(*world, At("mixed"), StateOf(*other, resumed, *world));
  ExpectEqual(other->parameters(), net->parameters(), /*bits=*/true);
  ExpectEqual(other->buffers(), net->buffers(), /*bits=*/true);
}

struct One : Shardable<One> {
  explicit One(const at::Tensor& tensor) { weight = register_parameter("weight", tensor); }
  at::Tensor call(const at::Tensor& x) { return x * weight.sum(); }
  at::Tensor weight;
};

// In shards, a unit of one type at a time.
TEST(ElementTypes, ParametersOfAnyTypeAreSharded) {
  for (const at::Tensor& tensor :
       {torch::randn({5, 3}, torch::kDouble), torch::randn({5, 3}).to(torch::kBFloat16), torch::randn({}),
        torch::empty({0, 3}), torch::randn({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast),
        torch::randn({3, 5}).t()}) {
    auto one = std::make_shared<One>(tensor.clone());
    const at::Tensor before = tensor.clone();
    FullyShardedModule& shards = fully_shard(*one, *world);
    one->forward(torch::ones({2})).sum().backward();
    for (const ShardedParameter& part : shards.sharded_parameters()) {
      if (part.tensor.numel() == 0) continue;
      EXPECT_TRUE(torch::equal(part.tensor.grad(), torch::full_like(part.tensor, 2)));
    }
    if (world->size() > 1) continue;
    EXPECT_TRUE(torch::equal(one->weight.view_as(before), before));
  }
}

// A step would write one element into the place of several.
TEST(ElementTypes, AnExpandedParameterIsRefused) {
  const auto make = [] { return std::make_shared<One>(torch::randn({1, 3}).expand({4, 3})); };
  const auto refused = AllOf(HasSubstr("weight"), HasSubstr("share memory"), HasSubstr("clone()"));
  EXPECT_THAT(ErrorOf([&] { DistributedDataParallel<One>(make(), *world, {}); }), refused);
  EXPECT_THAT(ErrorOf([&] { fully_shard(*make(), *world); }), refused);
  EXPECT_THAT(ErrorOf([&] { FullyShardedDataParallel<One>(make(), *world, {}); }), refused);
  const auto net = make();
  EXPECT_THAT(ErrorOf([&] { ZeroRedundancyOptimizer<SGD>(net->parameters(), *world, SGDOptions(0.1)); }),
              HasSubstr("share memory"));
}

TEST(ElementTypes, ASparseParameterIsRefused) {
  const auto make = [] { return std::make_shared<One>(torch::eye(4).to_sparse()); };
  EXPECT_THAT(ErrorOf([&] { DistributedDataParallel<One>(make(), *world, {}); }),
              AllOf(HasSubstr("weight"), HasSubstr("Sparse"), HasSubstr("to_dense()")));
}

}  // namespace
}  // namespace cohort::trainer::element_types
