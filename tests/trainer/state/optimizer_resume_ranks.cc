// A loaded checkpoint restores an optimizer: its state and its groups' options are the saved ones, and nothing else.
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/state/async_checkpoint.h"
#include "cohort/trainer/state/master_weights.h"
#include "cohort/trainer/state/optimizer_state.h"
#include "cohort/trainer/state/param_groups.h"
#include "cohort/trainer/state/training_state.h"
#include "tests/trainer/noisy_stack.h"
#include "tests/trainer/ranks.h"
#include "tests/trainer/trained.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;

class OptimizerResume : public Checkpoints, public testing::WithParamInterface<const char*> {};

TEST_P(OptimizerResume, LoadingLeavesNoEarlierState) {
  Trained saved(GetParam(), *world), loaded(GetParam(), *world);
  SaveTrainingState(*world, At("step-0"), saved.state, {});
  loaded.Train(7, 9);
  LoadTrainingState(*world, At("step-0"), loaded.state);
  for (size_t i = 0; i < loaded.state.parameters.size(); ++i) {
    if (!loaded.state.states[i].has_value()) continue;
    EXPECT_THAT(OptimizerStateOf(*loaded.state.optimizer, loaded.state.parameters[i].data), testing::IsEmpty()) << i;
  }
  saved.Train(0, 3);
  loaded.Train(0, 3);
  ExpectEqual(loaded.Whole(), saved.Whole(), true);
}

TEST_P(OptimizerResume, LoadingKeepsTheGroupsOptions) {
  const auto options_of = [](Trained& trained) -> AdamWOptions& {
    return static_cast<AdamWOptions&>(trained.optimizer->param_groups()[0].options());
  };
  Trained saved(GetParam(), *world);
  saved.Train(0, 2);
  options_of(saved).lr(0.1 / 3).betas({0.7, 0.97}).eps(1e-5).weight_decay(0.3);
  saved.Train(2, 3);
  SaveTrainingState(*world, At("step-3"), saved.state, {{"step", "3"}});
  AsyncCheckpointer checkpointer(*world);
  checkpointer.Save(At("step-4"), saved.state, {{"step", "4"}});
  checkpointer.Wait();
  std::vector<std::unique_ptr<Trained>> all;
  for (const std::string step : {"3", "4"}) {
    all.push_back(std::make_unique<Trained>(GetParam(), *world));
    const CheckpointValues values = LoadTrainingState(*world, At("step-" + step), all.back()->state);
    EXPECT_EQ(values, (CheckpointValues{{"step", step}})) << "the program's own";
    EXPECT_TRUE(options_of(*all.back()) == options_of(saved)) << step;
    all.back()->Train(3, 5);
  }
  saved.Train(3, 5);
  for (const auto& loaded : all) ExpectEqual(loaded->Whole(), saved.Whole(), true);
  // Before they were kept.
  Trained older(GetParam(), *world);
  SaveCheckpoint(*world, At("older"), CheckpointTensorsOf(saved.state), {});
  LoadTrainingState(*world, At("older"), older.state);
  EXPECT_EQ(options_of(older).lr(), 0.05);
}
INSTANTIATE_TEST_SUITE_P(Modes, OptimizerResume, testing::Values("ddp", "zero", "fsdp"));

// Adagrad has a state for each of its parameters from the beginning, and none for others.
TEST_F(Checkpoints, ResumeTakesAnAdagradOfSomeParameters) {
  const auto saved = std::make_shared<Net>(7), loaded = std::make_shared<Net>(7);
  const DistributedDataParallel<Net> same_start(saved, *world);
  const auto first_of = [](Net& net) { return std::vector<at::Tensor>(1, net.parameters().front()); };
  const auto step = [&first_of](Net& net, torch::optim::Optimizer& optimizer) {
    at::Tensor parameter = first_of(net).front();
    parameter.mutable_grad() = at::ones_like(parameter);
    optimizer.step();
  };
  torch::optim::Adagrad optimizer(first_of(*saved), torch::optim::AdagradOptions(0.1));
  step(*saved, optimizer);
  SaveTrainingState(*world, At("step-1"), StateOf(*saved, optimizer, *world), {});
  torch::optim::Adagrad other(first_of(*loaded), torch::optim::AdagradOptions(0.2));
  LoadTrainingState(*world, At("step-1"), StateOf(*loaded, other, *world));
  step(*saved, optimizer);
  step(*loaded, other);
  ExpectEqual(loaded->parameters(), saved->parameters(), true);
}

TEST_F(Checkpoints, ResumeRefusesGroupsOfAnotherShape) {
  Trained saved("ddp", *world);
  SaveTrainingState(*world, At("step-0"), saved.state, {});
  const auto parameters = saved.net->parameters();
  const auto error_of = [&](torch::optim::Optimizer& optimizer) -> std::string {
    try {
      LoadTrainingState(*world, At("step-0"), StateOf(*saved.net, optimizer, *world));
    } catch (const DistributedError& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  torch::optim::SGD other(parameters, torch::optim::SGDOptions(0.1));
  EXPECT_THAT(error_of(other), HasSubstr("lacks momentum; was it saved by another kind of optimizer?"));
  AdamW fewer({parameters[0]}, AdamWOptions(0.1));
  EXPECT_THAT(error_of(fewer), HasSubstr("has " + std::to_string(parameters.size()) +
                                         " parameters in its param group 0 and this one 1;"));
  using Group = torch::optim::OptimizerParamGroup;
  AdamW two({Group({parameters[0]}), Group({parameters[1]})}, AdamWOptions(0.1));
  EXPECT_THAT(error_of(two), HasSubstr("has 1 param groups and this one 2"));
}

// The number of parameters may be equal or not: the names say what the numbers only hint at.
TEST_F(Checkpoints, ResumeNamesTheParametersOfAnotherModel) {
  struct Other : torch::nn::Module {
    explicit Other(bool fewer) {
      register_module("first", torch::nn::Linear(4, 7));
      if (!fewer) register_module("last", torch::nn::Linear(7, 3));
      register_buffer("count", torch::zeros({2}));
    }
    at::Tensor forward(const at::Tensor& x) { return x; }
  };
  for (const std::string mode : {"ddp", "fsdp"}) {
    Trained saved(mode, *world);
    SaveTrainingState(*world, At(mode), saved.state, {});
    for (const bool fewer : {false, true}) {
      const auto other = std::make_shared<Other>(fewer);
      AdamW optimizer(other->parameters(), AdamWOptions(0.1));
      const auto before = other->parameters().front().detach().clone();
      try {
        LoadTrainingState(*world, At(mode), StateOf(*other, optimizer, *world));
        ADD_FAILURE() << "accepted";
      } catch (const DistributedError& error) {
        EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(error.what_without_backtrace(), HasSubstr("is of another model: it has "));
        EXPECT_THAT(error.what_without_backtrace(),
                    HasSubstr("it has second.bias, second.weight, which this model has not"));
        if (!fewer) {
          EXPECT_THAT(error.what_without_backtrace(),
                      HasSubstr("it has no last.weight, last.bias, which this model has;"));
        }
      }
      EXPECT_TRUE(torch::equal(other->parameters().front(), before));
    }
  }
}

// As a loop that diverged left them: JSON has no such numbers.
TEST(ResumeParamGroups, GroupsKeepValuesThatAreNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<at::Tensor> parameters = {torch::ones({2}).requires_grad_()};
  AdamW saved(parameters, AdamWOptions(1)), loaded(parameters, AdamWOptions(1));
  auto& options = static_cast<AdamWOptions&>(saved.param_groups()[0].options());
  options.lr(std::nan("")).betas({-kInfinity, std::nan("")}).eps(kInfinity);
  const std::string text = ParamGroupsText(saved);
  EXPECT_THAT(text, HasSubstr(R"("betas":["-Infinity","NaN"],"eps":"Infinity","lr":"NaN")"));
  const auto read = ParamGroupOptions(loaded, text);
  ASSERT_EQ(read.size(), 1U);
  const auto& got = static_cast<const AdamWOptions&>(*read[0]);
  EXPECT_TRUE(std::isnan(got.lr()));
  EXPECT_EQ(std::get<0>(got.betas()), -kInfinity);
  EXPECT_TRUE(std::isnan(std::get<1>(got.betas())));
  EXPECT_EQ(got.eps(), kInfinity);
  EXPECT_EQ(got.weight_decay(), options.weight_decay());
  loaded.param_groups()[0].set_options(read[0]->clone());
  EXPECT_EQ(ParamGroupsText(loaded), text);
  std::string other = text;
  other.replace(other.find("\"NaN\""), 5, "\"many\"");
  EXPECT_THROW(ParamGroupOptions(loaded, other), c10::Error);
}

// Each group its own; by names and values as PyTorch's state_dict.
TEST(ResumeParamGroups, GroupsHaveEveryOptionOfEveryOptimizer) {
  using Group = torch::optim::OptimizerParamGroup;
  const auto parameter = [] { return torch::ones({2}).requires_grad_(); };
  const auto groups = [&] { return std::vector<Group>{Group({parameter(), parameter()}), Group({parameter()})}; };
  const auto check = [](torch::optim::Optimizer& saved, torch::optim::Optimizer& loaded, const std::string& expected) {
    const std::string text = ParamGroupsText(saved);
    EXPECT_EQ(text, expected);
    EXPECT_NE(ParamGroupsText(loaded), expected);
    const auto options = ParamGroupOptions(loaded, text);
    ASSERT_EQ(options.size(), 2);
    for (size_t i = 0; i < options.size(); ++i) loaded.param_groups()[i].set_options(options[i]->clone());
    EXPECT_EQ(ParamGroupsText(loaded), expected);
  };
  {
    torch::optim::SGD saved(groups(), torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true)), loaded(groups(), 1);
    saved.param_groups()[1].options().set_lr(1.0 / 3);
    const std::string rest = R"("momentum":0.9,"nesterov":true,"params":)";
    check(saved, loaded,
          R"([{"dampening":0.0,"lr":0.1,)" + rest +
              R"(2,"weight_decay":0.0},{"dampening":0.0,"lr":0.3333333333333333,)" + rest +
              R"(1,"weight_decay":0.0}])");
  }
  const auto twice = [](const std::string& before, const std::string& after) {
    return "[{" + before + R"("params":2)" + after + "},{" + before + R"("params":1)" + after + "}]";
  };
  {
    torch::optim::Adam saved(groups(), torch::optim::AdamOptions(0.1).betas({0.5, 0.25}).amsgrad(true)),
        loaded(groups());
    check(saved, loaded, twice(R"("amsgrad":true,"betas":[0.5,0.25],"eps":1e-08,"lr":0.1,)", R"(,"weight_decay":0.0)"));
  }
  {
    torch::optim::AdamW saved(groups(), AdamWOptions(0.1).eps(0.5)), loaded(groups());
    check(saved, loaded,
          twice(R"("amsgrad":false,"betas":[0.9,0.999],"eps":0.5,"lr":0.1,)", R"(,"weight_decay":0.01)"));
  }
  {
    torch::optim::Adagrad saved(groups(), torch::optim::AdagradOptions(0.1).lr_decay(0.5)), loaded(groups());
    check(saved, loaded,
          twice(R"("eps":1e-10,"initial_accumulator_value":0.0,"lr":0.1,"lr_decay":0.5,)", R"(,"weight_decay":0.0)"));
  }
  {
    torch::optim::RMSprop saved(groups(), torch::optim::RMSpropOptions(0.1).alpha(0.5).centered(true)),
        loaded(groups());
    check(saved, loaded,
          twice(R"("alpha":0.5,"centered":true,"eps":1e-08,"lr":0.1,"momentum":0.0,)", R"(,"weight_decay":0.0)"));
  }
  torch::optim::LBFGS unknown({parameter()});
  EXPECT_THROW(ParamGroupsText(unknown), c10::Error);
}

// Without state, a copy is what the parameter is: what it had beyond the small type's precision is gone too.
TEST(ResumeMasterWeights, MasterWeightsAreTheParametersWhereNothingWasSaved) {
  auto parameter = torch::ones({3}, torch::kBFloat16).requires_grad_();
  MasterWeights<AdamW> optimizer({parameter}, AdamWOptions(1e-4));
  parameter.mutable_grad() = torch::ones_like(parameter);
  optimizer.step();
  EXPECT_FALSE(torch::equal(optimizer.MasterOf(parameter), torch::ones({3})));
  EXPECT_GT(OptimizerStateOf(optimizer, parameter).size(), 1U);
  SetOptimizerState(optimizer, parameter, {});
  EXPECT_TRUE(torch::equal(optimizer.MasterOf(parameter), torch::ones({3})));
  EXPECT_EQ(OptimizerStateOf(optimizer, parameter).size(), 1U) << "the copy alone";
}

}  // namespace
}  // namespace cohort::trainer
