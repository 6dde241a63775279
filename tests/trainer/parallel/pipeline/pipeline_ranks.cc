// A pipeline on real ranks, compared bit by bit with one process that accumulates the same micro-batches.
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cohort/trainer/autograd/autocast.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/pipeline/pipeline.h"
#include "cohort/trainer/parallel/pipeline/schedule/text.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/transfer/communication_ledger.h"
#include "tests/trainer/parallel/pipeline/pipeline_model.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

// How many gradients have the reference's bits; reports those that have not.
int CountEqualGradients(const Pipeline& pipeline, const torch::nn::Sequential& reference, const std::string& what) {
  std::map<std::string, at::Tensor> expected;
  for (const auto& item : reference->named_parameters()) expected[item.key()] = item.value().grad();
  int equal = 0;
  for (const PipelineStage& stage : pipeline.stages()) {
    for (const auto& item : stage.module->named_parameters()) {
      const bool same = item.value().grad().defined() && torch::equal(item.value().grad(), expected.at(item.key()));
      EXPECT_TRUE(same) << what << ", rank " << world->rank() << ", " << item.key();
      equal += same ? 1 : 0;
    }
  }
  return equal;
}

void ExpectBitsOfOneProcess(const Schedule& schedule, const std::string& what, const PipelineOptions& options) {
  const int devices = options.devices.empty() ? 1 : static_cast<int>(options.devices.size());
  torch::nn::Sequential model = Model(), reference = Model();
  Pipeline pipeline(StagesFor(schedule, model, world->rank(), devices), schedule, *world, options);
  const int m = schedule.micro_batches;
  // Another step has batches of another size, and adds to the gradients of the first. A micro-batch without a valid
  // target counts nothing.
  for (const auto& [rows, ignored] : {std::pair<int64_t, int64_t>{2 * m, m > 1 ? 3 : 1}, {3 * m, 0}}) {
    const Batch batch = BatchOf(rows, m, ignored);
    const RandomPlaceGuard guard({.seed = 5, .step = rows});
    const bool first = !StagesOf(schedule, world->rank(), devices).empty() && pipeline.stages().front().index == 0;
    const bool last = pipeline.stages().back().index == schedule.stages - 1;
    const StepResult result = pipeline.step(first ? batch.inputs : at::Tensor(), last ? batch.targets : at::Tensor());
    const at::Tensor loss = Alone(reference, batch, m);
    EXPECT_EQ(result.loss.defined(), last);
    if (last) {
      EXPECT_TRUE(torch::equal(result.loss, loss)) << what;
    }
  }
  EXPECT_GT(CountEqualGradients(pipeline, reference, what), 0);
}

TEST(Pipeline, EveryScheduleHasTheBitsOfOneProcess) {
  for (const ScheduleInfo& info : Schedules()) {
    const int most = std::min(info.traits.most_stages_per_rank, info.traits.least_stages_per_rank + 1);
    for (int laps = info.traits.least_stages_per_rank; laps <= most; ++laps) {
      for (const int micro_batches : {1, 4, 5}) {
        for (const bool one_batch : {false, true}) {
          const auto schedule = BuildSchedule(info.name, {world->size(), world->size() * laps, micro_batches});
          ASSERT_TRUE(schedule.ok()) << schedule.status();
          ExpectBitsOfOneProcess(*schedule, std::string(info.name) + " " + std::to_string(micro_batches),
                                 {.loss = Loss, .one_batch_per_turn = one_batch});
        }
      }
    }
  }
}

TEST(Pipeline, PlacesOfARankWorkWithTheBitsOfOneProcess) {
  const std::vector<LocalDevice> devices = {{0, at::kCPU}, {1, at::kCPU}};
  const int places = world->size() * 2;
  for (const char* const name : {"1f1b", "zb_h1", "interleaved"}) {
    const int laps = std::string(name) == "interleaved" ? 2 : 1;
    if (places * laps > kLayers) continue;
    const auto schedule = BuildSchedule(name, {places, places * laps, 4});
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    ExpectBitsOfOneProcess(*schedule, std::string(name) + " on devices", {.loss = Loss, .devices = devices});
  }
}

// Passes of a thread of their own are the caller's: mixed precision, inference mode, no gradients.
TEST(Pipeline, PlacesOfARankHaveTheCallersThreadState) {
  const int places = world->size() * 2;
  const Schedule schedule = *BuildSchedule("1f1b", {places, places, 4});
  torch::nn::Sequential model = Model();
  std::vector<PipelineStage> stages = StagesFor(schedule, model, world->rank(), 2);
  std::mutex mutex;
  std::vector<AutocastState> seen;
  int inference = 0;
  for (PipelineStage& stage : stages) {
    stage.forward = [&, before = stage.forward](const at::Tensor& x) {
      {
        const std::lock_guard lock(mutex);
        seen.push_back(CurrentAutocast());
        inference += c10::InferenceMode::is_enabled() ? 1 : 0;
      }
      return before(x).to(at::kFloat);
    };
  }
  Pipeline pipeline(std::move(stages), schedule, *world, {.loss = Loss, .devices = {{0, at::kCPU}, {1, at::kCPU}}});
  const Batch batch = BatchOf(8, 5);
  {
    const Autocast on_cpu(at::kCPU), on_cuda(at::kCUDA, at::kBFloat16, /*enabled=*/true, /*cache_enabled=*/false);
    pipeline.step(batch.inputs, batch.targets);
  }
  ASSERT_EQ(seen.size(), 2u * 4u);
  for (const AutocastState& state : seen) {
    EXPECT_TRUE(state.devices[0].enabled && state.devices[1].enabled);
    EXPECT_EQ(state.devices[0].dtype, at::kBFloat16);
    EXPECT_EQ(state.devices[1].dtype, at::kBFloat16);
    EXPECT_FALSE(state.cache);
  }
  EXPECT_EQ(inference, 0);
  seen.clear();
  {
    const c10::InferenceMode mode;
    pipeline.eval(batch.inputs);
  }
  EXPECT_EQ(inference, 2 * 4);
  for (const AutocastState& state : seen) EXPECT_FALSE(state.devices[0].enabled || state.devices[1].enabled);
}

TEST(Pipeline, AUsersOwnScheduleRuns) {
  if (world->size() != 2) GTEST_SKIP() << "the text is for 2 ranks";
  const auto schedule = ParseSchedule("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1B0,1F2,1B1,1B2\n");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  ExpectBitsOfOneProcess(*schedule, "text", {.loss = Loss});
}

TEST(Pipeline, EvaluationHasOutputsAndNoGradients) {
  for (const char* const name : {"1f1b", "zbv"}) {
    const int stages = world->size() * FindSchedule(name)->traits.least_stages_per_rank;
    const Schedule schedule = *BuildSchedule(name, {world->size(), stages, 4});
    torch::nn::Sequential model = Model(), reference = Model();
    Pipeline pipeline(StagesFor(schedule, model, world->rank()), schedule, *world, {.loss = Loss});
    const Batch batch = BatchOf(8, 5);
    const StepResult result = pipeline.eval(batch.inputs, batch.targets);
    const bool last = pipeline.stages().back().index == schedule.stages - 1;
    EXPECT_EQ(result.output.defined(), last);
    if (last) {
      const at::NoGradGuard no_grad;
      std::vector<at::Tensor> outputs;
      for (const at::Tensor& part : batch.inputs.split(2)) {
        const RandomPlaceGuard guard(PlaceOf(static_cast<int64_t>(outputs.size())));
        outputs.push_back(reference->forward(part));
      }
      EXPECT_TRUE(torch::equal(result.output, torch::cat(outputs)));
      EXPECT_TRUE(result.loss.defined());
      EXPECT_FALSE(pipeline.eval(batch.inputs).loss.defined());
    } else {
      (void)pipeline.eval(batch.inputs);
    }
    for (const at::Tensor& parameter : model->parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST(Pipeline, ParametersHaveTheirNamesInTheWhole) {
  const Schedule schedule = *BuildSchedule("1f1b", {world->size(), world->size(), 2});
  torch::nn::Sequential model = Model();
  const std::vector<NamedLayer> layers = LayersOf(model, "body.layers");
  const LayerCut cut = CutByNumber(layers, schedule.stages);
  std::vector<PipelineStage> stages;
  stages.emplace_back(world->rank(), TakeLayers(layers, cut, world->rank()));
  const auto names = stages.front().module->named_parameters();
  EXPECT_EQ(names[0].key().rfind("body.layers." + std::to_string(cut[static_cast<size_t>(world->rank())]) + ".", 0), 0u)
      << names[0].key();
  Pipeline pipeline(std::move(stages), schedule, *world, {.loss = Loss});
  if (world->size() == 1) return;
  const auto placement = Placements().Of(names[0].value());
  ASSERT_NE(placement, nullptr);
  EXPECT_EQ(placement->use(kPipelineAxis), AxisUse::kOwned);
  EXPECT_EQ(placement->name(), names[0].key());
}

// A model that is put into another pipeline belongs to that one, and to none afterwards.
TEST(Pipeline, PlacementsEndWithThePipeline) {
  const Schedule schedule = *BuildSchedule("1f1b", {world->size(), world->size(), 2});
  torch::nn::Sequential model = Model();
  const Batch batch = BatchOf(4, 3);
  for (int round = 0; round < 2; ++round) {
    const auto group = *world->Duplicate();
    Pipeline pipeline(StagesFor(schedule, model, world->rank()), schedule, *group, {.loss = Loss});
    pipeline.step(batch.inputs, batch.targets);
    for (const PipelineStage& stage : pipeline.stages()) {
      for (const at::Tensor& parameter : stage.module->parameters()) {
        const auto axes = ModelAxes({parameter});
        ASSERT_EQ(axes.size(), world->size() > 1 ? 1u : 0u);
        if (!axes.empty()) {
          EXPECT_EQ(axes[0].group, group.get()) << "round " << round;
        }
      }
    }
  }
  for (const at::Tensor& parameter : model->parameters()) EXPECT_EQ(Placements().Of(parameter), nullptr);
}

TEST(Pipeline, MessagesAreCountedWhereTheyAreSent) {
  if (world->size() < 2) GTEST_SKIP() << "one rank sends nothing";
  const Schedule schedule = *BuildSchedule("1f1b", {world->size(), world->size(), 4});
  torch::nn::Sequential model = Model();
  Pipeline pipeline(StagesFor(schedule, model, world->rank()), schedule, *world, {.loss = Loss});
  const Batch batch = BatchOf(8, 5);
  const CommunicationLedger ledger;
  pipeline.step(batch.inputs, batch.targets);
  const int neighbours = (world->rank() > 0 ? 1 : 0) + (world->rank() + 1 < world->size() ? 1 : 0);
  const auto entries = ledger.entries();
  const LedgerEntry sent = entries.at({comm::CollectiveKind::kSend, world->size()});
  const int64_t sizes = world->rank() + 1 < world->size() ? 16 * 8 : 0;  // sent once
  EXPECT_EQ(sent.sent_by_group, neighbours * 8 * kWidth * 4 + sizes);
  EXPECT_EQ(entries.at({comm::CollectiveKind::kRecv, world->size()}).sent_by_group, 0);
}

TEST(Pipeline, StagesThatDoNotFitTheScheduleAreRefused) {
  const Schedule schedule = *BuildSchedule("1f1b", {world->size(), world->size(), 4});
  torch::nn::Sequential model = Model();
  auto own = world->Duplicate();
  ASSERT_TRUE(own.ok());
  EXPECT_THAT(WhyThrown([&] { Pipeline pipeline({}, schedule, **own, {.loss = Loss}); }),
              ::testing::HasSubstr("the schedule gives it"));
  Schedule broken = schedule;
  broken.by_rank[0].pop_back();
  EXPECT_THAT(
      WhyThrown([&] { Pipeline pipeline(StagesFor(schedule, model, world->rank()), broken, **own, {.loss = Loss}); }),
      ::testing::HasSubstr("rank 0, 0RESHARD: is missing at the end"));
  if (world->size() < 2) return;
  const Schedule other = *BuildSchedule("gpipe", {world->size(), world->size(), 4});
  EXPECT_THAT(WhyThrown([&] {
                const Schedule& mine = world->rank() == 1 ? other : schedule;
                Pipeline pipeline(StagesFor(mine, model, world->rank()), mine, **own, {.loss = Loss});
              }),
              ::testing::HasSubstr("rank 1"));
}

// None waits for a rank that can't go on.
TEST(Pipeline, StagesThatDoNotFitOnOneRankAreRefusedOnAll) {
  const Schedule schedule = *BuildSchedule("1f1b", {world->size(), world->size(), 4});
  Schedule broken = schedule;
  broken.by_rank[0].pop_back();
  torch::nn::Sequential model = Model();
  const int odd = world->size() - 1;
  const bool is_odd = world->rank() == odd;
  const std::string who = "rank " + std::to_string(odd);
  const auto why = [&](const Schedule& given, std::vector<PipelineStage> stages, const PipelineOptions& options) {
    return WhyThrown([&] { Pipeline pipeline(std::move(stages), given, *world, options); });
  };
  const auto stages = [&] { return StagesFor(schedule, model, world->rank()); };
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  EXPECT_THAT(why(schedule, stages(), {.loss = is_odd ? LossFunction() : LossFunction(Loss)}),
              AllOf(HasSubstr(who), HasSubstr("options.loss is needed")));
  EXPECT_THAT(why(is_odd ? broken : schedule, stages(), {.loss = Loss}),
              AllOf(HasSubstr(who), HasSubstr("is missing at the end")));
  EXPECT_THAT(why(schedule, is_odd ? std::vector<PipelineStage>() : stages(), {.loss = Loss}),
              AllOf(HasSubstr(who), HasSubstr("the schedule gives it")));
  PipelineOptions shared{.loss = Loss};
  shared.shared_weights = {{0, "0.up.weight", odd, "no.weight"}};
  EXPECT_THAT(why(schedule, stages(), shared), AllOf(HasSubstr(who), HasSubstr("has no parameter no.weight")));
  if (odd == 0) return;
  shared.shared_weights = {{0, "0.up.weight", odd, is_odd ? "14.up.weight" : "14.down.weight"}};
  EXPECT_THAT(why(schedule, stages(), shared), AllOf(HasSubstr(who), HasSubstr("shared weights")));
}

// All messages have equal sizes, those of the evaluation too.
TEST(Pipeline, MessagesOfAnotherStepAreRefused) {
  if (world->size() < 2) GTEST_SKIP() << "needs another rank";
  const Schedule schedule = *BuildSchedule("1f1b", {world->size(), world->size(), 4});
  torch::nn::Sequential model = Model();
  auto own = world->Duplicate();
  ASSERT_TRUE(own.ok());
  Pipeline pipeline(StagesFor(schedule, model, world->rank()), schedule, **own, {.loss = Loss});
  const Batch batch = BatchOf(8, 5);
  const std::string why = WhyThrown([&] {
    if (world->rank() == 0) (void)pipeline.eval(batch.inputs);
    (void)pipeline.step(batch.inputs, batch.targets);
  });
  EXPECT_THAT(why, ::testing::HasSubstr("tag"));
}

TEST(Pipeline, RowsThatCannotBeCutEvenlyAreRefusedOnAllRanks) {
  const Schedule schedule = *BuildSchedule("1f1b", {world->size(), world->size(), 4});
  torch::nn::Sequential model = Model();
  auto own = world->Duplicate();
  ASSERT_TRUE(own.ok());
  Pipeline pipeline(StagesFor(schedule, model, world->rank()), schedule, **own, {.loss = Loss});
  const Batch batch = BatchOf(10, 5);
  EXPECT_THAT(WhyThrown([&] { pipeline.step(batch.inputs, batch.targets); }),
              ::testing::HasSubstr("can't be cut into 4 equal micro-batches"));
}

TEST(Pipeline, AnExceptionOfOneStageEndsTheStepOnAllRanks) {
  if (world->size() < 2) GTEST_SKIP() << "needs another rank";
  const Schedule schedule = *BuildSchedule("1f1b", {world->size(), world->size(), 4});
  torch::nn::Sequential model = Model();
  auto own = world->Duplicate();
  ASSERT_TRUE(own.ok());
  std::vector<PipelineStage> stages = StagesFor(schedule, model, world->rank());
  int calls = 0;
  if (world->rank() == 1) {
    stages.front().forward = [&, before = stages.front().forward](const at::Tensor& x) {
      TORCH_CHECK(++calls < 3, "the third micro-batch is too much");
      return before(x);
    };
  }
  Pipeline pipeline(std::move(stages), schedule, **own, {.loss = Loss});
  const Batch batch = BatchOf(8, 5);
  EXPECT_THAT(WhyThrown([&] { pipeline.step(batch.inputs, batch.targets); }),
              ::testing::HasSubstr("the third micro-batch is too much"));
  EXPECT_THAT(WhyThrown([&] { pipeline.step(batch.inputs, batch.targets); }),
              ::testing::HasSubstr("an earlier step has failed"));
}

// Run by killed_rank_test.py, which reads what is printed.
TEST(PipelineFailure, DISABLED_AKilledRankIsNamedOnTheOthers) {
  const Schedule schedule = *BuildSchedule("1f1b", {world->size(), world->size(), 4});
  torch::nn::Sequential model = Model();
  std::vector<PipelineStage> stages = StagesFor(schedule, model, world->rank());
  int calls = 0;
  if (world->rank() == 1) {
    stages.front().forward = [&, before = stages.front().forward](const at::Tensor& x) {
      if (++calls == 7) std::raise(SIGKILL);  // in the second step
      return before(x);
    };
  }
  Pipeline pipeline(std::move(stages), schedule, *world, {.loss = Loss});
  const Batch batch = BatchOf(8, 5);
  pipeline.step(batch.inputs, batch.targets);
  std::printf("told: %s\n", WhyThrown([&] { pipeline.step(batch.inputs, batch.targets); }).c_str());
}

}  // namespace
}  // namespace cohort::trainer
