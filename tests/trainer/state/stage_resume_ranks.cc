// Stages of a pipeline are saved together, one model on each half of the ranks, and load each other's checkpoints. An
// optimizer of another model is refused.
#include <memory>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/state/optimizer_state.h"
#include "cohort/trainer/state/training_state.h"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;

class StageResume : public Checkpoints {};

// The first layer on even ranks, the second on odd ones, or both.
struct Stage : torch::nn::Module {
  Stage(bool up_here, bool down_here) {
    torch::manual_seed(3);
    if (up_here) register_module("up", torch::nn::Linear(4, 6));
    if (down_here) register_module("down", torch::nn::Linear(6, 4));
  }
};

struct TrainedStage {
  TrainedStage(bool up_here, bool down_here, const comm::Communicator& group)
      : stage(std::make_shared<Stage>(up_here, down_here)), optimizer(stage->parameters(), 0.1) {
    state = StateOf(*stage, optimizer, group);
  }
  void Train(int steps) {
    for (int step = 0; step < steps; ++step) {
      for (const auto& item : stage->named_parameters()) {
        item.value().mutable_grad() = at::full_like(item.value(), 0.1 * static_cast<double>(item.key().size() + step));
      }
      optimizer.step();
    }
  }
  std::shared_ptr<Stage> stage;
  torch::optim::Adam optimizer;
  TrainingState state;
};

TEST_F(StageResume, KeepsEveryStagesSteps) {
  const int stages = std::min(2, world->size()), own = world->rank() % stages;
  auto group = world->Split(own, world->rank());
  ASSERT_TRUE(group.ok());
  const bool up = own == 0, down = own == stages - 1;
  TrainedStage saved(up, down, **group);
  saved.Train(3);
  SaveTrainingState(*world, At("stages"), saved.state, {{"step", "3"}});
  const CheckpointIndex index = CheckpointIndex::Read(At("stages"));
  for (const char* name : {"up.weight", "up.bias", "down.weight", "down.bias"}) {
    EXPECT_TRUE(index.tensors().contains("optimizer." + std::string(name) + ".step")) << name;
  }
  TrainedStage loaded(up, down, **group), whole(true, true, *world), other(!up || down, !down || up, **group);
  for (TrainedStage* each : {&loaded, &whole, &other}) {
    EXPECT_EQ(LoadTrainingState(*world, At("stages"), each->state).at("step"), "3");
    for (const auto& item : each->stage->named_parameters()) {
      EXPECT_EQ(OptimizerStateOf(each->optimizer, item.value()).at("step").item<int64_t>(), 3) << item.key();
    }
  }
  for (const auto& item : saved.stage->named_parameters()) {
    EXPECT_TRUE(torch::equal(whole.stage->named_parameters()[item.key()], item.value())) << item.key();
  }
  SaveTrainingState(*world, At("whole"), whole.state, {});
  TrainedStage again(up, down, **group);
  LoadTrainingState(*world, At("whole"), again.state);
  for (const auto& item : saved.stage->named_parameters()) {
    EXPECT_TRUE(torch::equal(again.stage->named_parameters()[item.key()], item.value())) << item.key();
  }
}

// Its checkpoint says nothing of the optimizer but the groups of rank 0, which has one stage.
TEST_F(StageResume, KeepsStagesOfAnOptimizerWithoutState) {
  const int stages = std::min(2, world->size()), own = world->rank() % stages;
  auto group = world->Split(own, world->rank());
  ASSERT_TRUE(group.ok());
  const Stage part(own == 0, own == stages - 1);
  torch::optim::SGD of_part(part.parameters(), 0.3);
  SaveTrainingState(*world, At("stages"), StateOf(part, of_part, **group), {});
  Stage whole(true, true);
  torch::optim::SGD of_whole(whole.parameters(), 0.1);
  for (at::Tensor& parameter : whole.parameters()) parameter.detach().zero_();
  LoadTrainingState(*world, At("stages"), StateOf(whole, of_whole, *world));
  EXPECT_EQ(static_cast<torch::optim::SGDOptions&>(of_whole.param_groups().front().options()).lr(), 0.3);
  for (const auto& item : part.named_parameters()) {
    EXPECT_TRUE(torch::equal(whole.named_parameters()[item.key()], item.value())) << item.key();
  }
  // Groups of as many parameters, otherwise shared out, are still another optimizer's.
  const auto all = whole.parameters();
  using Parameters = std::vector<at::Tensor>;
  torch::optim::SGD three_one(Parameters{all[0], all[1], all[2]}, 0.1), one_three(Parameters{all[0]}, 0.1);
  three_one.add_param_group(torch::optim::OptimizerParamGroup(Parameters{all[3]}));
  one_three.add_param_group(torch::optim::OptimizerParamGroup(Parameters{all[1], all[2], all[3]}));
  SaveTrainingState(*world, At("groups"), StateOf(whole, three_one, *world), {});
  EXPECT_THROW(LoadTrainingState(*world, At("groups"), StateOf(whole, one_three, *world)), c10::Error);
}

TEST_F(StageResume, ACheckpointWithTensorsThatNoStageTakesIsRefused) {
  TrainedStage saved(true, true, *world), part(true, false, *world);
  saved.Train(1);
  SaveTrainingState(*world, At("whole"), saved.state, {});
  try {
    LoadTrainingState(*world, At("whole"), part.state);
    ADD_FAILURE() << "nobody has taken the second layer";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("it has down."));
  }
}

TEST_F(StageResume, RefusesAnotherModelsOptimizer) {
  const auto own = std::make_shared<Stage>(true, true), other = std::make_shared<Stage>(true, true);
  torch::optim::Adam optimizer(other->parameters(), 0.1), some({own->parameters().front()}, 0.1);
  try {
    StateOf(*own, optimizer, *world);
    ADD_FAILURE() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("that the module has not"));
  }
  EXPECT_EQ(StateOf(*own, some, *world).parameters.size(), 4u) << "the others are frozen";
  const auto sharded = std::make_shared<FullyShardedDataParallel<Net>>(std::make_shared<Net>(), *world);
  EXPECT_THROW(StateOf(*sharded, optimizer), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
