#include "cohort/trainer/compat/deepspeed_config.h"

#include <string>

#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainer/error_of.h"

namespace cohort::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string ErrorOnTwoRanks(const std::string& json) {
  return ErrorOf([&] { ParseDeepSpeedConfig(json, 2); });
}

TEST(DeepSpeedConfig, AppliesKnownKeysAndNamesTheRest) {
  const DeepSpeedConfig config = ParseDeepSpeedConfig(
      R"({"train_batch_size": 32, "gradient_accumulation_steps": 4, "gradient_clipping": 0.5,
          "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "allgather_bucket_size": 2e8, "overlap_comm": true,
                                "offload_optimizer": {"device": "cpu"}},
          "optimizer": {"type": "Adam", "params": {"lr": 3e-4, "betas": [0.8, 0.99], "fused": true}},
          "fp16": {"enabled": true, "initial_scale_power": 8, "hysteresis": 3},
          "zero_allow_untested_optimizer": true})",
      2);
  EXPECT_EQ(config.train_micro_batch_size_per_gpu, 4);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  EXPECT_EQ(config.zero_optimization.stage, 2);
  EXPECT_EQ(config.zero_optimization.reduce_bucket_size, 500'000'000);
  EXPECT_EQ(config.zero_optimization.allgather_bucket_size, 200'000'000);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.99);
  EXPECT_EQ(config.fp16.hysteresis, 3);
  EXPECT_THAT(config.without_effect,
              ElementsAre("optimizer.params.fused", "zero_allow_untested_optimizer",
                          "zero_optimization.offload_optimizer", "zero_optimization.overlap_comm"));
}

// Keys that are known, but that nothing reads under the stage or the switch of the same file.
TEST(DeepSpeedConfig, NamesKeysWithoutEffectAtTheirStageOrSwitch) {
  const auto without_effect = [](const std::string& more) {
    return ParseDeepSpeedConfig(R"({"train_batch_size": 8, )" + more + "}", 2).without_effect;
  };
  const std::string buckets = R"("reduce_bucket_size": 1000, "allgather_bucket_size": 1000})";
  EXPECT_THAT(without_effect(R"("zero_optimization": {"stage": 0, )" + buckets),
              ElementsAre("zero_optimization.allgather_bucket_size", "zero_optimization.reduce_bucket_size"));
  EXPECT_THAT(without_effect(R"("zero_optimization": {"stage": 1, )" + buckets), ElementsAre());
  const std::string scale = R"("initial_scale_power": 8, "loss_scale_window": 10, "hysteresis": 3,
                               "consecutive_hysteresis": true, "min_loss_scale": 2})";
  EXPECT_THAT(without_effect(R"("fp16": {"enabled": true, "auto_cast": true, )" + scale), ElementsAre());
  const auto fixed = without_effect(R"("fp16": {"enabled": true, "loss_scale": 128, )" + scale);
  EXPECT_THAT(fixed, ElementsAre("fp16.consecutive_hysteresis", "fp16.hysteresis", "fp16.initial_scale_power",
                                 "fp16.loss_scale_window", "fp16.min_loss_scale"));
  EXPECT_THAT(without_effect(R"("fp16": {"enabled": false, "auto_cast": true, "loss_scale": 8})"),
              ElementsAre("fp16.auto_cast", "fp16.loss_scale"));
  const std::string adam = R"("optimizer": {"type": "Adam", "params": {"lr": 0.1}})";
  EXPECT_THAT(without_effect(adam), ElementsAre());
  EXPECT_THAT(without_effect(adam + R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1}})"),
              ElementsAre("optimizer.params.lr"))
      << "the schedule gives every step its rate";
  EXPECT_THAT(without_effect(adam + R"(, "scheduler": {"type": "WarmupLR"})"), ElementsAre())
      << "the schedule goes up to the optimizer's rate";
  EXPECT_THAT(ErrorOnTwoRanks(R"({"train_batch_size": 8, "fp16": {"hysteresis": -1}})"), HasSubstr("fp16.hysteresis"))
      << "what has no effect is checked all the same";
}

TEST(DeepSpeedConfig, DerivesTheThirdBatchSize) {
  EXPECT_EQ(ParseDeepSpeedConfig(R"({"train_batch_size": 24})", 3).train_micro_batch_size_per_gpu, 8);
  EXPECT_EQ(ParseDeepSpeedConfig(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2})", 3)
                .gradient_accumulation_steps,
            4);
  EXPECT_EQ(ParseDeepSpeedConfig(R"({"gradient_accumulation_steps": 5, "train_micro_batch_size_per_gpu": 2})", 3)
                .train_batch_size,
            30);
  EXPECT_THAT(ErrorOnTwoRanks(R"({"train_batch_size": 25})"), HasSubstr("train_batch_size 25 is not"));
  EXPECT_THAT(ErrorOnTwoRanks("{}"), HasSubstr("train_batch_size"));
}

TEST(DeepSpeedConfig, NamesTheKeyThatIsWrong) {
  EXPECT_THAT(ErrorOnTwoRanks("[1"), HasSubstr("no JSON"));
  EXPECT_THAT(ErrorOnTwoRanks("[1]"), HasSubstr("no JSON object"));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"train_batch_size": "auto"})"), HasSubstr("train_batch_size is \"auto\""));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"train_batch_size": 1.5})"),
              HasSubstr("train_batch_size is 1.5, which is no whole number"));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"train_batch_size": -2})"), HasSubstr("must be at least 1"));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"train_batch_size": 8, "gradient_accumulation_steps": 0})"), HasSubstr("at least 1"));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"zero_optimization": 2})"), HasSubstr("zero_optimization is no JSON object"));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"zero_optimization": {"stage": 3}})"), HasSubstr("FullyShardedDataParallel"));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"optimizer": {"type": "Lion"}})"), HasSubstr("optimizer.type is Lion"));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"scheduler": {"type": "StepLR"}})"), HasSubstr("scheduler.type is StepLR"));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"scheduler": {"type": "WarmupDecayLR"}})"), HasSubstr("total_num_steps"));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"optimizer": {"type": "Adam", "params": {"betas": [1]}}})"),
              HasSubstr("optimizer.params.betas"));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"optimizer": {"params": {"lr": 0.1}}})"), HasSubstr("optimizer.type is missing"));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"train_batch_size": 2, "fp16": {"enabled": true}, "bf16": {"enabled": true}})"),
              HasSubstr("both enabled"));
  EXPECT_THAT(ErrorOnTwoRanks("{\"train_batch_size\": " + std::string(500000, '[') + std::string(500000, ']') + "}"),
              HasSubstr("too deep"));
  EXPECT_THROW(ReadDeepSpeedConfig("/nonexistent/ds.json", 1), c10::Error);
}

// A number that wraps around would be taken for a small one, and train something else without a word.
TEST(DeepSpeedConfig, RefusesNumbersThatNoRunCanHave) {
  const auto with = [](const std::string& more) { return ErrorOnTwoRanks(R"({"train_batch_size": 8, )" + more + "}"); };
  EXPECT_THAT(with(R"("zero_optimization": {"stage": 4294967298})"),
              HasSubstr("zero_optimization.stage is 4294967298"));
  EXPECT_THAT(with(R"("fp16": {"enabled": true, "initial_scale_power": 4294967312})"),
              HasSubstr("initial_scale_power"));
  EXPECT_THAT(with(R"("fp16": {"enabled": true, "initial_scale_power": 2000})"), HasSubstr("at most 127"));
  EXPECT_THAT(with(R"("fp16": {"enabled": true, "loss_scale": 1e300})"), HasSubstr("loss_scale is 1e+300"));
  EXPECT_THAT(with(R"("steps_per_print": 18446744073709551615)"), HasSubstr("steps_per_print"));
  EXPECT_THAT(with(R"("zero_optimization": {"reduce_bucket_size": 4611686018427387904})"),
              HasSubstr("reduce_bucket_size is 4611686018427387904"));
  EXPECT_THAT(
      ErrorOnTwoRanks(R"({"train_micro_batch_size_per_gpu": 4611686018427387904, "gradient_accumulation_steps": 4})"),
      HasSubstr("train_micro_batch_size_per_gpu is 4611686018427387904"));
}

TEST(DeepSpeedConfig, SchedulersNeedTheirKeys) {
  const auto with = [](const std::string& type, const std::string& params) {
    return ErrorOnTwoRanks(R"({"train_batch_size": 2, "scheduler": {"type": ")" + type + R"(", "params": {)" + params +
                           "}}}");
  };
  const std::string cycle = R"("cycle_min_lr": 0.1, "cycle_max_lr": 0.2)";
  EXPECT_THAT(with("WarmupCosineLR", ""), HasSubstr("WarmupCosineLR needs scheduler.params.total_num_steps"));
  EXPECT_THAT(with("OneCycle", R"("cycle_min_lr": 0.1)"), HasSubstr("OneCycle needs scheduler.params.cycle_max_lr"));
  EXPECT_THAT(with("OneCycle", R"("cycle_max_lr": 0.1)"), HasSubstr("OneCycle needs scheduler.params.cycle_min_lr"));
  EXPECT_THAT(ErrorOnTwoRanks(R"({"scheduler": {"type": "OneCycle"}})"), HasSubstr("OneCycle needs scheduler.params"));
  EXPECT_THAT(with("OneCycle", cycle), "");
  EXPECT_THAT(with("OneCycle", cycle + R"(, "cycle_first_step_size": 0)"), HasSubstr("must be at least 1"));
  EXPECT_THAT(with("OneCycle", cycle + R"(, "warmup_num_steps": 3)"), HasSubstr("is nothing that OneCycle takes"));
  EXPECT_THAT(with("LRRangeTest", ""), "");
  EXPECT_THAT(with("LRRangeTest", R"("lr_range_test_step_size": 0)"), HasSubstr("must be at least 1"));
  EXPECT_THAT(with("LRRangeTest", cycle), HasSubstr("is nothing that LRRangeTest takes"));
}

TEST(DeepSpeedConfig, ACycleMovesTheBetasThatTheOptimizerHas) {
  const auto without_effect = [](const std::string& optimizer, const std::string& more) {
    return ParseDeepSpeedConfig(R"({"train_batch_size": 8, "optimizer": )" + optimizer +
                                    R"(, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1,
                                    "cycle_max_lr": 0.2)" +
                                    more + "}}}",
                                2)
        .without_effect;
  };
  const std::string adam = R"({"type": "Adam", "params": {"betas": [0.8, 0.9]}})", sgd = R"({"type": "SGD"})";
  EXPECT_THAT(without_effect(adam, ""), ElementsAre("optimizer.params.betas"));
  EXPECT_THAT(without_effect(adam, R"(, "cycle_momentum": false, "cycle_min_mom": 0.5)"),
              ElementsAre("scheduler.params.cycle_min_mom"));
  EXPECT_THAT(without_effect(sgd, R"(, "cycle_momentum": true, "cycle_max_mom": 0.5)"),
              ElementsAre("scheduler.params.cycle_max_mom", "scheduler.params.cycle_momentum"));
}

TEST(DeepSpeedLossScale, TheLossScaleFallsAfterHysteresisAndGrowsAfterAWindow) {
  DeepSpeedLossScale scale(
      {.enabled = true, .initial_scale_power = 4, .loss_scale_window = 2, .hysteresis = 2, .min_loss_scale = 4});
  scale.Update(true);
  EXPECT_EQ(scale.scale(), 16) << "the first overflow is forgiven";
  scale.Update(true);
  EXPECT_EQ(scale.scale(), 8);
  scale.Update(false);
  EXPECT_EQ(scale.scale(), 8);
  scale.Update(false);
  EXPECT_EQ(scale.scale(), 16);
  for (const double expected : {16, 8, 4}) {
    scale.Update(true);
    EXPECT_EQ(scale.scale(), expected);
  }
  EXPECT_THROW(scale.Update(true), c10::Error);
  DeepSpeedLossScale fixed({.enabled = true, .loss_scale = 128});
  fixed.Update(true);
  EXPECT_EQ(fixed.scale(), 128);
}

}  // namespace
}  // namespace cohort::trainer
