#include "cohort/trainer/compat/deepspeed_keys.h"

#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "cohort/trainer/compat/deepspeed_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainer/error_of.h"

namespace cohort::trainer {
namespace {

using Json = nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string ErrorOnOneRank(const std::string& json) {
  return ErrorOf([&] { ParseDeepSpeedConfig(json, 1); });
}
std::string ErrorWith(const std::string& more) { return ErrorOnOneRank(R"({"train_batch_size": 8, )" + more + "}"); }

DeepSpeedConfig Parsed(const Json& file) { return ParseDeepSpeedConfig(file.dump(), 1); }

// "zero_optimization.stage" as "/zero_optimization/stage".
Json::json_pointer PointerTo(std::string_view path) {
  std::string pointer = "/" + std::string(path);
  for (char& letter : pointer) letter = letter == '.' ? '/' : letter;
  return Json::json_pointer(pointer);
}

// A file beside whose other keys `path` has a meaning.
Json FileFor(std::string_view path) {
  Json file = {{"train_batch_size", 8}};
  if (path.starts_with("optimizer.")) file["optimizer"] = {{"type", "Adam"}};
  for (const char* key : {"momentum", "dampening", "nesterov"}) {
    if (path.starts_with("optimizer.") && path.ends_with(key)) file["optimizer"]["type"] = "SGD";
  }
  if (path.ends_with("nesterov")) file["optimizer"]["params"]["momentum"] = 0.5;
  if (path.starts_with("scheduler.") && path != "scheduler.type") file["scheduler"] = {{"type", "WarmupLR"}};
  if (path.ends_with("total_num_steps") || path.ends_with("_ratio")) {
    file["scheduler"] = {{"type", "WarmupCosineLR"}, {"params", {{"total_num_steps", 100}}}};
  }
  if (path.find("cycle_") != path.npos || path.find("decay_") != path.npos) {
    if (path.starts_with("scheduler.")) {
      file["scheduler"] = {{"type", "OneCycle"}, {"params", {{"cycle_min_lr", 0.1}, {"cycle_max_lr", 0.3}}}};
    }
  }
  if (path.find("lr_range_test_") != path.npos) file["scheduler"] = {{"type", "LRRangeTest"}};
  if (path.starts_with("fp16.") && path != "fp16.enabled") file["fp16"]["enabled"] = true;
  if (path.starts_with("bf16.") && path != "bf16.enabled") file["bf16"]["enabled"] = true;
  if (path.ends_with("bucket_size")) file["zero_optimization"]["stage"] = 1;
  return file;
}

// Every key of the table, with a value that is not DeepSpeed's default.
TEST(DeepSpeedKeys, EveryKeyHasTheEffectThatTheTableSays) {
  for (const ConfigKey& key : DeepSpeedKeys()) {
    SCOPED_TRACE(key.path);
    const Json::json_pointer place = PointerTo(key.path);
    const Json plain = FileFor(key.path);
    const DeepSpeedConfig before = Parsed(plain);
    EXPECT_THAT(before.without_effect, IsEmpty());
    Json file = plain;
    file[place] = Json::parse(key.example);
    switch (key.use) {
      case KeyUse::kApplied: {
        if (key.path == "data_types") break;  // its keys are refused
        const DeepSpeedConfig after = Parsed(file);
        EXPECT_FALSE(after == before) << "it changes nothing";
        EXPECT_THAT(after.without_effect, IsEmpty());
        break;
      }
      case KeyUse::kWithoutEffect: {
        DeepSpeedConfig after = Parsed(file);
        EXPECT_THAT(after.without_effect, ElementsAre(key.path));
        after.without_effect.clear();
        EXPECT_EQ(after, before);
        break;
      }
      case KeyUse::kRefused: {
        EXPECT_THAT(ErrorOnOneRank(file.dump()), HasSubstr("DeepSpeedConfig: " + std::string(key.path) + " is "));
        EXPECT_THAT(ErrorOnOneRank(file.dump()), HasSubstr(std::string(key.remedy)));
        Json off = key.off == kOffDisabled    ? Json{{"enabled", false}}
                   : key.off == kOffModelType ? Json("fp32")
                   : key.off.empty()          ? Json()
                                              : Json::parse(key.off);
        for (const Json& value : {off, Json()}) {
          file[place] = value;
          EXPECT_EQ(Parsed(file), before) << value;
        }
        break;
      }
    }
  }
}

TEST(DeepSpeedKeys, ThePageDescribesEveryKey) {
  std::ifstream file(COHORT_DEEPSPEED_PAGE);
  std::stringstream text;
  text << file.rdbuf();
  std::set<std::string_view> paths;
  for (const ConfigKey& key : DeepSpeedKeys()) {
    EXPECT_THAT(text.str(), HasSubstr("`" + std::string(key.path) + "`"));
    EXPECT_TRUE(paths.insert(key.path).second) << key.path << " is there twice";
  }
}

TEST(DeepSpeedKeys, AMistypedKeyIsNamedWithTheOneThatIsMeant) {
  const auto meant = [](const std::string& more) { return ErrorWith(more); };
  EXPECT_THAT(meant(R"("gradient_cliping": 1.0)"),
              HasSubstr("gradient_cliping is no key of DeepSpeed; did you mean gradient_clipping?"));
  EXPECT_THAT(meant(R"("gradient_clip": 1.0)"), HasSubstr("did you mean gradient_clipping?"));
  EXPECT_THAT(meant(R"("gradient-clipping": 1.0)"), HasSubstr("did you mean gradient_clipping?"));
  EXPECT_THAT(meant(R"("Gradient_Clipping": 1.0)"), HasSubstr("did you mean gradient_clipping?"));
  EXPECT_THAT(meant(R"("gradient_accumulation_step": 2)"), HasSubstr("did you mean gradient_accumulation_steps?"));
  EXPECT_THAT(meant(R"("train_micro_batch_size": 2)"), HasSubstr("did you mean train_micro_batch_size_per_gpu?"));
  EXPECT_THAT(meant(R"("zero_optimisation": {"stage": 2})"), HasSubstr("did you mean zero_optimization?"));
  EXPECT_THAT(meant(R"("zero_optimization": {"stages": 2})"), HasSubstr("did you mean zero_optimization.stage?"));
  EXPECT_THAT(meant(R"("optimizer": {"type": "Adam", "param": {"lr": 1}})"),
              HasSubstr("did you mean optimizer.params"));
  EXPECT_THAT(meant(R"("optimizer": {"type": "SGD", "params": {"momentun": 0.9}})"),
              HasSubstr("did you mean optimizer.params.momentum?"));
  EXPECT_THAT(meant(R"("fp16": {"enable": true})"), HasSubstr("did you mean fp16.enabled?"));
  EXPECT_THAT(meant(R"("stage": 2)"), HasSubstr("did you mean zero_optimization.stage?")) << "of another section";
  EXPECT_THAT(meant(R"("zero_optimization": {"gradient_clipping": 1})"), HasSubstr("did you mean gradient_clipping?"));
  EXPECT_THAT(meant(R"("bf16": {"loss_scale": 1})"), HasSubstr("did you mean fp16.loss_scale?"));
  EXPECT_THAT(meant(R"("learning_rate": 0.1)"), HasSubstr("did you mean optimizer.params.lr?")) << "of other programs";
  EXPECT_THAT(meant(R"("optimizer": {"type": "SGD", "params": {"learning_rate": 0.1}})"),
              HasSubstr("optimizer.params.learning_rate is no key of DeepSpeed; did you mean optimizer.params.lr?"));
  EXPECT_THAT(meant(R"("max_grad_norm": 1)"), HasSubstr("did you mean gradient_clipping?"));
  EXPECT_THAT(meant(R"("zero_stage": 1)"), HasSubstr("did you mean zero_optimization.stage?"));
  EXPECT_THAT(meant(R"("fp16": {"something": 1})"), HasSubstr("fp16.something is no key of DeepSpeed; remove it"));
}

// DeepSpeed passes over what it does not know in the file itself; programs keep values of their own there.
TEST(DeepSpeedKeys, KeysOfTheProgramAreNamed) {
  const auto config = ParseDeepSpeedConfig(R"({"train_batch_size": 8, "_comment": "x", "my_data": {"path": "y"}})", 1);
  EXPECT_THAT(config.without_effect, ElementsAre("_comment", "my_data"));
  EXPECT_THAT(ErrorWith(R"("my_data": {"enabled": true})"), HasSubstr("my_data switches something on"));
}

TEST(DeepSpeedKeys, KeysGivenTwiceAreRefused) {
  EXPECT_THAT(ErrorWith(R"("gradient_clipping": 1.0, "gradient_clipping": 0)"),
              HasSubstr("it has the key gradient_clipping twice"));
  EXPECT_THAT(ErrorWith(R"("fp16": {"enabled": true, "enabled": false})"), HasSubstr("fp16.enabled twice"));
  EXPECT_THAT(ErrorWith(R"("bf16": {}, "bfloat16": {})"), HasSubstr("both bf16 and bfloat16"));
  EXPECT_THAT(ErrorWith(R"("x": [{"a": 1, "b": {"a": 1}}, {"a": 1}])"), IsEmpty()) << "in other objects";
}

TEST(DeepSpeedKeys, KeysOfAnotherOptimizerOrSchedulerAreRefused) {
  const auto optimizer = [](const std::string& type, const std::string& params) {
    return ErrorWith(R"("optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}");
  };
  EXPECT_THAT(optimizer("Adam", R"("momentum": 0.9)"),
              HasSubstr("optimizer.params.momentum is nothing that Adam takes"));
  EXPECT_THAT(optimizer("SGD", R"("betas": [0.9, 0.99])"), HasSubstr("optimizer.params.betas is nothing that SGD"));
  EXPECT_THAT(optimizer("SGD", R"("nesterov": true)"), HasSubstr("nesterov needs a momentum"));
  EXPECT_THAT(optimizer("SGD", R"("nesterov": true, "momentum": 0.9)"), IsEmpty());
  EXPECT_THAT(optimizer("Adam", R"("betas": [0.9, 1])"), HasSubstr("less than 1"));
  EXPECT_THAT(optimizer("Adam", R"("lr": "1e-5")"), HasSubstr("no number; write it without quotes"));
  EXPECT_THAT(optimizer("Adam", R"("lr": true)"), HasSubstr("optimizer.params.lr is true, which is no number"));
  EXPECT_THAT(optimizer("Lamb", ""), HasSubstr("optimizer.type is Lamb"));
  EXPECT_THAT(optimizer("adamw", ""), IsEmpty());
  EXPECT_THAT(ErrorWith(R"("scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 9}})"),
              HasSubstr("scheduler.params.total_num_steps is nothing that WarmupLR takes"));
  const auto decay = [](const std::string& params) {
    return ParseDeepSpeedConfig(
               R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {)" + params + "}}}", 1)
        .optimizer.weight_decay;
  };
  EXPECT_EQ(decay(""), 0) << "as DeepSpeed's own";
  EXPECT_EQ(decay(R"("torch_adam": true)"), 0.01) << "as torch's";
  EXPECT_EQ(decay(R"("torch_adam": true, "weight_decay": 0.5)"), 0.5);
}

// As DeepSpeed, which reads some sections with pydantic and takes the rest of the file as it is.
TEST(DeepSpeedKeys, TextsAreTakenForNumbersWhereDeepSpeedDoes) {
  const auto config = ParseDeepSpeedConfig(
      R"({"train_batch_size": 8, // of one process
          "zero_optimization": {"stage": "1", "ignore_unused_parameters": "false"},
          "fp16": {"enabled": 1, "loss_scale": "128.0"}})",
      1);
  EXPECT_EQ(config.zero_optimization.stage, 1);
  EXPECT_FALSE(config.zero_optimization.ignore_unused_parameters);
  EXPECT_TRUE(config.fp16.enabled);
  EXPECT_EQ(config.fp16.loss_scale, 128);
  EXPECT_THAT(ErrorOnOneRank(R"({"train_batch_size": "8"})"),
              HasSubstr("train_batch_size is \"8\", which is no whole number"));
  EXPECT_THAT(ErrorWith(R"("gradient_clipping": "1.0")"), HasSubstr("gradient_clipping"));
  EXPECT_THAT(ErrorWith(R"("fp16": {"enabled": "maybe"})"), HasSubstr("no true or false"));
  EXPECT_THAT(ErrorWith(R"("fp16": {"enabled": "auto"})"), HasSubstr("is \"auto\""));
}

// A value that is off in one type is on in another.
TEST(DeepSpeedKeys, TypesAreThoseOfTheModel) {
  const std::string types = R"("communication_data_type": "bf16", "data_types": {"grad_accum_dtype": "bf16"})";
  EXPECT_THAT(ErrorWith(types), HasSubstr("communication_data_type is \"bf16\""));
  EXPECT_THAT(ErrorWith(types + R"(, "bf16": {"enabled": true})"), IsEmpty());
  const std::string wider = R"("data_types": {"grad_accum_dtype": "fp32"}, "bf16": {"enabled": true})";
  EXPECT_THAT(ErrorWith(R"("gradient_accumulation_steps": 2, )" + wider),
              HasSubstr("data_types.grad_accum_dtype is \"fp32\""));
  EXPECT_THAT(ErrorWith(wider), IsEmpty()) << "one micro batch has nothing to add up";
  EXPECT_THAT(ErrorWith(R"("compression_training": {"a": {"b": {"enabled": false}}})"), IsEmpty());
}

TEST(DeepSpeedKeys, TensorParallelismOverOneRankIsNone) {
  for (const char* none : {"{}", R"({"autotp_size": 0})", R"({"autotp_size": 1})", R"({"tp_overlap_comm": true})"}) {
    EXPECT_THAT(ErrorWith(R"("tensor_parallel": )" + std::string(none)), IsEmpty()) << none;
  }
  EXPECT_THAT(ErrorWith(R"("tensor_parallel": {"autotp_size": 2})"), HasSubstr("use parallelize() with a mesh"));
}

// Whatever letters are changed, the file is parsed, or refused with a message.
TEST(DeepSpeedKeys, ParsingSurvivesAnyDamage) {
  const std::string whole = R"({"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": "128"},
    "optimizer": {"type": "SGD", "params": {"lr": 1e-3, "momentum": 0.9, "nesterov": true}}, "zero_optimization": {
    "stage": 1, "reduce_bucket_size": 5e8}, "scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log"}}})";
  const std::string letters = "{}[]\",:0123456789.-+eEtrufalsn_\\/ x\xff";
  std::mt19937 random(1);
  int refused = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::string text = whole;
    for (int change = 0; change < 1 + trial % 4; ++change)
      text[random() % text.size()] = letters[random() % letters.size()];
    if (trial % 5 == 0) text.erase(random() % text.size(), random() % 40);
    refused += ErrorOnOneRank(text).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace cohort::trainer
