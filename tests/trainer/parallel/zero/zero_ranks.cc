// ZeroRedundancyOptimizer and ShardedDataParallel against a plain optimizer under DistributedDataParallel: the same
// arithmetic, so the same bits where sums are taken in the order of ranks.
#include <memory>

#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/state/model_memory.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;

constexpr int kZeroSteps = 5;

DistributedDataParallelOptions BucketsOf200Bytes() {
  DistributedDataParallelOptions options;
  options.buckets = {.first_bytes = 8, .cap_bytes = 200};
  return options;
}

template <typename Wrapped, typename Optimizer>
void TrainByZero(Wrapped& wrapped, Optimizer& optimizer) {
  for (int step = 0; step < kZeroSteps; ++step) {
    optimizer.zero_grad();
    wrapped.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    optimizer.step();
  }
}

std::shared_ptr<Net> NetTrainedByDdp(comm::Communicator& group) {
  auto model = std::make_shared<Net>(7);
  DistributedDataParallel<Net> ddp(model, group, BucketsOf200Bytes());
  Adam optimizer(model->parameters(), AdamOptions(0.05));
  TrainByZero(ddp, optimizer);
  return model;
}

void ExpectSameParameters(const torch::nn::Module& actual, const torch::nn::Module& expected) {
  for (size_t i = 0; i < expected.parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(actual.parameters()[i], expected.parameters()[i]))
        << "parameter " << i << "\n"
        << actual.parameters()[i] << "\nexpected\n"
        << expected.parameters()[i];
  }
}

class Zero : public testing::TestWithParam<std::tuple<bool, ZeroPartition>> {
 protected:
  ZeroRedundancyOptimizerOptions options() const {
    return {.partition = std::get<1>(GetParam()),
            .parameters_as_bucket_view = std::get<0>(GetParam()),
            .allgather_bucket_bytes = 100};  // which end within parameters
  }
};

TEST_P(Zero, Zero1GivesTheBitsOfAPlainOptimizer) {
  const auto group = OrderInvariantWorld();
  auto model = std::make_shared<Net>(7);
  DistributedDataParallel<Net> ddp(model, *group, BucketsOf200Bytes());
  {
    ZeroRedundancyOptimizer<Adam> optimizer(model->parameters(), *group, AdamOptions(0.05), options());
    TrainByZero(ddp, optimizer);
    size_t mine = 0;
    for (int owner : optimizer.owners()) mine += owner == world->rank() ? 1 : 0;
    EXPECT_EQ(optimizer.local_optimizer().state().size(), mine) << "state of other ranks' parameters";
  }
  ExpectSameParameters(*model, *NetTrainedByDdp(*group));
}

TEST_P(Zero, Zero2GivesTheBitsOfAPlainOptimizer) {
  const auto group = OrderInvariantWorld();
  auto model = std::make_shared<Net>(7);
  {
    ZeroRedundancyOptimizer<Adam> optimizer(model->parameters(), *group, AdamOptions(0.05), options());
    ShardedDataParallel<Net> sharded(model, optimizer, *group, BucketsOf200Bytes());
    TrainByZero(sharded, optimizer);
    for (size_t i = 0; i < optimizer.owners().size(); ++i) {
      EXPECT_EQ(model->parameters()[i].grad().defined(), optimizer.owners()[i] == world->rank()) << i;
    }
  }
  ExpectSameParameters(*model, *NetTrainedByDdp(*group));
}
INSTANTIATE_TEST_SUITE_P(Options, Zero,
                         testing::Combine(testing::Bool(),
                                          testing::Values(ZeroPartition::kSortedBySize, ZeroPartition::kInOrder)));

// Whole gradients on every rank, though a forward pass whose loss was NaN had no backward pass before.
TEST(ShardedDataParallelOfZero, AccumulatesAfterAForwardPassWithoutABackwardPass) {
  auto model = std::make_shared<Net>();
  ZeroRedundancyOptimizer<Adam> optimizer(model->parameters(), *world, AdamOptions(0.05));
  ShardedDataParallel<Net> sharded(model, optimizer, *world, BucketsOf200Bytes());
  auto expected = ExpectedGradients(*model, 0);
  const auto second = ExpectedGradients(*model, 1);
  sharded.forward(InputOf(3));
  optimizer.zero_grad();
  {
    const auto guard = sharded.no_sync();
    const at::Tensor loss = model->forward(InputOf(world->rank(), 0)).pow(2).mean();
    const auto local = torch::autograd::grad({loss}, model->parameters());
    sharded.forward(InputOf(world->rank(), 0)).pow(2).mean().backward();
    ExpectGradients(*model, local);
  }
  sharded.forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(model->parameters()[i].grad().defined(), optimizer.owners()[i] == world->rank()) << i;
    if (optimizer.owners()[i] != world->rank()) continue;
    EXPECT_TRUE(torch::allclose(model->parameters()[i].grad(), expected[i] + second[i], 1e-5, 1e-7)) << i;
  }
}

TEST(ZeroRedundancyOptimizer, KeepsTwoBucketsBesideTheParametersAndNoCopyOfThem) {
  auto model = std::make_shared<Net>(700);
  int64_t bytes = 0;
  for (const auto& parameter : model->parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
  for (const bool views : {false, true}) {
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(
        model->parameters(), *world, torch::optim::SGDOptions(0.1),
        {.parameters_as_bucket_view = views, .allgather_bucket_bytes = 1024});
    EXPECT_LE(optimizer.buffer_bytes(), views ? 0 : 2 * 1024);
    const ModelStateBytes measured = MeasureModelState(StateOf(*model, optimizer, *world));
    EXPECT_EQ(measured.buffers, optimizer.buffer_bytes());
    EXPECT_EQ(measured.total(), bytes + measured.buffers);
  }
}

// Parameters need not be contiguous.
TEST(ZeroRedundancyOptimizer, GathersParametersOfAnyLayout) {
  const at::Tensor start = torch::arange(60).reshape({6, 10}).to(torch::kFloat);
  std::vector<at::Tensor> parameters = {start.clone().t().requires_grad_(), start.clone().requires_grad_()};
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(parameters, *world, torch::optim::SGDOptions(1),
                                                       {.allgather_bucket_bytes = 64});
  for (at::Tensor& parameter : parameters) parameter.mutable_grad() = torch::ones_like(parameter);
  optimizer.step();
  EXPECT_TRUE(torch::equal(parameters[0], (start - 1).t()));
  EXPECT_TRUE(torch::equal(parameters[1], start - 1));
}

TEST(ZeroRedundancyOptimizer, FollowsChangesOfTheLearningRate) {
  auto model = std::make_shared<Net>();
  DistributedDataParallel<Net> ddp(model, *world);
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(model->parameters(), *world, torch::optim::SGDOptions(0.1));
  ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
  optimizer.param_groups()[0].options().set_lr(0.5);
  std::vector<at::Tensor> expected;
  for (const auto& parameter : model->parameters()) expected.push_back((parameter - 0.5 * parameter.grad()).detach());
  optimizer.step();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::allclose(model->parameters()[i], expected[i])) << i;
}

TEST(ZeroRedundancyOptimizer, RefusesCallsThatWouldLoseState) {
  auto model = std::make_shared<Net>();
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(model->parameters(), *world, torch::optim::SGDOptions(0.1));
  torch::serialize::OutputArchive out;
  EXPECT_THROW(optimizer.save(out), c10::Error);
  torch::serialize::InputArchive in;
  EXPECT_THROW(optimizer.load(in), c10::Error);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({torch::ones({2}).requires_grad_()}));
  EXPECT_THROW(optimizer.step(), c10::Error);
}

TEST(ZeroRedundancyOptimizer, ClipsByTheNormOfAllGradients) {
  for (const double norm_type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    auto model = std::make_shared<Net>();
    ZeroRedundancyOptimizer<Adam> optimizer(model->parameters(), *world, AdamOptions(0.1));
    ShardedDataParallel<Net> sharded(model, optimizer, *world);
    const auto expected = ExpectedGradients(*model);
    double total = 0;
    for (const auto& grad : expected) {
      const double norm = grad.norm(norm_type).item<double>();
      total = std::isinf(norm_type) ? std::max(total, norm) : total + std::pow(norm, norm_type);
    }
    if (!std::isinf(norm_type)) total = std::pow(total, 1 / norm_type);
    sharded.forward(InputOf(world->rank())).pow(2).mean().backward();
    EXPECT_NEAR(optimizer.clip_grad_norm_(total / 2, norm_type).item<double>(), total, 1e-5 * total);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (optimizer.owners()[i] != world->rank()) continue;
      EXPECT_TRUE(torch::allclose(model->parameters()[i].grad(), expected[i] / 2, 1e-4, 1e-7)) << i;
    }
  }
}

// A rank without inputs still owns parameters, and steps them.
TEST(ZeroRedundancyOptimizer, TakesPartInAJoin) {
  const auto inputs = [](int rank) { return 2 + (world->size() - 1 - rank); };
  for (const bool second_stage : {false, true}) {
    auto model = std::make_shared<Net>();
    auto reference = std::make_shared<Net>();
    DistributedDataParallel<Net> same_start(reference, *world);
    const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(model->parameters(), *world, sgd);
    std::unique_ptr<DistributedDataParallel<Net>> ddp;
    if (second_stage) {
      ddp = std::make_unique<ShardedDataParallel<Net>>(model, optimizer, *world);
    } else {
      ddp = std::make_unique<DistributedDataParallel<Net>>(model, *world);
    }
    Join({ddp.get(), &optimizer}).run([&] {
      for (int step = 0; step < inputs(world->rank()); ++step) {
        optimizer.zero_grad();
        ddp->forward(InputOf(world->rank(), step)).pow(2).mean().backward();
        optimizer.step();
      }
    });
    torch::optim::SGD plain(reference->parameters(), sgd);
    for (int step = 0; step < inputs(0); ++step) {
      at::Tensor loss = torch::zeros({});
      for (int rank = 0; rank < world->size(); ++rank) {
        if (step < inputs(rank)) loss = loss + reference->forward(InputOf(rank, step)).pow(2).mean() / world->size();
      }
      plain.zero_grad();
      loss.backward();
      plain.step();
    }
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(model->parameters()[i], reference->parameters()[i], 1e-4, 1e-6)) << i;
    }
  }
}

}  // namespace
}  // namespace cohort::trainer
