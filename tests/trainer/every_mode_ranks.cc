// One training under every mode: the same bits where the arithmetic allows, with dropout and activation checkpointing,
// and also with transfers held back; a single process within a tolerance.
#include <memory>
#include <optional>

#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/parallel/zero/zero_redundancy_optimizer.h"
#include "cohort/trainer/parallelize/sharded_data_parallel.h"
#include "cohort/trainer/transfer/collectives.h"
#include "tests/support/delayed_collectives.h"
#include "tests/trainer/noisy_stack.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;

constexpr int kNoisySteps = 20;

// `where` is a Communicator or a DeviceMesh.
template <typename Where>
std::vector<at::Tensor> TrainedSharded(Where& where, const FullyShardedDataParallelOptions& options, bool saving) {
  const Stack::Call plain = [&](std::shared_ptr<Noisy> noisy) {
    return Called(std::make_shared<FullyShardedDataParallel<Noisy>>(noisy, where, options));
  };
  const Stack::Call checkpointed = [&](std::shared_ptr<Noisy> noisy) {
    using Saving = CheckpointWrapper<Noisy>;
    return Called(std::make_shared<FullyShardedDataParallel<Saving>>(std::make_shared<Saving>(noisy), where, options));
  };
  auto stack = std::make_shared<Stack>(saving ? checkpointed : plain, /*statistics=*/false);
  auto model = std::make_shared<FullyShardedDataParallel<Stack>>(stack, where, options);
  Adam optimizer(model->parameters(), AdamOptions(0.02));
  TrainNoisy(*model, optimizer, kNoisySteps);
  const SummonFullParams whole(*model, /*writeback=*/false);
  return Copies(model->parameters());
}

std::vector<at::Tensor> TrainedReplicated(const std::string& mode, bool saving, comm::Communicator& group) {
  const Stack::Call plain = [](std::shared_ptr<Noisy> noisy) { return Called(noisy); };
  const Stack::Call checkpointed = [](std::shared_ptr<Noisy> noisy) {
    return Called(std::make_shared<CheckpointWrapper<Noisy>>(noisy));
  };
  auto stack = std::make_shared<Stack>(saving ? checkpointed : plain, /*statistics=*/false);
  DistributedDataParallelOptions options;
  options.buckets = {.first_bytes = 64, .cap_bytes = 200};
  options.gradient_as_bucket_view = mode == "ddp, bucket views";
  if (mode.starts_with("ddp")) {
    DistributedDataParallel<Stack> ddp(stack, group, options);
    Adam optimizer(stack->parameters(), AdamOptions(0.02));
    TrainNoisy(ddp, optimizer, kNoisySteps);
    return Copies(stack->parameters());
  }
  ZeroRedundancyOptimizerOptions split;
  split.parameters_as_bucket_view = mode.ends_with("bucket views");
  ZeroRedundancyOptimizer<Adam> optimizer(stack->parameters(), group, AdamOptions(0.02), split);
  std::unique_ptr<DistributedDataParallel<Stack>> ddp =
      mode.starts_with("zero1") ? std::make_unique<DistributedDataParallel<Stack>>(stack, group, options)
                                : std::make_unique<ShardedDataParallel<Stack>>(stack, optimizer, group, options);
  TrainNoisy(*ddp, optimizer, kNoisySteps);
  return Copies(stack->parameters());
}

std::vector<at::Tensor> TrainedUnder(const std::string& mode, bool saving, comm::Communicator& group) {
  FullyShardedDataParallelOptions options;
  if (mode == "hsdp") {
    auto mesh = DeviceMesh::Create(group, {2, world->size() / 2}, {"replicate", "shard"});
    EXPECT_TRUE(mesh.ok()) << mesh.status();
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    options.reduce_over_world = true;
    return TrainedSharded(**mesh, options, saving);
  }
  if (mode == "fsdp, SHARD_GRAD_OP") options.sharding_strategy = ShardingStrategy::kShardGradOp;
  if (mode.starts_with("fsdp")) return TrainedSharded(group, options, saving);
  return TrainedReplicated(mode, saving, group);
}

std::vector<std::string> Modes() {
  std::vector<std::string> modes = {"ddp",   "ddp, bucket views",   "zero1", "zero1, bucket views",
                                    "zero2", "zero2, bucket views", "fsdp",  "fsdp, SHARD_GRAD_OP"};
  if (world->size() % 2 == 0) modes.push_back("hsdp");
  return modes;
}

std::unique_ptr<comm::Communicator> EveryModeWorld() {
  auto made = comm::Communicator::World(*job, {.determinism = comm::Determinism::kOrderInvariant});
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// Division by the number of ranks is exact for powers of two only.
void ExpectAlike(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                 const std::string& what) {
  const bool exact = (world->size() & (world->size() - 1)) == 0;
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(exact ? torch::equal(actual[i], expected[i]) : torch::allclose(actual[i], expected[i], 1e-3, 1e-4))
        << what << ", " << i << ": " << (actual[i] - expected[i]).abs().max();
  }
}

TEST(EveryMode, EveryModeGivesTheBitsOfDdpWithAndWithoutCheckpointing) {
  const auto group = EveryModeWorld();
  const auto expected = TrainedUnder("ddp", false, *group);
  for (const std::string& mode : Modes()) {
    for (const bool saving : {false, true}) {
      ExpectAlike(TrainedUnder(mode, saving, *group), expected, mode + (saving ? " with checkpointing" : ""));
    }
  }
}

TEST(EveryMode, NoModeUsesABufferTooEarly) {
  const auto group = EveryModeWorld();
  const auto expected = TrainedUnder("ddp", false, *group);
  for (const std::string& mode : Modes()) {
    const DelayedCollectives delayed;
    ExpectAlike(TrainedUnder(mode, /*saving=*/true, *group), expected, mode + " with transfers held back");
    EXPECT_GT(delayed.calls(), world->size() > 1 ? kNoisySteps : 0) << mode;
  }
}

// One process computes what every rank does, each with its own random numbers, and takes the mean. Sums are taken in
// another order; Adam turns a rounding of a small gradient into 1e-5 of a step of 0.02. Stated: 1e-3 of a parameter
// and 1e-4.
TEST(EveryMode, EveryModeTrainsAsASingleProcess) {
  auto stack = PlainStack(/*statistics=*/false);
  Adam optimizer(stack->parameters(), AdamOptions(0.02));
  std::vector<at::Generator> streams;
  for (int rank = 0; rank < world->size(); ++rank) {
    streams.push_back(at::detail::createCPUGenerator(static_cast<uint64_t>(900 + rank)));
  }
  at::Generator own = at::detail::getDefaultCPUGenerator();
  for (int step = 0; step < kNoisySteps; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < world->size(); ++rank) {
      own.set_state(streams[rank].get_state());
      (stack->forward(InputOf(rank, step)).pow(2).mean() / world->size()).backward();
      streams[rank].set_state(own.get_state());
    }
    optimizer.step();
  }
  for (const std::string& mode : Modes()) {
    const auto actual = TrainedUnder(mode, false, *world);
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(torch::allclose(actual[i], stack->parameters()[i], 1e-3, 1e-4))
          << mode << ", " << i << ": " << (actual[i] - stack->parameters()[i]).abs().max();
    }
  }
}

}  // namespace
}  // namespace cohort::trainer
