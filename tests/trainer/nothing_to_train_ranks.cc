// Modules, units and stages without a parameter that requires a gradient: they run like others, and send no gradients.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/parallel/fsdp/fully_sharded_data_parallel.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/parallel/pipeline/schedule/registry.h"
#include "cohort/trainer/state/grad_norm.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer::nothing_to_train {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr int64_t kWidth = 4;

enum class Kind { kTrained, kFrozen, kWithoutParameters };

struct Block : torch::nn::Module {
  Block(Kind kind, const std::string& name) {
    if (kind != Kind::kWithoutParameters) linear = register_module(name, torch::nn::Linear(kWidth, kWidth));
    if (kind == Kind::kFrozen) linear->weight.requires_grad_(false);
    if (kind == Kind::kFrozen) linear->bias.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(linear.is_empty() ? x * 2 : linear(x)); }
  torch::nn::Linear linear{nullptr};
};

std::shared_ptr<Block> Made(Kind kind, int seed) {
  torch::manual_seed(seed);
  return std::make_shared<Block>(kind, "linear" + std::to_string(seed));  // stages have different names
}

constexpr Kind kUntrained[] = {Kind::kFrozen, Kind::kWithoutParameters};

// The gradient of the input comes through.
template <typename Model>
void ExpectPassesThrough(Model& model, Kind kind) {
  const auto alone = Made(kind, 50);
  for (int step = 0; step < 3; ++step) {
    at::Tensor x = InputOf(world->rank(), step).requires_grad_(), same = x.detach().clone().requires_grad_();
    model.forward(x).pow(2).mean().backward();
    alone->forward(same).pow(2).mean().backward();
    EXPECT_TRUE(torch::allclose(x.grad(), same.grad()));
    model.forward(x.detach());  // no backward pass follows
  }
}

TEST(NothingToTrain, ADdpModuleWithNothingToTrainRunsAndSendsNothing) {
  for (const Kind kind : kUntrained) {
    for (const int option : {0, 1, 2, 3}) {
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = option == 1;
      options.find_unused_parameters = option == 2;
      options.static_graph = option == 3;
      auto module = Made(kind, 50);
      DistributedDataParallel<Block> ddp(module, *world, options);
      const CommunicationLedger ledger;
      ExpectPassesThrough(ddp, kind);
      {
        const auto guard = ddp.no_sync();
        ExpectPassesThrough(ddp, kind);
      }
      EXPECT_EQ(ledger.total().calls, 0) << ledger.Table();
    }
    auto module = Made(kind, 50);
    ZeroRedundancyOptimizer<SGD> optimizer(module->parameters(), *world, SGDOptions(0.1));
    ShardedDataParallel<Block> sharded(module, optimizer, *world);
    ExpectPassesThrough(sharded, kind);
    optimizer.step();
    EXPECT_EQ(optimizer.clip_grad_norm_(1.0).item<double>(), 0);
  }
}

TEST(NothingToTrain, ARankThatHasFrozenAllParametersIsNamed) {
  if (world->size() == 1) GTEST_SKIP() << "needs another rank";
  const std::string why = ErrorOf([&] {
    const DistributedDataParallel<Block> ddp(Made(world->rank() == 0 ? Kind::kFrozen : Kind::kTrained, 50), *world);
  });
  EXPECT_THAT(why, testing::HasSubstr("(frozen)"));
}

TEST(NothingToTrain, AnFsdpUnitWithNothingToTrainRuns) {
  for (const Kind kind : kUntrained) {
    FullyShardedDataParallel<Block> whole(Made(kind, 50), *world);
    ExpectPassesThrough(whole, kind);
    EXPECT_EQ(whole.clip_grad_norm_(1.0).item<double>(), 0);
    SGD none(whole.parameters(), SGDOptions(0.1));
    none.step();
    // Beside one that is trained.
    struct Two : torch::nn::Module {
      Two(std::shared_ptr<FullyShardedDataParallel<Block>> a, std::shared_ptr<FullyShardedDataParallel<Block>> b)
          : first(register_module("first", std::move(a))), second(register_module("second", std::move(b))) {}
      at::Tensor forward(const at::Tensor& x) { return second->forward(first->forward(x)); }
      std::shared_ptr<FullyShardedDataParallel<Block>> first, second;
    };
    for (const bool trained_first : {false, true}) {
      const auto make = [&](Kind each, int seed) {
        return std::make_shared<FullyShardedDataParallel<Block>>(Made(each, seed), *world);
      };
      const Kind first = trained_first ? Kind::kTrained : kind, second = trained_first ? kind : Kind::kTrained;
      FullyShardedDataParallel<Two> model(std::make_shared<Two>(make(first, 50), make(second, 51)), *world);
      const auto a = Made(first, 50), b = Made(second, 51);
      SGD optimizer(model.parameters(), SGDOptions(0.1));
      auto own = a->parameters();
      for (const at::Tensor& parameter : b->parameters()) own.push_back(parameter);
      SGD alone(own, SGDOptions(0.1));
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        model.forward(InputOf(world->rank(), step)).pow(2).mean().backward();
        optimizer.step();
        alone.zero_grad();
        for (int rank = 0; rank < world->size(); ++rank) {
          (b->forward(a->forward(InputOf(rank, step))).pow(2).mean() / world->size()).backward();
        }
        alone.step();
      }
      const SummonFullParams summoned(model, /*writeback=*/false);
      const auto found = model.parameters();
      ASSERT_EQ(found.size(), own.size());
      for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(torch::allclose(found[i], own[i], 1e-4, 1e-6));
    }
  }
}

constexpr double kMaxNorm = 0.05;

enum class Wrap { kNone, kDdp, kZero1, kZero2, kFsdp };

// A stage under a wrapper, its optimizer and its state.
struct Stage {
  Stage(int index, Kind kind, Wrap wrap, comm::Communicator& data) : block(Made(kind, 60 + index)) {
    const SGDOptions sgd = SGDOptions(0.1).momentum(0.9);
    if (wrap == Wrap::kFsdp) {
      fsdp = std::make_shared<FullyShardedDataParallel<Block>>(block, data);
      pipeline.emplace_back(index, fsdp);
    } else if (wrap == Wrap::kZero1 || wrap == Wrap::kZero2) {
      auto zero = std::make_unique<ZeroRedundancyOptimizer<SGD>>(block->parameters(), data, sgd);
      if (wrap == Wrap::kZero1) {
        pipeline.emplace_back(index, std::make_shared<DistributedDataParallel<Block>>(block, data));
      } else {
        pipeline.emplace_back(index, std::make_shared<ShardedDataParallel<Block>>(block, *zero, data));
      }
      partitioned = zero.get();
      optimizer = std::move(zero);
    } else if (wrap == Wrap::kDdp) {
      pipeline.emplace_back(index, std::make_shared<DistributedDataParallel<Block>>(block, data));
    } else {
      pipeline.emplace_back(index, block);
    }
    if (optimizer == nullptr) optimizer = std::make_unique<SGD>(parameters(), sgd);
  }
  std::vector<at::Tensor> parameters() const { return fsdp != nullptr ? fsdp->parameters() : block->parameters(); }
  TrainingState StateOn(const DeviceMesh& mesh) const {
    if (fsdp != nullptr) return StateOf(*fsdp, *optimizer, mesh);
    return partitioned != nullptr ? StateOf(*block, *partitioned, mesh) : StateOf(*block, *optimizer, mesh);
  }
  std::shared_ptr<Block> block;
  std::shared_ptr<FullyShardedDataParallel<Block>> fsdp;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  PartitionedOptimizer* partitioned = nullptr;
  std::vector<PipelineStage> pipeline;
};

class NothingToTrainInAStage : public Checkpoints {};

at::Tensor Loss(const at::Tensor& output, const at::Tensor& target) { return (output - target).pow(2).mean(); }

// One process that steps a model of the stages.
struct Alone {
  Alone(int stages, int untrained, Kind kind) {
    for (int i = 0; i < stages; ++i) {
      blocks.push_back(Made(i == untrained ? kind : Kind::kTrained, 60 + i));
      for (const at::Tensor& parameter : blocks.back()->parameters()) parameters.push_back(parameter);
    }
    optimizer = std::make_unique<SGD>(parameters, SGDOptions(0.1).momentum(0.9));
  }
  double Step(const at::Tensor& inputs, const at::Tensor& targets) {
    optimizer->zero_grad();
    at::Tensor x = inputs;
    for (const auto& block : blocks) x = block->forward(x);
    const at::Tensor loss = Loss(x, targets);
    if (loss.requires_grad()) loss.backward();
    const double norm = torch::nn::utils::clip_grad_norm_(parameters, kMaxNorm);
    optimizer->step();
    return norm;
  }
  std::vector<std::shared_ptr<Block>> blocks;
  std::vector<at::Tensor> parameters;
  std::unique_ptr<SGD> optimizer;
};

void TrainStages(Wrap wrap, Kind kind, int untrained, const char* name, const std::string& folder) {
  const int data = wrap != Wrap::kNone && world->size() % 2 == 0 ? 2 : 1, stages = world->size() / data;
  const std::string axis = wrap == Wrap::kFsdp ? "shard" : "replicate";
  auto mesh = DeviceMesh::Create(*world, {stages, data}, {"pipeline", axis});
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  comm::Communicator& pipeline_group = **(*mesh)->get_group("pipeline");
  const int index = pipeline_group.rank();
  const Schedule schedule = *BuildSchedule(name, {stages, stages, 2});
  Stage stage(index, index == untrained ? kind : Kind::kTrained, wrap, **(*mesh)->get_group(axis));
  Alone alone(stages, untrained, kind);
  Pipeline pipeline(stage.pipeline, schedule, pipeline_group, {.loss = Loss});
  const TrainingState state = stage.StateOn(**mesh);
  for (int step = 0; step < 3; ++step) {
    // The replicas' gradients are equal, as are those of one process.
    const at::Tensor inputs = InputOf(0, step), targets = InputOf(1, step);
    stage.optimizer->zero_grad();
    pipeline.step(inputs, targets);
    const double expected = alone.Step(inputs, targets);
    const double norm = clip_grad_norm_(stage.parameters(), kMaxNorm, 2.0, mesh->get()).item<double>();
    EXPECT_NEAR(norm, expected, 1e-4 * norm + 1e-7);
    stage.optimizer->step();
    if (step == 1) SaveTrainingState(*world, folder, state, {});
  }
  const auto expect_equal = [&] {
    const auto expected = alone.blocks[static_cast<size_t>(index)]->parameters();
    std::unique_ptr<SummonFullParams> whole;
    if (stage.fsdp != nullptr) whole = std::make_unique<SummonFullParams>(*stage.fsdp, /*writeback=*/false);
    const auto found = stage.parameters();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-4, 1e-6)) << i;
  };
  expect_equal();
  LoadTrainingState(*world, folder, state);
  stage.optimizer->zero_grad();
  pipeline.step(InputOf(0, 2), InputOf(1, 2));
  clip_grad_norm_(stage.parameters(), kMaxNorm, 2.0, mesh->get());
  stage.optimizer->step();
  expect_equal();
}

TEST_F(NothingToTrainInAStage, StagesBesideOneWithNothingToTrainAreTrained) {
  int number = 0;
  for (const Wrap wrap : {Wrap::kNone, Wrap::kDdp, Wrap::kZero1, Wrap::kZero2, Wrap::kFsdp}) {
    for (const Kind kind : kUntrained) {
      const int last = (wrap != Wrap::kNone && world->size() % 2 == 0 ? world->size() / 2 : world->size()) - 1;
      for (const int untrained : {0, last}) {
        for (const char* const name : {"1f1b", "zb_h1"}) {
          SCOPED_TRACE(c10::str("wrap ", static_cast<int>(wrap), ", kind ", static_cast<int>(kind), ", stage ",
                                untrained, ", ", name));
          TrainStages(wrap, kind, untrained, name, At(std::to_string(number++)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace cohort::trainer::nothing_to_train
