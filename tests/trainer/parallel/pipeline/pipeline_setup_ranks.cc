// Ranks that were set up otherwise than the others: all are told at once, and which one it is.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/autograd/random_place.h"
#include "cohort/trainer/parallel/pipeline/layer_cut.h"
#include "tests/trainer/parallel/pipeline/pipeline_model.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PipelineSetup : public testing::Test {
 protected:
  void SetUp() override {
    if (world->size() < 2) GTEST_SKIP() << "needs another rank";
    own_ = *world->Duplicate();
    schedule_ = *BuildSchedule("1f1b", {world->size(), world->size(), 4});
  }
  // The error of `call`, which comes soon.
  static std::string SoonThrown(const std::function<void()>& call) {
    const auto begin = std::chrono::steady_clock::now();
    std::string why = WhyThrown(call);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon) << why;
    return why;
  }
  bool is_last() const { return world->rank() == world->size() - 1; }

  std::unique_ptr<comm::Communicator> own_;
  Schedule schedule_;
  torch::nn::Sequential model_ = Model();
  const Batch batch_ = BatchOf(8, 5);
  const std::string last_ = "rank " + std::to_string(world->size() - 1);
};

TEST_F(PipelineSetup, AnotherSeedOrStepIsRefusedBeforeTheFirstStep) {
  for (const bool of_seed : {true, false}) {
    own_ = *world->Duplicate();
    Pipeline pipeline(StagesFor(schedule_, model_, world->rank()), schedule_, *own_, {.loss = Loss});
    RandomPlace place = {.seed = 7, .step = 2};
    if (is_last() && of_seed) ++place.seed;
    if (is_last() && !of_seed) ++place.step;
    const RandomPlaceGuard guard(place);
    EXPECT_THAT(SoonThrown([&] { pipeline.step(batch_.inputs, batch_.targets); }),
                AllOf(HasSubstr(last_), of_seed ? HasSubstr("seed of random_place() \"8\" there, \"7\" on rank 0")
                                                : HasSubstr("step of random_place() \"3\" there, \"2\" on rank 0")));
    EXPECT_THAT(SoonThrown([&] { pipeline.step(batch_.inputs, batch_.targets); }),
                HasSubstr("an earlier step has failed"));
  }
}

TEST_F(PipelineSetup, OtherOptionsAreRefused) {
  EXPECT_THAT(SoonThrown([&] {
                Pipeline pipeline(StagesFor(schedule_, model_, world->rank()), schedule_, *own_,
                                  {.loss = Loss, .one_batch_per_turn = is_last()});
              }),
              AllOf(HasSubstr(last_), HasSubstr("one_batch_per_turn")));
}

// A rank whose measured times differ would leave a layer out that no other has.
TEST_F(PipelineSetup, AnotherCutIsRefused) {
  const std::vector<NamedLayer> layers = LayersOf(model_);
  LayerCut cut = CutByNumber(layers, schedule_.stages);
  if (is_last()) ++cut[cut.size() - 2];
  EXPECT_THAT(SoonThrown([&] {
                std::vector<PipelineStage> stages;
                stages.emplace_back(world->rank(), TakeLayers(layers, cut, world->rank()));
                Pipeline pipeline(stages, schedule_, *own_, {.loss = Loss});
              }),
              AllOf(HasSubstr(last_ + " has cut the layers otherwise than rank 0"), HasSubstr("stage 1:")));
}

// Two pipelines of the same layers that ranks make in another order.
TEST_F(PipelineSetup, PipelinesMadeInAnotherOrderAreRefused) {
  const std::vector<NamedLayer> layers = LayersOf(model_);
  const LayerCut even = CutByNumber(layers, schedule_.stages);
  LayerCut uneven = even;
  ++uneven[1];
  EXPECT_THAT(
      SoonThrown([&] {
        std::vector<std::unique_ptr<Pipeline>> pipelines;
        for (const bool first : {true, false}) {
          std::vector<PipelineStage> stages;
          const LayerCut& cut = first == is_last() ? even : uneven;
          stages.emplace_back(world->rank(), TakeLayers(layers, cut, world->rank()));
          pipelines.push_back(std::make_unique<Pipeline>(stages, schedule_, *own_, PipelineOptions{.loss = Loss}));
        }
      }),
      HasSubstr(last_ + " has cut the layers otherwise than rank 0"));
}

TEST_F(PipelineSetup, PipelinesRunInAnotherOrderAreRefused) {
  Pipeline one(StagesFor(schedule_, model_, world->rank()), schedule_, *own_, {.loss = Loss});
  Pipeline other(StagesFor(schedule_, model_, world->rank()), schedule_, *own_, {.loss = Loss});
  EXPECT_THAT(SoonThrown([&] { (is_last() ? other : one).step(batch_.inputs, batch_.targets); }),
              AllOf(HasSubstr(last_), HasSubstr("make and run pipelines in one order")));
}

// In one order both have one process's gradients.
TEST_F(PipelineSetup, TwoPipelinesOfTheSameLayersTakeTurns) {
  Pipeline one(StagesFor(schedule_, model_, world->rank()), schedule_, *own_, {.loss = Loss});
  Pipeline other(StagesFor(schedule_, model_, world->rank()), schedule_, *own_, {.loss = Loss});
  torch::nn::Sequential reference = Model();
  for (Pipeline* each : {&one, &other, &one}) {
    each->step(batch_.inputs, batch_.targets);
    Alone(reference, batch_, 4);
  }
  const auto expected = reference->named_parameters();
  for (const PipelineStage& stage : one.stages()) {
    for (const auto& item : stage.module->named_parameters()) {
      EXPECT_TRUE(torch::equal(item.value().grad(), expected[item.key()].grad())) << item.key();
    }
  }
}

}  // namespace
}  // namespace cohort::trainer
