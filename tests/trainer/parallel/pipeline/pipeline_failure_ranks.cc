// An exception on one rank ends the step of every rank of the mesh at once, wherever it waits, and with its text.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/mesh/device_mesh.h"
#include "cohort/trainer/parallel/tensor/row_parallel_linear.h"
#include "cohort/trainer/state/grad_norm.h"
#include "tests/trainer/parallel/pipeline/pipeline_model.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTooMuch = "the last micro-batch is too much";

// Throws in the backward pass of the fourth micro-batch: by then later stages have done their part of the step.
std::vector<PipelineStage> FailingInBackward(std::vector<PipelineStage> stages) {
  stages.front().forward = [calls = std::make_shared<int>(0), before = stages.front().forward](const at::Tensor& x) {
    const at::Tensor y = before(x);
    y.register_hook([calls](const at::Tensor&) { TORCH_CHECK(++*calls < 4, kTooMuch); });
    return y;
  };
  return stages;
}

class FailingRank : public testing::Test {
 protected:
  void SetUp() override {
    if (world->size() < 2) GTEST_SKIP() << "needs another rank";
    own_ = *world->Duplicate();
  }
  // All ranks begin together, so that no time of making a pipeline counts.
  std::string WhySoon(const std::function<void()>& step) {
    EXPECT_TRUE(world->Barrier().Wait().ok());
    const auto begin = std::chrono::steady_clock::now();
    std::string why = WhyThrown(step);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon) << why;
    return why;
  }

  std::unique_ptr<comm::Communicator> own_;
  const Batch batch_ = BatchOf(8, 5);
};

TEST_F(FailingRank, AFailureReachesTheRanksOfASharedWeight) {
  if (world->size() < 3) GTEST_SKIP() << "the rank between the two that share fails";
  const Schedule schedule = *BuildSchedule("1f1b", {world->size(), world->size(), 4});
  torch::nn::Sequential model = Model();
  std::vector<PipelineStage> stages = StagesFor(schedule, model, world->rank());
  if (world->rank() == 1) stages = FailingInBackward(std::move(stages));
  PipelineOptions options{.loss = Loss};
  options.shared_weights = {{0, "0.up.weight", world->size() - 1, "14.up.weight"}};
  Pipeline pipeline(std::move(stages), schedule, *own_, options);
  EXPECT_THAT(WhySoon([&] {
                pipeline.step(batch_.inputs, batch_.targets);  // which ranks without the weight may end
                clip_grad_norm_(pipeline.stages().front().module->parameters(), 1.0);
              }),
              HasSubstr(kTooMuch));
}

// The last stage's step ends before the first one's.
TEST_F(FailingRank, AFailureReachesARankThatIsAheadAndWaitsForANorm) {
  const Schedule schedule = *BuildSchedule("1f1b", {world->size(), world->size(), 4});
  torch::nn::Sequential model = Model();
  std::vector<PipelineStage> stages = StagesFor(schedule, model, world->rank());
  if (world->rank() == 0) stages = FailingInBackward(std::move(stages));
  Pipeline pipeline(std::move(stages), schedule, *own_, {.loss = Loss});
  EXPECT_THAT(WhySoon([&] {
                pipeline.step(batch_.inputs, batch_.targets);
                clip_grad_norm_(pipeline.stages().front().module->parameters(), 1.0);
              }),
              HasSubstr(kTooMuch));
}

// Ranks of other stages are told by those that wait in the layers.
TEST_F(FailingRank, AFailureReachesTheRanksThatLayersAreCutOver) {
  const int columns = world->size() % 2 == 0 ? 2 : world->size(), rows = world->size() / columns;
  const auto mesh = DeviceMesh::Create(*own_, {rows, columns}, {"pipeline", "tensor"});
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  comm::Communicator& pipeline_group = **(*mesh)->get_group("pipeline");
  const TensorAxis axis(*(*mesh)->axis("tensor"));
  torch::nn::Sequential model;
  for (int i = 0; i < 4; ++i) {
    model->push_back(RowParallelLinear(RowParallelLinearOptions(kWidth, kWidth).input_is_parallel(false), axis));
  }
  const Schedule schedule = *BuildSchedule("1f1b", {rows, rows, 4});
  std::vector<PipelineStage> stages = StagesFor(schedule, model, pipeline_group.rank());
  if (world->rank() == 0) {
    stages.front().forward = [calls = 0, before = stages.front().forward](const at::Tensor& x) mutable {
      TORCH_CHECK(++calls < 3, kTooMuch);
      return before(x);
    };
  }
  Pipeline pipeline(std::move(stages), schedule, pipeline_group, {.loss = Loss});
  EXPECT_THAT(WhySoon([&] { pipeline.step(batch_.inputs, batch_.targets); }), HasSubstr(kTooMuch));
  EXPECT_TRUE(world->Barrier().Wait().ok()) << "the job's own group goes on";
}

}  // namespace
}  // namespace cohort::trainer
