// Shards of FullyShardedDataParallel are whole rows: what each rank has of parameters of any sizes, and an optimizer
// that works by rows.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/trainer/tower.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;

// Parameters of all kinds of sizes, small and large (more than 64 KiB are gathered without a copy), each the factor of
// something.
struct Shapes : torch::nn::Module {
  Shapes() {
    const std::vector<std::vector<int64_t>> sizes = {{5, 3}, {1},       {7},        {},         {2, 0},
                                                     {0, 3}, {3, 2, 2}, {160, 160}, {1, 20000}, {4, 4, 1}};
    for (size_t i = 0; i < sizes.size(); ++i) {
      const at::Tensor value = torch::randn(sizes[i], at::detail::createCPUGenerator(i)) + world->rank();
      weights.push_back(register_parameter("weight" + std::to_string(i), value));
      factors.push_back(torch::randn(sizes[i], at::detail::createCPUGenerator(50 + i)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum = torch::zeros({}, x.options());
    for (size_t i = 0; i < weights.size(); ++i) sum = sum + (weights[i] * factors[i].to(x.scalar_type())).sum();
    return sum * x;
  }
  std::vector<at::Tensor> weights, factors;
};

// By torch.chunk itself.
at::Tensor ChunkOf(const at::Tensor& whole, const comm::Communicator& group) {
  const at::Tensor rows = whole.dim() == 0 ? whole.view({1}) : whole;
  const auto chunks = rows.chunk(group.size(), 0);
  return group.rank() < static_cast<int>(chunks.size()) ? chunks[group.rank()] : rows.narrow(0, 0, 0);
}

void ExpectChunks(FullyShardedModule& model, const std::vector<at::Tensor>& whole, const comm::Communicator& group) {
  const auto parts = model.sharded_parameters();
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor expected = ChunkOf(whole[i], group);
    EXPECT_EQ(parts[i].tensor.sizes(), expected.sizes()) << parts[i].name << " on rank " << group.rank();
    EXPECT_TRUE(torch::allclose(parts[i].tensor, expected, 1e-5, 1e-6)) << parts[i].name;
    EXPECT_EQ(parts[i].sizes, whole[i].sizes().vec());
    EXPECT_EQ(parts[i].end - parts[i].begin, expected.numel());
    EXPECT_TRUE(parts[i].tensor.is_leaf() && parts[i].tensor.requires_grad());
  }
}

// Rank r's input is r + 1, whose mean is the gradients' factor.
void ExpectShapesToTrain(comm::Communicator& group, const FullyShardedDataParallelOptions& options) {
  auto shapes = std::make_shared<Shapes>();
  const Shapes first;
  std::vector<at::Tensor> expected;
  for (const at::Tensor& weight : first.weights) {
    expected.push_back(weight.detach() - static_cast<double>(world->rank() - group.members()[0]));  // of the first rank
  }
  FullyShardedDataParallel<Shapes> model(shapes, group, options);
  ExpectChunks(model, expected, group);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.5));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = model.forward(torch::full({}, group.rank() + 1.0));
    loss.backward();
    const double mean = (group.size() + 1) / 2.0;
    const auto parts = model.sharded_parameters();
    for (size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor gradient = ChunkOf(shapes->factors[i] * mean, group);
      ASSERT_EQ(parts[i].tensor.grad().sizes(), gradient.sizes()) << parts[i].name;
      EXPECT_TRUE(torch::allclose(parts[i].tensor.grad(), gradient, 1e-5, 1e-6)) << parts[i].name;
      expected[i] -= shapes->factors[i] * (0.5 * mean);
    }
    optimizer.step();
    ExpectChunks(model, expected, group);
  }
  const SummonFullParams whole(model);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(shapes->weights[i].sizes(), expected[i].sizes());
    EXPECT_TRUE(torch::allclose(shapes->weights[i].to(torch::kFloat32), expected[i], 1e-5, 1e-5)) << i;
  }
}

TEST(FsdpRows, RowsAreTheChunksOfTorchOnAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= world->size(); ++ranks) {
    const auto group = First(ranks);
    if (group == nullptr) continue;
    SCOPED_TRACE(ranks);
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
      FullyShardedDataParallelOptions options;
      options.sharding_strategy = strategy;
      ExpectShapesToTrain(*group, options);
      options.mixed_precision.param_dtype = torch::kDouble;  // gathered from another vector than the shards
      options.mixed_precision.reduce_dtype = torch::kFloat32;
      ExpectShapesToTrain(*group, options);
    }
    FullyShardedDataParallelOptions options;
    for (int neighbours = 1; neighbours <= ranks; ++neighbours) {
      options.reshard_after_forward = neighbours;
      if (ranks % neighbours == 0) ExpectShapesToTrain(*group, options);
    }
  }
}

// Values that every rank has changed alike under SummonFullParams are in its rows afterwards, however large they are.
TEST(FsdpRows, RowsAreWrittenBackAfterSummonFullParams) {
  for (const bool small_type : {false, true}) {
    FullyShardedDataParallelOptions options;
    if (small_type) options.mixed_precision.param_dtype = torch::kBFloat16;
    auto shapes = std::make_shared<Shapes>();
    FullyShardedDataParallel<Shapes> model(shapes, *world, options);
    std::vector<at::Tensor> expected;
    {
      const SummonFullParams whole(model);
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < shapes->weights.size(); ++i) {
        expected.push_back(torch::arange(shapes->weights[i].numel()).remainder(100).view(shapes->weights[i].sizes()));
        shapes->weights[i].copy_(expected.back());
        expected.back() = expected.back().to(torch::kFloat32);
      }
    }
    ExpectChunks(model, expected, *world);
  }
}

// Keeps a number for each row, as Adafactor does, and needs all of the row to compute it.
class ByRows : public torch::optim::Optimizer {
 public:
  explicit ByRows(std::vector<at::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<torch::optim::SGDOptions>(0.02)) {}
  at::Tensor step(LossClosure) override {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : param_groups().front().params()) {
      const at::Tensor gradient = parameter.grad();
      if (!gradient.defined() || parameter.numel() == 0) continue;
      const int64_t rows = parameter.dim() == 0 ? 1 : parameter.size(0);
      const at::Tensor squares = gradient.reshape({rows, -1}).pow(2).mean(1);
      at::Tensor& average = averages_[parameter.unsafeGetTensorImpl()];
      average = average.defined() ? average * 0.9 + squares * 0.1 : squares;
      parameter.add_((gradient.reshape({rows, -1}) / (average.sqrt() + 1e-3).unsqueeze(1)).view_as(parameter), -0.02);
    }
    return {};
  }

 private:
  std::map<const void*, at::Tensor> averages_;
};

TEST(FsdpRows, RowsServeAnOptimizerThatNeedsThem) {
  auto plain = Plain();
  {
    DistributedDataParallel<Tower> same_start(plain, *world);
  }
  ByRows plain_optimizer(plain->parameters());
  for (int step = 0; step < kSteps; ++step) {
    plain_optimizer.zero_grad();
    for (int rank = 0; rank < world->size(); ++rank) {
      (plain->forward(InputOf(rank, step)).pow(2).mean() / world->size()).backward();
    }
    plain_optimizer.step(nullptr);
  }
  auto model = Shard(*world);
  ByRows optimizer(model->parameters());
  Train(*model, optimizer);
  ExpectSame(Whole(*model), plain->parameters(), /*bits=*/false);
}

// Layers that are gathered by calls of their own, beside small parameters that are gathered together.
struct Heavy : torch::nn::Module {
  Heavy() {
    torch::manual_seed(21);
    first = register_module("first", torch::nn::Linear(4, 150));
    second = register_module("second", torch::nn::Linear(150, 150));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({150})));
    third = register_module("third", torch::nn::Linear(150, 131));
    last = register_module("last", torch::nn::Linear(131, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    return last(torch::tanh(third(norm(torch::tanh(second(torch::tanh(first(x))))))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr}, last{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

TEST(FsdpRows, RowsOfLargeParametersGiveTheBitsOfDdp) {
  const auto group = OrderInvariantWorld();
  auto plain = std::make_shared<Heavy>();
  DistributedDataParallel<Heavy> ddp(plain, *group);
  Adam plain_optimizer(plain->parameters(), AdamOptions(0.01));
  Train(ddp, plain_optimizer, 3);
  std::vector<FullyShardedDataParallelOptions> choices(3);
  choices[1].sharding_strategy = ShardingStrategy::kShardGradOp;
  choices[2].reshard_after_forward = world->size() % 2 == 0 ? 2 : 1;
  for (const FullyShardedDataParallelOptions& options : choices) {
    FullyShardedDataParallel<Heavy> model(std::make_shared<Heavy>(), *group, options);
    Adam optimizer(model.parameters(), AdamOptions(0.01));
    Train(model, optimizer, 3);
    // Adam makes a step of a rounding where a gradient is next to nothing.
    ExpectSame(Whole(model), plain->parameters(), WorldIsPowerOfTwo(), 1e-3);
  }
}

}  // namespace
}  // namespace cohort::trainer
