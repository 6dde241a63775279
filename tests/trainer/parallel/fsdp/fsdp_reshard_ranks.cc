// Memory that FullyShardedDataParallel keeps between forward and backward, and shards that DistributedDataParallel
// replicates.
#include <memory>

#include "cohort/trainer/parallelize/replicated_shards.h"
#include "cohort/trainer/state/training_state.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

using comm::CollectiveKind;
using testing::HasSubstr;
using torch::optim::Adam;
using torch::optim::AdamOptions;

FullyShardedDataParallelOptions Resharding(ReshardAfterForward reshard) {
  FullyShardedDataParallelOptions options;
  options.reshard_after_forward = reshard;
  return options;
}

std::vector<int> Divisors(int number) {
  std::vector<int> divisors;
  for (int i = 1; i <= number; ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return divisors;
}

TEST(FsdpReshardAfterForward, ReshardingGivesTheBitsOfDdp) {
  const auto group = OrderInvariantWorld();
  const auto expected = TrainedByDdp(*group);
  std::vector<ReshardAfterForward> choices = {true, false};
  for (const int ranks : Divisors(world->size())) choices.emplace_back(ranks);
  for (const ReshardAfterForward& choice : choices) {
    for (const bool prefetch : {true, false}) {
      FullyShardedDataParallelOptions options = Resharding(choice);
      options.forward_prefetch = prefetch;
      options.backward_prefetch = prefetch ? BackwardPrefetch::kBackwardPre : BackwardPrefetch::kNone;
      auto model = Shard(*group, options);
      Adam optimizer(model->parameters(), AdamOptions(0.02));
      Train(*model, optimizer);
      SCOPED_TRACE(choice.ranks());
      ExpectSame(Whole(*model), expected, WorldIsPowerOfTwo());
    }
  }
}

// Between the passes a rank has an n-th of each unit, and the neighbours alone gather it again.
TEST(FsdpReshardAfterForward, ReshardingKeepsAnNthAmongNNeighbours) {
  for (const int ranks : Divisors(world->size())) {
    auto model = Shard(*world, Resharding(ranks));
    Adam optimizer(model->parameters(), AdamOptions(0.02));
    Train(*model, optimizer, 1);
    CommunicationLedger ledger;
    optimizer.zero_grad();
    const at::Tensor loss = model->forward(InputOf(world->rank())).pow(2).mean();
    const bool between = ranks > 1 && ranks < world->size();
    for (const auto& unit : model->root().units()) {
      EXPECT_EQ(unit->kept_numel(), between ? unit->padded_numel() / ranks : 0) << ranks;
      EXPECT_EQ(unit->unsharded(), ranks == 1) << ranks;
    }
    loss.backward();
    for (const auto& unit : model->root().units()) {
      EXPECT_EQ(unit->kept_numel(), 0);
      EXPECT_TRUE(unit->sharded());
    }
    if (world->size() == 1) continue;
    auto entries = ledger.entries();
    const int64_t units = kBlocks + 1;
    EXPECT_EQ((entries[{CollectiveKind::kAllGather, world->size()}].calls), ranks == world->size() ? 2 * units : units);
    if (!between) continue;
    EXPECT_EQ((entries[{CollectiveKind::kAllGather, ranks}].calls), units);
  }
}

TEST(FsdpReshardAfterForward, KeptParametersAreDroppedWithoutABackwardPass) {
  auto model = Shard(*world, Resharding(world->size() % 2 == 0 ? 2 : 1));
  const at::Tensor before = model->forward(InputOf(0)).detach().clone();
  {
    const SummonFullParams whole(*model);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.mul_(2);
  }
  model->forward(InputOf(0)).sum().backward();
  EXPECT_FALSE(torch::allclose(model->forward(InputOf(0)), before));
}

TEST(FsdpReshardAfterForward, KeptParametersAreDroppedBySummonFullParams) {
  auto model = Shard(*world, Resharding(world->size() % 2 == 0 ? ReshardAfterForward(2) : ReshardAfterForward(true)));
  auto expected = Whole(*model);
  for (auto& parameter : expected) parameter.mul_(2);
  model->forward(InputOf(0));
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.mul_(2);  // as an optimizer would
  }
  ExpectSame(Whole(*model), expected, /*bits=*/true);
}

TEST(FsdpReshardAfterForward, ANumberThatDoesNotDivideTheShardsIsRefused) {
  EXPECT_THROW(Shard(*world, Resharding(world->size() + 1)), c10::Error);
  EXPECT_THROW(Shard(*world, Resharding(-1)), c10::Error);
}

// On the CPU there is nothing to offload; on a device shards lie on the host, and bits are the same.
TEST(FsdpCpuOffload, CpuOffloadChangesNoBit) {
  const bool cuda = torch::cuda::is_available() && static_cast<int>(torch::cuda::device_count()) >= world->size();
  std::vector<std::vector<at::Tensor>> trained;
  for (const bool offload : {false, true}) {
    FullyShardedDataParallelOptions options;
    options.cpu_offload = offload;
    auto net = std::make_shared<Net>();
    if (cuda) net->to(torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(world->rank())));
    const at::Device device = net->parameters().front().device();
    FullyShardedDataParallel<Net> model(net, *world, options);
    Adam optimizer(model.parameters(), AdamOptions(0.02));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      model.forward(InputOf(world->rank(), step).to(device)).pow(2).mean().backward();
      optimizer.step();
    }
    for (const auto& parameter : model.parameters()) {
      EXPECT_EQ(parameter.is_cuda(), cuda && !offload);
      EXPECT_EQ(parameter.grad().is_cuda(), cuda && !offload);
    }
    const SummonFullParams whole(model, /*writeback=*/false);
    trained.emplace_back();
    for (const auto& parameter : model.parameters()) trained.back().push_back(parameter.detach().cpu().clone());
  }
  ExpectSame(trained[1], trained[0], /*bits=*/true);
}

// A mesh of two rows, whose groups DistributedDataParallel and FullyShardedDataParallel are given one by one.
class FsdpReplicated : public testing::Test {
 protected:
  void SetUp() override {
    if (world->size() % 2 != 0) GTEST_SKIP() << "needs an even number of ranks";
    auto mesh = DeviceMesh::Create(*world, {2, world->size() / 2}, {"replicate", "shard"});
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    mesh_ = *std::move(mesh);
  }
  comm::Communicator& shard() { return *FsdpRanksOf(*mesh_).shard; }
  comm::Communicator& replicate() { return *FsdpRanksOf(*mesh_).replicate; }
  std::unique_ptr<DeviceMesh> mesh_;
};

TEST_F(FsdpReplicated, FsdpReplicatedByDdpIsHsdp) {
  FullyShardedDataParallelOptions hybrid;
  hybrid.sharding_strategy = ShardingStrategy::kHybridShard;
  auto expected = Shard(*mesh_, hybrid);
  auto model = Shard(shard());
  DistributedDataParallel ddp(model, replicate());
  LedgerEntry sent[2];
  {
    CommunicationLedger ledger;
    Adam optimizer(expected->parameters(), AdamOptions(0.02));
    Train(*expected, optimizer);
    sent[0] = ledger.total();
    ledger.Reset();
    Adam adam(model->parameters(), AdamOptions(0.02));
    Train(ddp, adam);
    sent[1] = ledger.total();
    EXPECT_EQ(StateOf(*model, adam).parameters.front().replicas, 2);
  }
  EXPECT_EQ(sent[0].calls, sent[1].calls);
  EXPECT_EQ(sent[0].sent_by_group, sent[1].sent_by_group);
  ExpectSame(Whole(*model), Whole(*expected), /*bits=*/true);
  ExpectSame(Whole(*model), TrainedByDdp(*world), false);
}

TEST_F(FsdpReplicated, NoSyncAddsUpGradientsOfReplicatedFsdp) {
  auto model = Shard(shard());
  DistributedDataParallel ddp(model, replicate());
  auto reference = Plain();
  DistributedDataParallel<Tower> plain(reference, *world);
  {
    const auto guard = ddp.no_sync();
    const auto plain_guard = plain.no_sync();
    ddp.forward(InputOf(world->rank(), 0)).pow(2).mean().backward();
    plain.forward(InputOf(world->rank(), 0)).pow(2).mean().backward();
  }
  ddp.forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
  plain.forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
  const auto parts = model->sharded_parameters();
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor expected = PartOf(parts[i], reference->parameters()[i].grad());
    EXPECT_TRUE(torch::allclose(parts[i].tensor.grad(), expected, 1e-4, 1e-6)) << parts[i].name;
  }
}

// Inner modules wrapped in another way than the outer one. `Where` is a Communicator or a DeviceMesh.
template <typename Where>
std::shared_ptr<Sharded> WithInner(
    const std::function<std::shared_ptr<FullyShardedDataParallel<Block>>(std::shared_ptr<Block>)>& inner,
    Where& outer) {
  auto tower = std::make_shared<Tower>([&](std::shared_ptr<Block> block) {
    auto wrapped = inner(std::move(block));
    return std::make_pair(wrapped, [wrapped](const at::Tensor& x) { return wrapped->forward(x); });
  });
  return std::make_shared<Sharded>(tower, outer);
}

template <typename Wrap>
std::string Refused(const Wrap& wrap) {
  try {
    wrap();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST_F(FsdpReplicated, RefusesByNameCombinationsThatAreNonsense) {
  const auto wrap = [](std::shared_ptr<Sharded> model, comm::Communicator& group,
                       const DistributedDataParallelOptions& options = {}) {
    return Refused([&] { DistributedDataParallel<Sharded>(model, group, options); });
  };
  EXPECT_THAT(wrap(Shard(*mesh_), replicate()), HasSubstr("replicated by their DeviceMesh"));
  auto used = Shard(shard());
  used->root();
  EXPECT_THAT(wrap(used, replicate()), HasSubstr("used before"));
  DistributedDataParallelOptions options;
  options.static_graph = true;
  EXPECT_THAT(wrap(Shard(shard()), replicate(), options), HasSubstr("static_graph"));
  auto ddp_first = Shard(shard());
  const DistributedDataParallel<Sharded> ddp(ddp_first, replicate());
  EXPECT_THAT(Refused([&] { ddp_first->join_group(); }), HasSubstr("DeviceMesh"));
  if (shard().size() == 1) return;
  const std::string overlap = wrap(Shard(shard()), *world);
  EXPECT_THAT(overlap, HasSubstr("head.weight"));
  EXPECT_THAT(overlap, HasSubstr("different shards"));
  auto holder = std::make_shared<torch::nn::Module>();
  holder->register_module("inner", Shard(shard()));
  EXPECT_THAT(Refused([&] { DistributedDataParallel<torch::nn::Module>(holder, *world); }),
              HasSubstr("module inner is sharded"));
}

TEST_F(FsdpReplicated, RefusesInnerModulesWithOtherReplicas) {
  const auto over_mesh = [&](std::shared_ptr<Block> block) {
    return std::make_shared<FullyShardedDataParallel<Block>>(block, *mesh_);
  };
  const auto over_shards = [&](std::shared_ptr<Block> block) {
    return std::make_shared<FullyShardedDataParallel<Block>>(block, shard());
  };
  auto drifting = WithInner(over_mesh, shard());
  EXPECT_THAT(Refused([&] { drifting->root(); }), HasSubstr("replicated over different ranks"));
  auto begun_apart = WithInner(over_shards, *mesh_);  // each row has the inner values of its own first rank
  EXPECT_THAT(Refused([&] { begun_apart->root(); }), HasSubstr("replicated over different ranks"));
  auto outer = WithInner(over_shards, shard());
  const DistributedDataParallel ddp(outer, replicate());
  EXPECT_EQ(Refused([&] { outer->root(); }), "") << "inner ones have those of the outermost";
}

}  // namespace
}  // namespace cohort::trainer
