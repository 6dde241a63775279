// Reads and writes while units of FullyShardedDataParallel are gathered: SummonFullParams, and checkpoints and initial
// values after a forward pass without a backward pass.
#include <functional>
#include <memory>

#include "cohort/trainer/state/async_checkpoint.h"
#include "cohort/trainer/state/sharded_init.h"
#include "tests/trainer/tower.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;
using torch::optim::Adam;
using torch::optim::AdamOptions;

std::vector<at::Tensor> Shards(FullyShardedModule& model) {
  std::vector<at::Tensor> copies;
  for (const auto& part : model.sharded_parameters()) copies.push_back(part.tensor.detach().clone());
  return copies;
}

FullyShardedDataParallelOptions InBFloat16() {
  FullyShardedDataParallelOptions options;
  options.mixed_precision.param_dtype = torch::kBFloat16;
  return options;
}

TEST(FsdpSummon, KeepsValuesThatTheComputeTypeCannotHold) {
  auto model = Shard(*world, InBFloat16());
  const auto before = Shards(*model);
  {
    const SummonFullParams whole(*model);
  }
  ExpectSame(Shards(*model), before, /*bits=*/true);
}

// Elements that somebody wrote have the new value, the others every bit of theirs.
TEST(FsdpSummon, WritesBackOnlyChangedValues) {
  auto model = Shard(*world, InBFloat16());
  const auto before = Shards(*model);
  {
    const SummonFullParams whole(*model);
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : model->parameters()) parameter.reshape({-1})[0].fill_(7);
  }
  const auto after = Shards(*model);
  const auto parts = model->sharded_parameters();
  for (size_t i = 0; i < parts.size(); ++i) {
    at::Tensor expected = before[i].clone();
    if (parts[i].begin == 0 && parts[i].end > 0) expected.view({-1})[0].fill_(7);
    EXPECT_TRUE(torch::equal(after[i], expected)) << parts[i].name;
  }
}

// Which would drop what was changed.
TEST(FsdpSummon, RefusesPassesUnderSummonFullParams) {
  auto model = Shard(*world);
  const auto refused = [](const std::function<void()>& pass) {
    try {
      pass();
      ADD_FAILURE() << "accepted";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("under SummonFullParams"));
    }
  };
  const at::Tensor loss = model->forward(InputOf(world->rank())).pow(2).mean();
  {
    const SummonFullParams whole(*model);
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.fill_(2);
      refused([&] { model->forward(InputOf(0)); });
      refused([&] { model->module()->blocks[1](InputOf(0)); });
    }
    refused([&] { loss.backward(); });
  }
  for (const at::Tensor& shard : Shards(*model)) EXPECT_TRUE(torch::equal(shard, torch::full_like(shard, 2)));
  model->forward(InputOf(world->rank())).pow(2).mean().backward();
}

// A unit that is gathered ahead, and left out by an evaluation that takes another path: the optimizer's step after it
// counts, as in a training without evaluation.
TEST(FsdpSummon, GathersAgainUnitsThatAShorterForwardPassHadGatheredAhead) {
  auto model = Shard(*world), reference = Shard(*world);
  Adam optimizer(model->parameters(), AdamOptions(0.02)), plain(reference->parameters(), AdamOptions(0.02));
  Train(*model, optimizer, 1);
  Train(*reference, plain, 1);
  for (const auto& each : {model, reference}) each->forward(InputOf(world->rank(), 1)).pow(2).mean().backward();
  {
    const torch::NoGradGuard no_grad;
    model->module()->blocks.resize(2);
    model->forward(InputOf(0));
  }
  for (const auto& unit : model->root().units()) EXPECT_FALSE(unit->gathering());
  optimizer.step();
  plain.step();
  const auto stepped = Shards(*model);
  {
    const SummonFullParams whole(*model);
  }
  ExpectSame(Shards(*model), stepped, /*bits=*/true);
  ExpectSame(Whole(*model), Whole(*reference), /*bits=*/false);
}

// Units stay gathered after a forward pass that no backward pass follows.
class FsdpGatheredCheckpoints : public Checkpoints {
 protected:
  FsdpGatheredCheckpoints() {
    FullyShardedDataParallelOptions options;
    options.sharding_strategy = ShardingStrategy::kShardGradOp;
    model = Shard(*world, options);
    optimizer = std::make_unique<Adam>(model->parameters(), AdamOptions(0.02));
    Train(*model, *optimizer, 2);
    state = StateOf(*model, *optimizer);
    shards = Shards(*model);
  }
  void Gather() {
    model->forward(InputOf(0));
    for (const auto& unit : model->root().units()) ASSERT_TRUE(unit->unsharded());
  }
  std::shared_ptr<Sharded> model;
  std::unique_ptr<Adam> optimizer;
  TrainingState state;
  std::vector<at::Tensor> shards;
};

TEST_F(FsdpGatheredCheckpoints, CheckpointsAreLoadedIntoShardsThatWereGathered) {
  SaveTrainingState(*world, At("step-2"), state, {});
  Train(*model, *optimizer, 1);
  Gather();
  LoadTrainingState(*world, At("step-2"), state);
  ExpectSame(Shards(*model), shards, /*bits=*/true);
  const torch::NoGradGuard no_grad;
  model->forward(InputOf(0));
  ExpectSame(Shards(*model), shards, /*bits=*/true);
}

TEST_F(FsdpGatheredCheckpoints, CheckpointsAreWrittenFromShardsThatWereGathered) {
  Gather();
  SaveTrainingState(*world, At("step-2"), state, {});
  Gather();
  {
    AsyncCheckpointer checkpointer(*world);
    checkpointer.Save(At("step-3"), state, {});
    checkpointer.Wait();
  }
  for (const char* name : {"step-2", "step-3"}) {
    Train(*model, *optimizer, 1);
    LoadTrainingState(*world, At(name), state);
    ExpectSame(Shards(*model), shards, /*bits=*/true);
  }
}

TEST_F(FsdpGatheredCheckpoints, CheckpointsAreRefusedUnderSummonFullParams) {
  const SummonFullParams whole(*model);
  try {
    SaveTrainingState(*world, At("step-2"), state, {});
    FAIL() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("SummonFullParams"));
  }
}

TEST_F(FsdpGatheredCheckpoints, ATensorOfAnotherLengthThanItsPartIsNamed) {
  const auto alone = First(1);
  if (alone == nullptr) return;
  CheckpointTensor tensor = ReplicatedTensor("a", torch::arange(10, torch::kFloat32), *alone);
  SaveCheckpoint(*alone, At("small"), {tensor}, {});
  tensor.boxes = RowsBox({10}, 5, 10);
  try {
    LoadTensors(At("small"), CheckpointIndex::Read(At("small")), {tensor});
    FAIL() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("a says 5 elements but brings 10"));
  }
}

TEST_F(FsdpGatheredCheckpoints, InitialValuesGoIntoShards) {
  const auto plain = Plain();
  init_parameters(*plain, 11, LikeTorch);
  Gather();
  init_parameters(*model, 11, LikeTorch);
  ExpectSame(Whole(*model), plain->parameters(), /*bits=*/true);
}

}  // namespace
}  // namespace cohort::trainer
