// Weights that several stages share, compared with one process in which they are one tensor.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/grad_norm.h"
#include "tests/trainer/parallel/pipeline/pipeline_model.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kProducts = 10;

struct Product : torch::nn::Module {
  explicit Product(const at::Tensor& value) : weight(register_parameter("weight", value)) {}
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(x.matmul(weight)); }
  at::Tensor weight;
};

// Layers whose weights are equal tensors, and one tensor where `tied` says so.
torch::nn::Sequential Products(const std::vector<bool>& tied) {
  torch::nn::Sequential model;
  const auto value = [] { return torch::randn({kWidth, kWidth}, at::detail::createCPUGenerator(17)).requires_grad_(); };
  const at::Tensor first = value();
  for (int i = 0; i < kProducts; ++i) model->push_back(Product(tied[static_cast<size_t>(i)] ? first : value()));
  return model;
}

enum class Form { kStar, kChain, kLocallyTied };

// The first layer of each stage has the weight.
void ShareAmongAllStages(const char* name, Form form) {
  const int ranks = world->size(), laps = FindSchedule(name)->traits.least_stages_per_rank;
  if (ranks * laps < 2) return;
  const Schedule schedule = *BuildSchedule(name, {ranks, ranks * laps, 4});
  const LayerCut cut = CutByNumber(LayersOf(Products(std::vector<bool>(kProducts))), schedule.stages);
  std::vector<bool> shares(kProducts), none(kProducts);
  const auto name_of = [&](int stage) { return std::to_string(cut[static_cast<size_t>(stage)]) + ".weight"; };
  PipelineOptions options{.loss = Loss};
  for (int stage = 0; stage < schedule.stages; ++stage) {
    shares[static_cast<size_t>(cut[static_cast<size_t>(stage)])] = true;
    const int from = form == Form::kChain ? stage - 1 : 0;
    if (stage > 0) options.shared_weights.push_back({from, name_of(from), stage, name_of(stage)});
  }
  torch::nn::Sequential model = Products(form == Form::kLocallyTied ? shares : none), reference = Products(shares);
  Pipeline pipeline(StagesFor(schedule, model, ranks == 1 ? 0 : world->rank()), schedule, *world, options);
  std::vector<at::Tensor> parameters;
  for (const PipelineStage& stage : pipeline.stages()) {
    for (const at::Tensor& parameter : stage.module->parameters()) {
      const bool known =
          std::any_of(parameters.begin(), parameters.end(), [&](const auto& each) { return each.is_same(parameter); });
      if (!known) parameters.push_back(parameter);
    }
  }
  std::vector<at::Tensor> own = {reference->parameters()[0]};
  for (size_t i = 1; i < kProducts; ++i) {
    if (!shares[i]) own.push_back(reference->parameters()[i]);
  }
  torch::optim::SGD optimizer(parameters, 0.1), own_optimizer(own, 0.1);
  for (int step = 0; step < 2; ++step) {
    const Batch batch = BatchOf(8, 3 + step);
    optimizer.zero_grad();
    own_optimizer.zero_grad();
    pipeline.step(batch.inputs, batch.targets);
    Alone(reference, batch, 4);
    const auto expected = reference->named_parameters();
    for (const PipelineStage& stage : pipeline.stages()) {
      for (const auto& item : stage.module->named_parameters()) {
        EXPECT_TRUE(torch::allclose(item.value().grad(), expected[item.key()].grad(), 1e-5, 1e-6))
            << name << ", step " << step << ", " << item.key();
      }
    }
    const double norm = clip_grad_norm_(parameters, 0.5).item<double>();
    EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(own, 0.5), 1e-5 * norm) << name;
    optimizer.step();
    own_optimizer.step();
  }
  const auto expected = reference->named_parameters();
  const int copies = form == Form::kLocallyTied ? ranks : schedule.stages;
  for (const PipelineStage& stage : pipeline.stages()) {
    for (const auto& item : stage.module->named_parameters()) {
      EXPECT_TRUE(torch::allclose(item.value(), expected[item.key()], 1e-5, 1e-6)) << name << ", " << item.key();
      if (item.key() != name_of(stage.index)) continue;
      const auto placement = Placements().OrWhole(item.value());
      EXPECT_EQ(placement->copies(), copies) << name << ", " << item.key();
      EXPECT_EQ(NameInWhole(item.value(), item.key()), "0.weight");
    }
  }
}

TEST(SharedWeights, AWeightSharedByAllStagesHasTheSumOfTheirGradients) {
  for (const char* const name : {"gpipe", "1f1b", "interleaved", "zb_h1", "zbv"}) {
    ShareAmongAllStages(name, Form::kStar);
    ShareAmongAllStages(name, Form::kChain);
  }
}

// A rank's two stages have one tensor, which other ranks can't know: it is one copy, or checkpoints would lack a part.
TEST(SharedWeights, ATensorSharedByTwoStagesIsOneCopy) {
  for (const char* const name : {"interleaved", "zbv"}) ShareAmongAllStages(name, Form::kLocallyTied);
}

// The error of a pipeline with these weights, which is the same kind on every rank.
std::string Refused(const Schedule& schedule, const std::vector<PipelineStage>& stages,
                    const std::vector<SharedWeight>& weights) {
  PipelineOptions options{.loss = Loss};
  options.shared_weights = weights;
  const auto begin = std::chrono::steady_clock::now();
  std::string why = "nothing";
  try {
    const Pipeline pipeline(stages, schedule, *world, options);
  } catch (const DistributedError& error) {
    why = error.what_without_backtrace();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon) << why;
  return why;
}

TEST(SharedWeights, SharedWeightsThatDoNotFitAreRefusedOnAllRanks) {
  const int ranks = world->size(), stages = 2 * ranks;
  const Schedule schedule = *BuildSchedule("zbv", {ranks, stages, 4});  // rank 0 has the first and the last stage
  torch::nn::Sequential model = Model();
  const std::vector<PipelineStage> own = StagesFor(schedule, model, world->rank());
  const std::string last = std::to_string(stages - 1);
  EXPECT_THAT(Refused(schedule, own, {{0, "0.up.weight", stages - 1, "15.weight"}}),
              AllOf(HasSubstr("stages 0 and " + last + " have different parts of the shared weight 0.up.weight"),
                    HasSubstr("[12, 6]"), HasSubstr("[4, 6]")));
  EXPECT_THAT(Refused(schedule, own, {{0, "0.up.weight", stages, "15.weight"}}),
              HasSubstr("is shared by stage " + std::to_string(stages) + ", and there are"));
  EXPECT_THAT(Refused(schedule, own, {{0, "0.up.weight", 0, "0.up.weight"}}), HasSubstr("is shared with itself"));
  if (ranks == 1) return;
  const std::string of_one = std::to_string(CutByNumber(LayersOf(model), stages)[1]) + ".down.weight";
  EXPECT_THAT(Refused(schedule, own, {{0, "0.up.weight", 1, of_one}}),
              HasSubstr("stages 0 and 1 have different parts of the shared weight 0.up.weight"));
}

TEST(SharedWeights, AParameterOfTwoWeightsIsRefusedOnAllRanks) {
  if (world->size() < 2) GTEST_SKIP() << "one rank has all stages";
  const int stages = 2 * world->size();
  const Schedule schedule = *BuildSchedule("zbv", {world->size(), stages, 4});
  std::vector<bool> tied(kProducts);
  tied[0] = tied[kProducts - 1] = true;  // both are rank 0's
  torch::nn::Sequential model = Products(tied);
  const LayerCut cut = CutByNumber(LayersOf(model), stages);
  EXPECT_THAT(Refused(schedule, StagesFor(schedule, model, world->rank()),
                      {{0, "0.weight", 1, std::to_string(cut[1]) + ".weight"},
                       {stages - 1, "9.weight", 2, std::to_string(cut[2]) + ".weight"}}),
              AllOf(HasSubstr("rank 0"), HasSubstr("are one parameter")));
}

}  // namespace
}  // namespace cohort::trainer
