// FullyShardedDataParallel against DistributedDataParallel and against one process, seen from inside a job.
#include <chrono>
#include <memory>

#include "cohort/trainer/base/error.h"
#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;

class Fsdp : public testing::TestWithParam<std::tuple<ShardingStrategy, bool>> {
 protected:
  FullyShardedDataParallelOptions options() const {
    FullyShardedDataParallelOptions options;
    options.sharding_strategy = std::get<0>(GetParam());
    options.forward_prefetch = std::get<1>(GetParam());
    options.backward_prefetch = std::get<1>(GetParam()) ? BackwardPrefetch::kBackwardPre : BackwardPrefetch::kNone;
    return options;
  }
};

// Division by the world size is exact for powers of two only; otherwise products and sums round elsewhere.
TEST_P(Fsdp, FsdpGivesTheBitsOfDdp) {
  const auto group = OrderInvariantWorld();
  auto model = Shard(*group, options());
  Adam optimizer(model->parameters(), AdamOptions(0.02));
  Train(*model, optimizer);
  for (const auto& unit : model->root().units()) EXPECT_TRUE(unit->sharded());
  ExpectSame(Whole(*model), TrainedByDdp(*group), WorldIsPowerOfTwo());
}

TEST_P(Fsdp, ARankKeepsItsShardOnly) {
  auto model = Shard(*world, options());
  const bool whole = std::get<0>(GetParam()) == ShardingStrategy::kNoShard;
  const int shards = whole ? 1 : world->size();
  for (const auto& part : model->sharded_parameters()) {
    int64_t numel = 1;
    for (int64_t size : part.sizes) numel *= size;
    const int64_t rows = part.sizes.empty() ? 1 : part.sizes.front();
    EXPECT_EQ(part.tensor.numel(), part.end - part.begin);
    EXPECT_LE(part.tensor.numel(), (rows + shards - 1) / shards * (numel / rows)) << part.name;
    int64_t together = part.tensor.numel();
    const comm::Buffer buffer(&together, 1);
    ASSERT_TRUE(world->AllReduce(buffer, buffer, comm::ReduceOp::kSum).Wait().ok());
    EXPECT_EQ(together, whole ? numel * world->size() : numel) << part.name;
  }
  EXPECT_EQ(model->sharded_parameters().front().name.find("_fsdp"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Strategies, Fsdp,
                         testing::Combine(testing::Values(ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                                          ShardingStrategy::kNoShard),
                                          testing::Bool()));

TEST(FsdpMesh, ShardsAreReplicatedOverRows) {
  if (world->size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok());
  for (const auto strategy : {ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
    FullyShardedDataParallelOptions options;
    options.sharding_strategy = strategy;
    auto model = Shard(**mesh, options);
    Adam optimizer(model->parameters(), AdamOptions(0.02));
    Train(*model, optimizer);
    ExpectSame(Whole(*model), TrainedByDdp(*world), false);
  }
  FullyShardedDataParallelOptions hybrid;
  hybrid.sharding_strategy = ShardingStrategy::kHybridShard;
  EXPECT_THROW(Shard(*world, hybrid), c10::Error) << "without a mesh";
}

// Every rank makes one block at a time and keeps its shard of it: the values are those of the whole model made in one
// process, whatever the mesh, and nothing is sent.
TEST(FsdpInitialisation, InitialValuesDoNotDependOnTheMesh) {
  struct Deep : torch::nn::Module {
    using Wrap = std::function<std::shared_ptr<torch::nn::Module>(std::shared_ptr<torch::nn::LinearImpl>)>;
    explicit Deep(const Wrap& wrap) {
      for (int i = 0; i < 4; ++i) {
        register_module("layer" + std::to_string(i), wrap(std::make_shared<torch::nn::LinearImpl>(5, 5)));
      }
    }
    at::Tensor forward(const at::Tensor& x) { return x; }
  };
  torch::manual_seed(77);
  const Deep whole([](std::shared_ptr<torch::nn::LinearImpl> layer) { return layer; });
  FullyShardedDataParallelOptions options;
  options.sync_module_states = false;
  const auto expect_same = [&](auto& where) {
    torch::manual_seed(77);
    auto deep = std::make_shared<Deep>([&](std::shared_ptr<torch::nn::LinearImpl> layer) {
      return std::make_shared<FullyShardedDataParallel<torch::nn::LinearImpl>>(layer, where, options);
    });
    const auto model = std::make_shared<FullyShardedDataParallel<Deep>>(deep, where, options);
    const SummonFullParams summoned(*model, /*writeback=*/false);
    ExpectSame(model->parameters(), whole.parameters(), /*bits=*/true);
  };
  expect_same(*world);
  if (world->size() % 2 != 0) return;
  auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok());
  expect_same(**mesh);
}

TEST(FsdpNoSync, NoSyncAccumulatesAndTheNextBackwardAverages) {
  auto model = Shard(*world);
  auto reference = Plain();
  DistributedDataParallel<Tower> ddp(reference, *world);
  for (int round = 0; round < 2; ++round) {
    {
      const auto guard = model->no_sync();
      const auto ddp_guard = ddp.no_sync();
      model->forward(InputOf(world->rank(), 0)).pow(2).mean().backward();
      ddp.forward(InputOf(world->rank(), 0)).pow(2).mean().backward();
    }
    model->forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
    ddp.forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
    // The second round adds to what the first one gave.
    const auto parts = model->sharded_parameters();
    for (size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor expected = PartOf(parts[i], reference->parameters()[i].grad());
      EXPECT_TRUE(torch::allclose(parts[i].tensor.grad(), expected, 1e-4, 1e-6))
          << parts[i].name << " in round " << round;
    }
  }
}

// The shards' gradients are `times` those of DDP's one backward pass of the same input.
void ExpectGradientsOfDdp(FullyShardedDataParallel<Tower>& model, int step, double times) {
  auto reference = Plain();
  DistributedDataParallel<Tower> ddp(reference, *world);
  ddp.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
  const auto parts = model.sharded_parameters();
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor expected = PartOf(parts[i], reference->parameters()[i].grad() * times);
    ASSERT_TRUE(parts[i].tensor.grad().defined()) << parts[i].name;
    EXPECT_TRUE(torch::allclose(parts[i].tensor.grad(), expected, 1e-4, 1e-6)) << parts[i].name << ", step " << step;
  }
}

void ZeroGradients(FullyShardedDataParallel<Tower>& model) {
  for (const auto& part : model.sharded_parameters()) at::Tensor(part.tensor).mutable_grad() = at::Tensor();
}

TEST(FsdpBackward, ASecondBackwardPassOfTheSameGraphAddsItsGradients) {
  auto model = Shard(*world);
  const at::Tensor loss = model->forward(InputOf(world->rank(), 0)).pow(2).mean();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  ExpectGradientsOfDdp(*model, 0, 2);
  ZeroGradients(*model);
  model->forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
  ExpectGradientsOfDdp(*model, 1, 1);  // and leaves nothing to the next step
}

TEST(FsdpBackward, AFailedBackwardPassLeavesNothingToTheNext) {
  auto model = Shard(*world);
  at::Tensor input = InputOf(world->rank(), 0).requires_grad_();
  input.register_hook([](const at::Tensor&) { throw std::runtime_error("a hook of the user's"); });
  EXPECT_ANY_THROW(model->forward(input).pow(2).mean().backward());
  ZeroGradients(*model);
  model->forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
  ExpectGradientsOfDdp(*model, 1, 1);
}

// Reductions that it began are under way, and the others wait for those that it did not begin.
TEST(FsdpBackward, AFailedBackwardPassEndsOnAllRanksWithItsModel) {
  auto model = Shard(*world);
  model->root();
  ASSERT_TRUE(world->Barrier().Wait().ok());  // lest the error meets a rank that is still wrapping
  at::Tensor input = InputOf(world->rank(), 0).requires_grad_();
  if (world->rank() == 0) {
    input.register_hook([](const at::Tensor&) { throw std::runtime_error("a hook of the user's"); });
    EXPECT_ANY_THROW(model->forward(input).pow(2).mean().backward());
    model.reset();
    return;
  }
  try {
    for (int step = 0; step < 2; ++step) model->forward(input).pow(2).mean().backward();
    FAIL() << "rank " << world->rank() << " noticed nothing";
  } catch (const DistributedError& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("destroyed within a backward pass"));
  }
}

// It has caught that, and goes on with the next batch: the others get the error, whatever they wait for.
TEST(FsdpBackward, ABackwardPassThatFailsOnOneRankIsAnErrorOnAll) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks";
  for (const bool at_once : {true, false}) {  // before it has begun any reduction, or after all of them
    auto model = Shard(*world);
    model->root();
    ASSERT_TRUE(world->Barrier().Wait().ok());  // lest the error meets a rank that is still wrapping
    const auto start = std::chrono::steady_clock::now();
    if (world->rank() == 0) {
      at::Tensor input = InputOf(0).requires_grad_();
      const at::Tensor output = model->forward(input);
      (at_once ? output : input).register_hook([](const at::Tensor&) {
        throw std::runtime_error("a hook of the user's");
      });
      EXPECT_ANY_THROW(output.pow(2).mean().backward());
    }
    try {
      for (int step = 0; step < 3; ++step) model->forward(InputOf(world->rank())).pow(2).mean().backward();
      ADD_FAILURE() << "rank " << world->rank() << " noticed nothing";
    } catch (const DistributedError& error) {
      if (world->rank() == 0) {
        // Or the call after it, where that had all it needed from the ranks that it met.
        EXPECT_THAT(error.what_without_backtrace(), testing::AnyOf(testing::HasSubstr("ended the last backward pass"),
                                                                   testing::HasSubstr("calls do not match")));
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  }
}

TEST(FsdpBackward, FollowsParametersThatThawAndFreeze) {
  auto model = Shard(*world);
  const auto freeze = [&](bool frozen) {
    for (const auto& part : model->sharded_parameters()) {
      if (part.name.find("bias") != std::string::npos) at::Tensor(part.tensor).requires_grad_(!frozen);
    }
  };
  freeze(true);
  model->forward(InputOf(world->rank(), 0)).pow(2).mean().backward();
  freeze(false);
  ZeroGradients(*model);
  model->forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
  ExpectGradientsOfDdp(*model, 1, 1);
}

TEST(FsdpClip, ClippingScalesByTheNormOfAllGradients) {
  for (const double norm_type : {2.0, std::numeric_limits<double>::infinity()}) {
    auto model = Shard(*world);
    auto reference = Plain();
    DistributedDataParallel<Tower> ddp(reference, *world);
    ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
    const double expected = torch::nn::utils::clip_grad_norm_(reference->parameters(), 0.01, norm_type);
    model->forward(InputOf(world->rank())).pow(2).mean().backward();
    EXPECT_NEAR(model->clip_grad_norm_(0.01, norm_type).item<double>(), expected, 1e-4 * expected);
    const auto parts = model->sharded_parameters();
    for (size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor expected = PartOf(parts[i], reference->parameters()[i].grad());
      EXPECT_TRUE(torch::allclose(parts[i].tensor.grad(), expected, 1e-3, 1e-7)) << parts[i].name;
    }
  }
}

TEST(FsdpMixedPrecision, ComputesInBFloat16AndKeepsFloat32) {
  FullyShardedDataParallelOptions options;
  options.mixed_precision = {
      .param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat32, .output_dtype = torch::kFloat32};
  auto model = Shard(*world, options);
  auto exact = Shard(*world);
  for (int step = 0; step < 3; ++step) {
    for (auto* each : {model.get(), exact.get()}) {
      for (auto& parameter : each->parameters()) parameter.mutable_grad() = at::Tensor();
      const at::Tensor output = each->forward(InputOf(world->rank(), step));
      EXPECT_EQ(output.scalar_type(), torch::kFloat32);
      output.pow(2).mean().backward();
    }
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      const at::Tensor parameter = model->parameters()[i];
      EXPECT_EQ(parameter.scalar_type(), torch::kFloat32);
      ASSERT_EQ(parameter.grad().scalar_type(), torch::kFloat32);
      EXPECT_TRUE(torch::allclose(parameter.grad(), exact->parameters()[i].grad(), 0.1, 0.02)) << i << " step " << step;
    }
  }
}

TEST(FsdpEvaluation, EvaluationLeavesShardsBehind) {
  auto model = Shard(*world);
  const auto before = Whole(*model);
  {
    const torch::NoGradGuard no_grad;
    model->forward(InputOf(0));
    for (const auto& unit : model->root().units()) EXPECT_TRUE(unit->sharded());
  }
  model->forward(InputOf(0)).sum().backward();
  ExpectSame(Whole(*model), before, true);
  {
    const SummonFullParams whole(*model);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(2);
  }
  for (const auto& parameter : Whole(*model)) EXPECT_TRUE(torch::equal(parameter, torch::full_like(parameter, 2)));
}

// Forward gathers every unit, backward those but the root's again; each is reduced once.
TEST(FsdpTraffic, TrafficIsWhatTheFormulasSay) {
  if (world->size() == 1) GTEST_SKIP() << "nothing moves";
  for (const bool full : {true, false}) {
    FullyShardedDataParallelOptions options;
    options.sharding_strategy = full ? ShardingStrategy::kFullShard : ShardingStrategy::kShardGradOp;
    auto model = Shard(*world, options);
    Adam optimizer(model->parameters(), AdamOptions(0.02));
    Train(*model, optimizer, 4);
    int64_t blocks = 0, root = 0;
    for (const auto& unit : model->root().units()) {
      (unit == model->root().units().front() ? root : blocks) += unit->padded_numel() * 4;
    }
    const FsdpTraffic& traffic = model->root().traffic();
    EXPECT_EQ(traffic.gathers, 4 * (1 + kBlocks * (full ? 2 : 1)));
    EXPECT_EQ(traffic.gathered_bytes, 4 * (root + blocks * (full ? 2 : 1)));
    EXPECT_EQ(traffic.reductions, 4 * (1 + kBlocks));
    EXPECT_EQ(traffic.reduced_bytes, 4 * (root + blocks));
    EXPECT_EQ(traffic.replicated_bytes, 0);
  }
}

// PyTorch has no Join for FSDP: rank 0 has no input at all, the others ever more.
void ExpectJoined(Sharded& model) {
  const auto inputs = [](int rank) { return 2 * rank; };
  auto reference = Plain();
  DistributedDataParallel<Tower> same_start(reference, *world);
  const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
  torch::optim::SGD optimizer(model.parameters(), sgd);
  JoinableOptimizer steps(optimizer, *world);
  Join({&model, &steps}).run([&] {
    for (int step = 0; step < inputs(world->rank()); ++step) {
      optimizer.zero_grad();
      model.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
      optimizer.step();
    }
  });
  torch::optim::SGD plain(reference->parameters(), sgd);
  for (int step = 0; step < inputs(world->size() - 1); ++step) {
    at::Tensor loss = torch::zeros({});
    for (int rank = 0; rank < world->size(); ++rank) {
      if (step < inputs(rank)) loss = loss + reference->forward(InputOf(rank, step)).pow(2).mean() / world->size();
    }
    plain.zero_grad();
    loss.backward();
    plain.step();
  }
  ExpectSame(Whole(model), reference->parameters(), false);
}

TEST(FsdpJoin, ShadowsRanksThatHaveMoreInputs) {
  ExpectJoined(*Shard(*world));
  FullyShardedDataParallelOptions options;
  options.sharding_strategy = ShardingStrategy::kShardGradOp;
  options.backward_prefetch = BackwardPrefetch::kNone;
  ExpectJoined(*Shard(*world, options));
  options.reshard_after_forward = true;  // the root's too
  ExpectJoined(*Shard(*world, options));
  if (world->size() % 2 != 0) return;
  options.reshard_after_forward = 2;
  ExpectJoined(*Shard(*world, options));
}

TEST(FsdpJoin, ShadowsRanksOfReplicasThatHaveMoreInputs) {
  if (world->size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
  auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok());
  FullyShardedDataParallelOptions options;
  options.sharding_strategy = ShardingStrategy::kHybridShard;
  for (const bool over_world : {false, true}) {
    options.reduce_over_world = over_world;
    ExpectJoined(*Shard(**mesh, options));
  }
}

TEST(FsdpErrors, ErrorsOfFsdpNameTheCause) {
  struct Mixed : torch::nn::Module {
    Mixed() {
      register_parameter("a", torch::ones({2}));
      register_parameter("b", torch::ones({2}, torch::kFloat64));
    }
    at::Tensor forward(const at::Tensor& x) { return x; }
  };
  EXPECT_THROW(FullyShardedDataParallel<Mixed>(std::make_shared<Mixed>(), *world), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
