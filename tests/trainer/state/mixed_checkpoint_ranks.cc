// Checkpoints of mixed precision between modes that keep float32 in different places: ZeRO has bfloat16 parameters and
// float32 copies of them in the optimizer (MasterWeights), FSDP float32 shards that it gathers as bfloat16.
#include <memory>
#include <string>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/state/master_weights.h"
#include "cohort/trainer/state/optimizer_state.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;

const AdamWOptions kAdam(0.05);

struct Zero {
  Zero() : net(std::make_shared<Net>(7)) {
    net->to(torch::kBFloat16);
    optimizer = std::make_unique<ZeroRedundancyOptimizer<MasterWeights<AdamW>>>(net->parameters(), *world, kAdam);
    ddp = std::make_unique<ShardedDataParallel<Net>>(net, *optimizer, *world);
    state = StateOf(*net, *optimizer, *world);
  }
  at::Tensor forward(const at::Tensor& x) { return ddp->forward(x.to(torch::kBFloat16)); }
  // Null where another rank owns the parameter.
  const at::Tensor* MasterOf(const at::Tensor& parameter) {
    if (optimizer->OwnerOf(parameter) != world->rank()) return nullptr;
    return &MasterWeightsOf(*optimizer)->MasterOf(parameter);
  }

  std::shared_ptr<Net> net;
  std::unique_ptr<ZeroRedundancyOptimizer<MasterWeights<AdamW>>> optimizer;
  std::unique_ptr<ShardedDataParallel<Net>> ddp;
  TrainingState state;
};

struct Fsdp {
  Fsdp() : net(std::make_shared<Net>(7)) {
    FullyShardedDataParallelOptions options;
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.reduce_dtype = torch::kFloat32;
    fsdp = std::make_shared<FullyShardedDataParallel<Net>>(net, *world, options);
    optimizer = std::make_unique<AdamW>(fsdp->parameters(), kAdam);
    state = StateOf(*fsdp, *optimizer);
  }
  at::Tensor forward(const at::Tensor& x) { return fsdp->forward(x); }

  std::shared_ptr<Net> net;
  std::shared_ptr<FullyShardedDataParallel<Net>> fsdp;
  std::unique_ptr<AdamW> optimizer;
  TrainingState state;
};

template <typename Mode>
void TrainMode(Mode& mode, int from, int to) {
  for (int step = from; step < to; ++step) {
    mode.optimizer->zero_grad();
    mode.forward(InputOf(0, step)).pow(2).mean().backward();
    mode.optimizer->step();
  }
}

class MixedCheckpoints : public Checkpoints {
 protected:
  // All of a float32 tensor of the checkpoint.
  at::Tensor Read(const std::string& name, const std::vector<int64_t>& sizes) const {
    const at::Tensor whole = torch::zeros(sizes);
    LoadTensors(At("saved"), CheckpointIndex::Read(At("saved")), {ReplicatedTensor(name, whole, *world)});
    return whole;
  }
};

TEST_F(MixedCheckpoints, CheckpointsOfMasterWeightsLoadIntoFloat32Shards) {
  Zero saved;
  TrainMode(saved, 0, 3);
  saved.net->count.fill_(42);
  SaveTrainingState(*world, At("saved"), saved.state, {});
  Fsdp loaded;
  LoadTrainingState(*world, At("saved"), loaded.state);
  EXPECT_TRUE(torch::equal(loaded.net->count, torch::full({2}, 42.0)));
  const auto expect_part = [](const ShardedParameter& part, const at::Tensor& actual, const at::Tensor& whole) {
    ASSERT_EQ(actual.scalar_type(), torch::kFloat32);
    EXPECT_TRUE(torch::equal(actual, PartOf(part, whole))) << part.name;
  };
  for (const auto& part : loaded.fsdp->sharded_parameters()) {
    const std::string prefix = "optimizer." + part.name + ".";
    expect_part(part, part.tensor.detach(), Read(prefix + "master_weight", part.sizes));
    const auto state = OptimizerStateOf(*loaded.optimizer, part.tensor);
    expect_part(part, state.at("exp_avg"), Read(prefix + "exp_avg", part.sizes));
    EXPECT_EQ(state.at("step").item<int64_t>(), 3);
    EXPECT_EQ(state.count("master_weight"), 0U);
  }
  TrainMode(saved, 3, 4);
  TrainMode(loaded, 3, 4);
  for (const auto& part : loaded.fsdp->sharded_parameters()) {
    const at::Tensor whole = saved.net->named_parameters()[part.name].detach().to(torch::kFloat32);
    EXPECT_TRUE(torch::allclose(part.tensor, PartOf(part, whole), 0.05, 0.02)) << part.name;
  }
}

// After three steps, and before the first, when there is no state but the copies.
TEST_F(MixedCheckpoints, CheckpointsOfFloat32ShardsLoadIntoMasterWeights) {
  for (const int steps : {3, 0}) {
    SCOPED_TRACE(steps);
    Fsdp saved;
    TrainMode(saved, 0, steps);
    saved.net->count.fill_(42);
    SaveTrainingState(*world, At("saved"), saved.state, {});
    Zero loaded;
    LoadTrainingState(*world, At("saved"), loaded.state);
    EXPECT_TRUE(torch::equal(loaded.net->count, torch::full({2}, 42.0, torch::kBFloat16)));
    for (const auto& item : loaded.net->named_parameters()) {
      const at::Tensor whole = Read("model." + item.key(), item.value().sizes().vec());
      EXPECT_TRUE(torch::equal(item.value().detach(), whole.to(torch::kBFloat16))) << item.key();
      const at::Tensor* master = loaded.MasterOf(item.value());
      if (master == nullptr) continue;
      EXPECT_TRUE(torch::equal(master->detach(), whole)) << item.key();
      const auto state = OptimizerStateOf(loaded.optimizer->local_optimizer(), item.value());
      if (steps == 0) {
        EXPECT_EQ(state.size(), 1U) << item.key();
        continue;
      }
      EXPECT_TRUE(torch::equal(state.at("exp_avg"), Read("optimizer." + item.key() + ".exp_avg", whole.sizes().vec())))
          << item.key();
    }
    TrainMode(saved, steps, steps + 1);
    TrainMode(loaded, steps, steps + 1);
    for (const auto& part : saved.fsdp->sharded_parameters()) {
      const at::Tensor whole = loaded.net->named_parameters()[part.name].detach().to(torch::kFloat32);
      EXPECT_TRUE(torch::allclose(part.tensor, PartOf(part, whole), 0.05, 0.02)) << part.name;
    }
    ASSERT_TRUE(world->Barrier().Wait().ok());  // before the next checkpoint replaces this one
  }
}

// Neither the checkpoint nor the optimizer keeps the values that bfloat16 cannot hold.
TEST_F(MixedCheckpoints, CheckpointsAreRefusedWhereFloat32WouldBeLost) {
  Fsdp saved;
  SaveTrainingState(*world, At("saved"), saved.state, {});
  auto net = std::make_shared<Net>(7);
  net->to(torch::kBFloat16);
  AdamW optimizer(net->parameters(), kAdam);
  const TrainingState state = StateOf(*net, optimizer, *world);
  try {
    LoadTrainingState(*world, At("saved"), state);
    FAIL() << "accepted";
  } catch (const DistributedError& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("has type Float there and BFloat16 here"));
  }
  SaveTrainingState(*world, At("small"), state, {});
  EXPECT_THROW(LoadTrainingState(*world, At("small"), saved.state), DistributedError);
}

}  // namespace
}  // namespace cohort::trainer
