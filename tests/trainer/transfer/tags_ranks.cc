// Collectives of equal size that belong to other units or iterations, replicas that start apart, and ranks that are
// missing: every rank gets an error that says so.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/transfer/collectives.h"
#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Layer = FullyShardedDataParallel<torch::nn::LinearImpl>;

// Calls `step` until it throws, soon; "" if it never does.
std::string ErrorWithin(int steps, const std::function<void(int)>& step) {
  for (int i = 0; i < steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      step(i);
    } catch (const DistributedError& error) {
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));  // 1 s on an idle machine
      return error.what_without_backtrace();
    }
  }
  return "";
}

bool IsLast() { return world->rank() == world->size() - 1; }

// Two layers of one size, which a rank may run in either order.
struct Pair : torch::nn::Module {
  Pair(comm::Communicator& group, const FullyShardedDataParallelOptions& options) {
    for (auto* layer : {&first, &second}) {
      *layer = register_module(layer == &first ? "first" : "second",
                               std::make_shared<Layer>(std::make_shared<torch::nn::LinearImpl>(4, 4), group, options));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    return swapped ? first->forward(second->forward(x)) : second->forward(first->forward(x));
  }
  std::shared_ptr<Layer> first, second;
  bool swapped = false;
};

TEST(CallTags, UnitsOfEqualSizeInAnotherOrderAreRefused) {
  if (world->size() == 1) GTEST_SKIP() << "one rank has one order";
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    const auto group = OrderInvariantWorld();
    FullyShardedDataParallelOptions options;
    options.sharding_strategy = strategy;
    const auto pair = std::make_shared<Pair>(*group, options);
    FullyShardedDataParallel<Pair> fsdp(pair, *group, options);
    const std::string error = ErrorWithin(4, [&](int step) {
      pair->swapped = step == 1 && IsLast();
      fsdp.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
    });
    EXPECT_THAT(error, AllOf(HasSubstr("do not match"), HasSubstr("tag 2/")));
    ASSERT_TRUE(world->Barrier().Wait().ok());
  }
}

TEST(CallTags, TheIterationAfterAMissedBackwardPassIsRefused) {
  if (world->size() == 1) GTEST_SKIP() << "nobody else has it";
  const auto group = OrderInvariantWorld();
  DistributedDataParallelOptions options;
  options.broadcast_buffers = false;  // which would meet a gradient, and be seen
  DistributedDataParallel<Net> ddp(std::make_shared<Net>(), *group, options);
  const std::string error = ErrorWithin(5, [&](int step) {
    const at::Tensor loss = ddp.forward(InputOf(world->rank(), step)).pow(2).mean();
    if (step != 2 || !IsLast()) loss.backward();
  });
  EXPECT_THAT(error, HasSubstr("do not match"));
  ASSERT_TRUE(world->Barrier().Wait().ok());
}

// Nothing is gathered there: a gathering would wait.
TEST(CallTags, AMissedBackwardPassIsRefusedUnderFsdpThatOnlyReplicates) {
  if (world->size() == 1) GTEST_SKIP() << "nobody else has it";
  const auto group = OrderInvariantWorld();
  FullyShardedDataParallelOptions options;
  options.sharding_strategy = ShardingStrategy::kNoShard;
  FullyShardedDataParallel<torch::nn::LinearImpl> fsdp(std::make_shared<torch::nn::LinearImpl>(4, 4), *group, options);
  const std::string error = ErrorWithin(5, [&](int step) {
    const at::Tensor loss = fsdp.forward(InputOf(world->rank(), step)).pow(2).mean();
    if (step != 2 || !IsLast()) loss.backward();
  });
  // The rank that has missed it finds that out itself, and may tell the others before their reductions meet.
  if (IsLast()) {
    EXPECT_THAT(error, HasSubstr("of replica " + std::to_string(world->rank()) + " went on after a forward pass"));
  } else {
    EXPECT_THAT(error, testing::AnyOf(HasSubstr("do not match"), HasSubstr("went on after a forward pass"),
                                      HasSubstr("has a rank left out a backward pass")));
  }
  ASSERT_TRUE(world->Barrier().Wait().ok());
}

// A replica may do alone what sends nothing to the others: an evaluation, with gradients or without, and a pass whose
// gradients stay here.
TEST(CallTags, TagsOfReplicasAgreeAfterPassesOfOneAlone) {
  if (world->size() == 1) GTEST_SKIP() << "there is one replica";
  const auto group = OrderInvariantWorld();
  for (const int shards : {1, 2}) {
    if (world->size() % shards != 0 || world->size() == shards) continue;
    auto mesh = DeviceMesh::Create(*group, {world->size() / shards, shards}, {"replicate", "shard"});
    ASSERT_TRUE(mesh.ok());
    for (const bool sync : {true, false}) {
      FullyShardedDataParallelOptions options;
      options.sync_module_states = sync;
      torch::manual_seed(7);
      const auto layer = std::make_shared<torch::nn::LinearImpl>(4, 4);
      FullyShardedDataParallel<torch::nn::LinearImpl> fsdp(layer, **mesh, options);
      const std::string error = ErrorWithin(2, [&](int step) {
        const at::Tensor input = InputOf(world->rank(), step);
        if (*(*mesh)->get_local_rank("replicate") == 1) {
          fsdp.eval();
          fsdp.forward(input);
          fsdp.train();
          const at::NoGradGuard no_grad;
          fsdp.forward(input);
        }
        if (*(*mesh)->get_local_rank("replicate") == 0) {
          const auto local = fsdp.no_sync();
          fsdp.forward(input).pow(2).mean().backward();
        }
        fsdp.forward(input).pow(2).mean().backward();
      });
      EXPECT_EQ(error, "") << shards << " shards, sync_module_states " << sync;
    }
  }
}

TEST(StartValues, StartValuesOfReplicasAreCompared) {
  if (world->size() == 1) GTEST_SKIP() << "there is one replica";
  const auto group = OrderInvariantWorld();
  auto mesh = DeviceMesh::Create(*group, {world->size(), 1}, {"replicate", "shard"});
  ASSERT_TRUE(mesh.ok());
  FullyShardedDataParallelOptions options;
  options.sync_module_states = false;
  for (const bool apart : {true, false}) {
    torch::manual_seed(apart && IsLast() ? 8 : 7);
    const auto layer = std::make_shared<torch::nn::LinearImpl>(4, 4);
    FullyShardedDataParallel<torch::nn::LinearImpl> fsdp(layer, **mesh, options);
    const std::string error =
        ErrorWithin(2, [&](int step) { fsdp.forward(InputOf(world->rank(), step)).pow(2).mean().backward(); });
    if (apart) {
      EXPECT_THAT(error, AllOf(HasSubstr("rank " + std::to_string(world->size() - 1) + " of the replicas"),
                               HasSubstr("sync_module_states")));
    } else {
      EXPECT_EQ(error, "");
    }
  }
}

TEST(MissingRank, AMissingRankIsNamedWithTheCall) {
  if (world->size() == 1) GTEST_SKIP() << "nobody is missing";
  const auto group = OrderInvariantWorld();
  const auto before = default_timeout();
  DistributedDataParallel<Net> ddp(std::make_shared<Net>(), *group);
  ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
  if (!IsLast()) {  // the second step rebuilds the buckets
    set_default_timeout(std::chrono::milliseconds(300));
    const std::string error = ErrorWithin(1, [&](int) { ddp.forward(InputOf(world->rank(), 1)); });
    EXPECT_THAT(error, AllOf(HasSubstr("bucket"), HasSubstr("rank"), HasSubstr("Join")));
    set_default_timeout(before);
  }
  // The last rank waits with a limit: without one it would be among ranks that wait for each other, which is an error.
  ASSERT_TRUE(world->Barrier().Wait(std::chrono::minutes(1)).ok());
}

TEST(DeviceParts, PartsBeyondTheDevicesAreRefused) {
  const auto net = std::make_shared<Net>();
  DistributedDataParallelOptions options;
  options.parts = {{net->first.get(), LocalDevice{0}}, {net->second.get(), LocalDevice{5}}};
  try {
    DistributedDataParallel<Net>(net, *world, options);
    ADD_FAILURE() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                testing::AnyOf(HasSubstr("a part has device index 5"), HasSubstr("owns 2 devices")));
  }
}

// Run by uneven_end_test.py, which reads what is printed. The last rank ends in order after a step, or at once.
void EndUnevenly(bool in_order) {
  DistributedDataParallel<Net> ddp(std::make_shared<Net>(), *world);
  ddp.forward(InputOf(world->rank())).pow(2).mean().backward();
  if (IsLast() && !in_order) std::_Exit(0);
  if (IsLast()) return;
  const std::string error =
      ErrorWithin(2, [&](int step) { ddp.forward(InputOf(world->rank(), 1 + step)).pow(2).mean().backward(); });
  std::printf("told: %s\n", error.c_str());
}
TEST(UnevenEndOfProcesses, DISABLED_OthersAreToldOfARankThatEndsInOrder) { EndUnevenly(true); }
TEST(UnevenEndOfProcesses, DISABLED_OthersAreToldOfARankThatEndsAtOnce) { EndUnevenly(false); }

TEST(UnevenEnd, TheErrorForAnEndedRankNamesJoin) {
  const auto error_of = [](const std::string& how) {
    try {
      ThrowUnlessAllCame(absl::UnavailableError("rank 1 (node0, pid 7) " + how), "averaging");
    } catch (const DistributedError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string();
  };
  EXPECT_THAT(error_of("exited with code 0 before its part of all_reduce #7 was over"), HasSubstr("Join"));
  EXPECT_THAT(error_of("exited with status 0"), HasSubstr("Join"));
  EXPECT_THAT(error_of("killed by SIGKILL"), testing::Not(HasSubstr("Join")));
}

}  // namespace
}  // namespace cohort::trainer
