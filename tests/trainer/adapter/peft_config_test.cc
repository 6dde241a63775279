#include "cohort/trainer/adapter/peft_config.h"

#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "c10/util/Exception.h"
#include "cohort/trainer/adapter/layer_pattern.h"
#include "cohort/trainer/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainer/error_of.h"

namespace cohort::trainer {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

PeftConfig ParsedPeft(const json& file) { return ParsePeftConfig(file.dump(), "file"); }

std::string PeftErrorOf(const std::string& text) {
  return ErrorOf([&] { ParsePeftConfig(text, "file"); });
}

json Plain() { return {{"peft_type", "LORA"}, {"r", 4}, {"target_modules", {"up"}}}; }

bool Equal(const PeftConfig& a, const PeftConfig& b) {
  return a.r == b.r && a.lora_alpha == b.lora_alpha && a.lora_dropout == b.lora_dropout &&
         a.use_rslora == b.use_rslora && a.rank_pattern == b.rank_pattern && a.alpha_pattern == b.alpha_pattern &&
         a.target_modules == b.target_modules && a.by_tensors == b.by_tensors;
}

// Every field of the table, with a value that is not peft's default.
TEST(PeftConfig, FieldsHaveTheEffectThatTheTableSays) {
  for (const ConfigKey& field : PeftFields()) {
    const std::string name(field.path);
    SCOPED_TRACE(name);
    json file = Plain();
    file[name] = json::parse(field.example);
    if (field.use == KeyUse::kRefused) {
      EXPECT_THAT(PeftErrorOf(file.dump()), HasSubstr("file: " + name + " is "));
      EXPECT_THAT(PeftErrorOf(file.dump()), HasSubstr(std::string(field.remedy)));
      file[name] = field.off.empty() ? json() : json::parse(field.off);
      EXPECT_TRUE(Equal(ParsedPeft(file), ParsedPeft(Plain())));
      continue;
    }
    const bool changes = !Equal(ParsedPeft(file), ParsedPeft(Plain()));
    // The pattern says nothing but where layers_to_transform counts, which the tensors show.
    EXPECT_EQ(changes, field.use == KeyUse::kApplied && name != "layers_pattern");
  }
}

TEST(PeftConfig, ThePageDescribesEveryField) {
  std::ifstream file(COHORT_PEFT_PAGE);
  std::stringstream text;
  text << file.rdbuf();
  for (const ConfigKey& field : PeftFields()) {
    EXPECT_THAT(text.str(), HasSubstr("`" + std::string(field.path) + "`"));
  }
}

TEST(PeftConfig, AdaptersOfAnotherBaseAreRefused) {
  const auto with = [](const json& initialisation) {
    json file = Plain();
    file["init_lora_weights"] = initialisation;
    return PeftErrorOf(file.dump());
  };
  for (const json& same : {json(true), json(false), json(), json("gaussian"), json("orthogonal"), json("eva")}) {
    EXPECT_EQ(with(same), "");
  }
  for (const char* other : {"pissa", "pissa_niter_16", "olora", "loftq", "corda", "lora_ga", "mica", "newer"}) {
    EXPECT_THAT(with(other), HasSubstr(std::string("init_lora_weights is \"") + other + "\""));
    EXPECT_THAT(with(other), HasSubstr("path_initial_model_for_weight_conversion"));
  }
}

TEST(PeftConfig, UnknownFieldsAreRefusedUnlessTheySayNothing) {
  const auto with = [](const std::string& more) {
    return PeftErrorOf(R"({"r": 4, "target_modules": ["up"], )" + more + "}");
  };
  EXPECT_EQ(with(R"("newer": null, "other": false, "list": [], "map": {}, "text": "")"), "");
  EXPECT_THAT(with(R"("newer": {"a": 1})"), HasSubstr("file: newer is {\"a\":1}, and peft's LoRA has no such setting"));
  EXPECT_THAT(with(R"("newer": 0)"), HasSubstr("newer is 0"));
  EXPECT_THAT(with(R"("use_rs_lora": true)"), HasSubstr("did you mean use_rslora?"));
  EXPECT_THAT(with(R"("use_rslora": true, "use_rslora": false)"), HasSubstr("use_rslora twice"));
}

TEST(PeftConfig, ValuesAreOfTheirKinds) {
  for (const char* wrong : {R"({"r": "8"})", R"({"r": true})", R"({"r": 8.5})", R"({"lora_alpha": "16"})",
                            R"({"lora_alpha": true})", R"({"use_rslora": 1})", R"({"target_modules": 3})",
                            R"({"target_modules": [3]})", R"({"target_modules": {"up": 1}})"}) {
    EXPECT_THAT(PeftErrorOf(wrong), HasSubstr("of another kind")) << wrong;
  }
  EXPECT_THAT(PeftErrorOf(R"({"r": 0})"), HasSubstr("r is not positive"));
  EXPECT_THAT(PeftErrorOf("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(PeftErrorOf("{\"r\": "), HasSubstr("no JSON"));
}

TEST(PeftConfig, LayersChosenByExpressionsAreThoseOfTheTensors) {
  EXPECT_FALSE(ParsedPeft(Plain()).by_tensors);
  EXPECT_THAT(ParsedPeft(Plain()).target_modules, ElementsAre("up"));
  for (const char* more :
       {R"({"target_modules": ".*up"})", R"({"target_modules": null})", R"({"target_modules": "all-linear"})",
        R"({"target_modules": ["up"], "exclude_modules": "x"})",
        R"({"target_modules": ["up"], "layers_to_transform": 0})",
        R"({"target_modules": ["up"], "layers_to_transform": [1, 2]})"}) {
    EXPECT_TRUE(ParsePeftConfig(more, "file").by_tensors) << more;
  }
}

TEST(PeftConfig, PatternsKeepTheOrderOfTheFile) {
  const auto config =
      ParsePeftConfig(R"({"rank_pattern": {"up": 2, "down": 3, "b": 4}, "alpha_pattern": {"z": 1.5, "a": 2}})", "file");
  EXPECT_THAT(config.rank_pattern, ElementsAre(Pair("up", 2), Pair("down", 3), Pair("b", 4)));
  EXPECT_THAT(config.alpha_pattern, ElementsAre(Pair("z", 1.5), Pair("a", 2)));
  for (const char* wrong : {R"({"rank_pattern": ["up"]})", R"({"rank_pattern": {"up": 2.5}})",
                            R"({"rank_pattern": {"up": null}})", R"({"alpha_pattern": {"up": "2"}})"}) {
    EXPECT_THAT(PeftErrorOf(wrong), HasSubstr("of another kind")) << wrong;
  }
  EXPECT_THAT(PeftErrorOf(R"({"rank_pattern": {"up": 0}})"), HasSubstr("rank_pattern of up is not positive"));
  EXPECT_THAT(PeftErrorOf(R"({"rank_pattern": {"(?!down).*": 2}})"),
              HasSubstr("file: rank_pattern is keyed by \"(?!down).*\", an expression that is not understood"));
}

// The answers of re.match(rf"(.*\.)?({key})$", name) in Python.
TEST(LayerPattern, PatternsMatchAsInPeft) {
  for (const auto& [key, name] :
       std::vector<std::pair<std::string, std::string>>{{"up", "up"},
                                                        {"up", "layers.0.up"},
                                                        {"0.up", "layers.0.up"},
                                                        {"layers.0.up", "layersx0.up"},
                                                        {"up|down", "a.down"},
                                                        {"layers\\.\\d+\\.up", "layers.12.up"},
                                                        {"^layers.*up", "layers.0.up"},
                                                        {"(?:q|k)_proj", "h.3.k_proj"},
                                                        {"[qk]_proj$", "h.3.q_proj"},
                                                        {".*", "anything"},
                                                        {"u{1,2}p", "x.uup"},
                                                        {"a*?u??p", "x.up"},
                                                        {"", "layers."}}) {
    EXPECT_TRUE(FitsLayer(key, name)) << key << " " << name;
    CheckLayerPattern(key, "");
  }
  for (const auto& [key, name] : std::vector<std::pair<std::string, std::string>>{{"up", "layers.0.upper"},
                                                                                  {"up", "group"},
                                                                                  {"up", "layers.0.up.lora"},
                                                                                  {"^up", "layers.up"},
                                                                                  {"0.up", "10.up"},
                                                                                  {"[qk]_proj", "h.3.v_proj"},
                                                                                  {"layers\\.\\d\\.up", "layers.12.up"},
                                                                                  {"", "layers"}}) {
    EXPECT_FALSE(FitsLayer(key, name)) << key << " " << name;
  }
  for (const char* key :
       {"(?<!a)b", "(?P<n>a)", "\\bup", "(up", "a**", "a*+", "a+?*", "a*??", "[[:alpha:]]", "\\", "gr\u00fcn"}) {
    EXPECT_THROW(CheckLayerPattern(key, ""), c10::Error) << key;
    EXPECT_FALSE(FitsLayer(key, "up")) << key;
  }
  EXPECT_FALSE(FitsLayer("(a*)*b", std::string(200, 'a'))) << "and needs no time to say so";
}

// Whatever letters are changed, the file is parsed, or refused with a message.
TEST(PeftConfig, SurvivesAnyDamage) {
  const std::string whole = R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16.0, "target_modules": ["up", "down"],
    "init_lora_weights": true, "layers_to_transform": [1, 2], "rank_pattern": {"up": 3}, "use_rslora": false, "bias": "none"})";
  const std::string letters = "{}[]\",:0123456789.-+eEtrufalsn_\\/ x\xff";
  std::mt19937 random(1);
  int refused = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::string text = whole;
    for (int change = 0; change < 1 + trial % 4; ++change)
      text[random() % text.size()] = letters[random() % letters.size()];
    if (trial % 5 == 0) text.erase(random() % text.size(), random() % 40);
    refused += PeftErrorOf(text).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace cohort::trainer
