#include "cohort/trainer/adapter/lora.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "cohort/trainer/adapter/lora_files.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/nn/embedding.h"
#include "cohort/trainer/nn/linear.h"
#include "cohort/trainer/state/checkpoint/safetensors_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainer/error_of.h"
#include "tests/trainer/removed_folder.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

template <typename LinearLayer, typename EmbeddingLayer>
struct NetOf : torch::nn::Module {
  NetOf() {
    tokens = register_module("tokens", EmbeddingLayer(11, 6));
    up = register_module("up", LinearLayer(6, 10));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({10})));
    down = register_module("down", LinearLayer(10, 4));
  }
  at::Tensor forward(const at::Tensor& codes) { return down(torch::tanh(norm(up(tokens(codes))))); }
  EmbeddingLayer tokens{nullptr};
  LinearLayer up{nullptr}, down{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
using CohortNet = NetOf<nn::Linear, nn::Embedding>;
using TorchNet = NetOf<torch::nn::Linear, torch::nn::Embedding>;

template <typename Model>
std::shared_ptr<Model> Seeded() {
  torch::manual_seed(7);
  return std::make_shared<Model>();
}

at::Tensor Codes() { return torch::arange(22).remainder(11).view({2, 11}); }

LoraConfig Everything() { return {.r = 3, .lora_alpha = 6, .target_modules = {"tokens", "up", "down"}}; }

// Trains the adapters a little, so that none of their matrices is zero.
template <typename Model>
void Train(Model& model, Lora& lora, int steps = 3) {
  torch::optim::AdamW optimizer(lora.parameters(), torch::optim::AdamWOptions(0.05));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    lora.refresh_weights();
    model.forward(Codes()).pow(2).mean().backward();
    optimizer.step();
  }
  lora.refresh_weights();
}

TEST(Lora, LayersHaveTorchsInitialValues) {
  const auto ours = Seeded<CohortNet>();
  const auto torchs = Seeded<TorchNet>();
  const auto parameters = torchs->named_parameters();
  ASSERT_EQ(ours->named_parameters().keys(), parameters.keys());
  for (const auto& item : ours->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), parameters[item.key()])) << item.key();
  }
  EXPECT_TRUE(torch::equal(ours->forward(Codes()), torchs->forward(Codes())));
}

TEST(Lora, NewAdaptersChangeNothing) {
  const auto model = Seeded<CohortNet>();
  const at::Tensor before = model->forward(Codes());
  const Lora lora(*model, Everything());
  EXPECT_TRUE(torch::equal(model->forward(Codes()), before));
  EXPECT_THAT(lora.adapted(), ElementsAre("tokens", "up", "down"));
  EXPECT_THAT(lora.through_weights(), IsEmpty());
}

TEST(Lora, OnlyRTimesInPlusOutNumbersTrain) {
  const auto model = Seeded<CohortNet>();
  const Lora lora(*model, Everything());
  int64_t trained = 0;
  for (const auto& parameter : model->parameters()) trained += parameter.requires_grad() ? parameter.numel() : 0;
  EXPECT_EQ(trained, 3 * (11 + 6) + 3 * (6 + 10) + 3 * (10 + 4));
  std::vector<std::string> names;
  for (const auto& [name, parameter] : lora.named_parameters()) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("tokens.lora_embedding_A", "tokens.lora_embedding_B", "up.lora_A.weight",
                                 "up.lora_B.weight", "down.lora_A.weight", "down.lora_B.weight"));
}

TEST(Lora, TheBaseModelKeepsItsBits) {
  const auto model = Seeded<CohortNet>();
  const auto before = Seeded<CohortNet>();
  Lora lora(*model, Everything());
  Train(*model, lora);
  lora.merge();
  lora.unmerge();
  const auto now = model->named_parameters();
  for (const auto& item : before->named_parameters()) EXPECT_TRUE(torch::equal(item.value(), now[item.key()]));
}

TEST(Lora, MergedEqualsUnmerged) {
  for (const bool stabilised : {false, true}) {
    const auto model = Seeded<CohortNet>();
    LoraConfig config = Everything();
    config.use_rslora = stabilised;
    Lora lora(*model, config);
    const at::Tensor before = model->forward(Codes());
    Train(*model, lora);
    const at::Tensor unmerged = model->forward(Codes());
    EXPECT_GT((unmerged - before).abs().max().item<double>(), 1e-3);
    lora.merge();
    EXPECT_LE((model->forward(Codes()) - unmerged).abs().max().item<double>(), 1e-5);
    lora.unmerge();
    EXPECT_TRUE(torch::equal(model->forward(Codes()), unmerged));
  }
}

// Each layer computes the formula of the paper.
TEST(Lora, GradientsAreThoseOfTheFormula) {
  const auto model = Seeded<CohortNet>();
  Lora lora(*model, {.r = 2, .lora_alpha = 5, .target_modules = {"up"}});
  Train(*model, lora);
  const auto parameters = model->named_parameters();
  const at::Tensor a = parameters["up.lora_A.weight"], b = parameters["up.lora_B.weight"];
  const at::Tensor weight = parameters["up.weight"].detach() + torch::matmul(b, a) * 2.5;
  const at::Tensor x = model->tokens(Codes());
  const at::Tensor hidden = torch::tanh(model->norm(torch::nn::functional::linear(x, weight, model->up->bias)));
  const auto expected = torch::autograd::grad({model->down(hidden).pow(2).mean()}, {a, b});
  const auto got = torch::autograd::grad({model->forward(Codes()).pow(2).mean()}, {a, b});
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(torch::allclose(got[i], expected[i], 1e-4, 1e-7));
}

TEST(Lora, TorchsOwnLayersTrainThroughTheirWeights) {
  const auto ours = Seeded<CohortNet>();
  const auto torchs = Seeded<TorchNet>();
  Lora lora(*ours, Everything()), other(*torchs, Everything());
  EXPECT_THAT(other.through_weights(), ElementsAre("tokens", "up", "down"));
  Train(*ours, lora);
  Train(*torchs, other);
  EXPECT_TRUE(torch::allclose(ours->forward(Codes()), torchs->forward(Codes()), 1e-4, 1e-5));
  const auto expected = lora.named_parameters(), got = other.named_parameters();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::allclose(got[i].second, expected[i].second, 1e-3, 1e-5)) << got[i].first;
  }
  EXPECT_TRUE(torch::equal(torchs->named_parameters()["up.weight"], Seeded<TorchNet>()->up->weight));
  const at::Tensor unmerged = torchs->forward(Codes());
  other.merge();
  EXPECT_LE((torchs->forward(Codes()) - unmerged).abs().max().item<double>(), 1e-5);
}

TEST(Lora, DropoutIsForTrainingOnly) {
  const auto model = Seeded<CohortNet>();
  LoraConfig config{.r = 3, .lora_dropout = 0.5, .target_modules = {"all-linear"}};
  Lora lora(*model, config);
  Train(*model, lora);
  EXPECT_FALSE(torch::equal(model->forward(Codes()), model->forward(Codes())));
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(Codes()), model->forward(Codes())));
}

TEST(Lora, FloatAdaptersServeABf16Base) {
  const auto model = Seeded<CohortNet>();
  model->to(at::kBFloat16);
  Lora lora(*model, Everything());
  Train(*model, lora);
  EXPECT_EQ(model->forward(Codes()).scalar_type(), at::kBFloat16);
  EXPECT_EQ(lora.parameters().front().scalar_type(), at::kFloat);
}

TEST(Lora, RefusesModulesThatItCannotAdaptAndChangesNothing) {
  const auto model = Seeded<CohortNet>();
  const auto refused = [&](LoraConfig config) { return ErrorOf([&] { Lora lora(*model, std::move(config)); }); };
  EXPECT_THAT(refused({.target_modules = {"up", "middle"}}), HasSubstr("no layer of the model is named middle"));
  EXPECT_THAT(refused({.target_modules = {"up", "middle"}}), HasSubstr("tokens, up, down"));
  EXPECT_THAT(refused({.target_modules = {"norm"}}), HasSubstr("neither a linear layer nor an embedding"));
  EXPECT_THAT(refused({.r = 0}), HasSubstr("r must be positive"));
  EXPECT_THAT(refused({.lora_alpha = std::nan("")}), HasSubstr("finite"));
  EXPECT_THAT(refused({.lora_dropout = 1}), HasSubstr("[0, 1)"));
  EXPECT_THAT(refused({.target_modules = {}}), HasSubstr("empty"));
  for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.requires_grad());
  const Lora lora(*model, {.target_modules = {"up"}});
  EXPECT_THAT(refused({.target_modules = {"up"}}), HasSubstr("has an adapter already"));
  const auto torchs = Seeded<TorchNet>();
  EXPECT_THAT(ErrorOf([&] { Lora other(*torchs, {.lora_dropout = 0.1}); }), HasSubstr("takes no lora_dropout"));
}

TEST(Lora, FilesBringTheAdaptersBack) {
  const RemovedFolder folder;
  const std::string directory = folder.path() + "/deep/adapter";
  const auto model = Seeded<CohortNet>();
  Lora lora(*model, Everything());
  Train(*model, lora);
  save_pretrained(lora, directory);
  const auto tensors = ReadSafetensors(directory + "/adapter_model.safetensors");
  EXPECT_EQ(tensors.size(), 6u);
  EXPECT_TRUE(
      torch::equal(tensors.at("base_model.model.up.lora_A.weight"), model->named_parameters()["up.lora_A.weight"]));
  const LoraConfig config = ReadLoraConfig(directory);
  EXPECT_EQ(config.r, 3);
  EXPECT_EQ(config.lora_alpha, 6);
  EXPECT_THAT(config.target_modules, ElementsAre("tokens", "up", "down"));
  const auto other = Seeded<CohortNet>();
  Lora read(*other, config);
  load_adapter(read, directory);
  EXPECT_TRUE(torch::equal(other->forward(Codes()), model->forward(Codes())));
}

TEST(Lora, RefusesOtherAdaptersAndChangesNothing) {
  const RemovedFolder folder;
  const std::string directory = folder.path() + "/adapter", file = directory + "/adapter_config.json";
  const auto model = Seeded<CohortNet>();
  Lora lora(*model, Everything());
  save_pretrained(lora, directory);
  const auto other = Seeded<CohortNet>();
  Lora few(*other, {.r = 3, .lora_alpha = 6, .target_modules = {"up"}});
  const at::Tensor before = few.parameters().front().clone();
  EXPECT_THAT(ErrorOf([&] { load_adapter(few, directory); }),
              HasSubstr("it has down.lora_A.weight, down.lora_B.weight, tokens.lora_embedding_A, "
                        "tokens.lora_embedding_B, which the model has not"));
  const auto third = Seeded<CohortNet>();
  Lora wide(*third, {.r = 4, .target_modules = {"tokens", "up", "down"}});
  EXPECT_THAT(ErrorOf([&] { load_adapter(wide, directory); }), HasSubstr("has r 3"));
  EXPECT_TRUE(torch::equal(few.parameters().front(), before));
  EXPECT_THAT(ErrorOf([&] { load_adapter(few, folder.path() + "/none"); }), HasSubstr("adapter_config.json"));
  for (const auto& [text, why] : std::map<std::string, std::string>{
           {"{", "no JSON"},
           {R"({"r": "x"})", "r is of another kind"},
           {R"({"r": -1})", "r is not positive"},
           {R"({"peft_type": "IA3"})", "its method is another one"},
           {R"({"use_dora": true})", "use_dora is true: not supported"},
           {R"({"bias": "all"})", "trained biases"},
           {R"({"modules_to_save": ["up"]})", "modules_to_save is [\"up\"]: not supported"},
           {R"({"r": 3, "lora_alpha": 6, "rank_pattern": {"up": 4}})", "has r 4 and scale 1.5"},
           {std::string(100000, '['), "nested too deep"}}) {
    std::ofstream(file) << text;
    EXPECT_THAT(ErrorOf([&] { load_adapter(lora, directory); }), HasSubstr(why)) << text.substr(0, 40);
  }
}

// One layer under two names.
template <typename LinearLayer>
struct Tied : torch::nn::Module {
  Tied() {
    first = register_module("first", LinearLayer(4, 4));
    register_module("again", first);
  }
  LinearLayer first{nullptr};
};

template <typename Model>
void ExpectAdaptedOnce() {
  Model model;
  const Lora lora(model, {.r = 2});
  EXPECT_THAT(lora.adapted(), ElementsAre("first"));
  EXPECT_EQ(lora.parameters().size(), 2);
}

// An embedding whose weight is the head's. The head need not have registered it.
template <typename LinearLayer, typename EmbeddingLayer>
struct TiedNet : torch::nn::Module {
  TiedNet() {
    torch::manual_seed(7);
    tokens = register_module("tokens", EmbeddingLayer(11, 6));
    head = register_module("head", LinearLayer(6, 11));
    head->weight = tokens->weight;
  }
  at::Tensor forward(const at::Tensor& codes) { return head(tokens(codes)); }
  EmbeddingLayer tokens{nullptr};
  LinearLayer head{nullptr};
};

template <typename Model>
void ExpectTiedWeightsStay(const std::vector<std::string>& targets) {
  Model model;
  Lora lora(model, {.r = 3, .lora_alpha = 6, .target_modules = targets});
  Train(model, lora);
  const at::Tensor weight = model.tokens->named_parameters(false)["weight"].detach().clone();
  const at::Tensor before = model.forward(Codes());
  EXPECT_THAT(ErrorOf([&] { lora.merge(); }), HasSubstr("which is also that of"));
  EXPECT_FALSE(lora.merged());
  lora.unmerge();
  EXPECT_TRUE(torch::equal(model.tokens->named_parameters(false)["weight"], weight));
  EXPECT_TRUE(torch::equal(model.forward(Codes()), before));
}

TEST(Lora, DoesNotMergeIntoAWeightThatOthersHave) {
  for (const std::vector<std::string>& targets :
       std::vector<std::vector<std::string>>{{"tokens"}, {"head"}, {"tokens", "head"}}) {
    ExpectTiedWeightsStay<TiedNet<nn::Linear, nn::Embedding>>(targets);
    ExpectTiedWeightsStay<TiedNet<torch::nn::Linear, torch::nn::Embedding>>(targets);
  }
}

// A parameter of a module that is no layer, and a view of a part.
TEST(Lora, FindsSharedWeightsInAnyModule) {
  for (const bool view : {false, true}) {
    const auto model = Seeded<CohortNet>();
    const at::Tensor weight = model->up->weight;
    model->norm->register_parameter("borrowed", view ? weight.detach().narrow(0, 2, 3).t() : weight);
    Lora lora(*model, Everything());
    EXPECT_THAT(ErrorOf([&] { lora.merge(); }), HasSubstr("weight of up, which is also that of norm"));
    Lora other(*Seeded<CohortNet>(), {.target_modules = {"down"}});
    other.merge();
    EXPECT_TRUE(other.merged());
  }
}

TEST(Lora, AdaptsALayerOfTwoNamesOnce) {
  ExpectAdaptedOnce<Tied<nn::Linear>>();
  ExpectAdaptedOnce<Tied<torch::nn::Linear>>();
}

TEST(Lora, LayersMayDifferInRankAndScale) {
  const auto net = Seeded<CohortNet>();
  LoraConfig config = Everything();
  config.rank_pattern = {{"down", 5}, {".*", 2}};
  config.alpha_pattern = {{"^up", 1}};
  Lora lora(*net, config);
  std::map<std::string, int64_t> ranks;
  for (const auto& [name, parameter] : lora.named_parameters()) {
    if (name.find("_A") != name.npos) ranks[name] = parameter.size(0);
  }
  EXPECT_THAT(ranks, ElementsAre(Pair("down.lora_A.weight", 5), Pair("tokens.lora_embedding_A", 2),
                                 Pair("up.lora_A.weight", 2)));
  EXPECT_EQ(config.For("up").scale(), 0.5);
  EXPECT_EQ(config.For("tokens").scale(), 3);
  Train(*net, lora);
  const RemovedFolder folder;
  save_pretrained(lora, folder.path());
  const auto same = Seeded<CohortNet>(), other = Seeded<CohortNet>();
  Lora read(*same, ReadLoraConfig(folder.path())), uniform(*other, Everything());
  load_adapter(read, folder.path());
  EXPECT_TRUE(torch::equal(same->forward(Codes()), net->forward(Codes())));
  EXPECT_THAT(ErrorOf([&] { load_adapter(uniform, folder.path()); }), HasSubstr("(down)"));
  config.rank_pattern = {{"(", 5}};
  EXPECT_THAT(ErrorOf([&] { Lora wrong(*Seeded<CohortNet>(), config); }), HasSubstr("Lora: rank_pattern is keyed by"));
  config.rank_pattern = {{"up", 0}};
  EXPECT_THAT(ErrorOf([&] { Lora wrong(*Seeded<CohortNet>(), config); }), HasSubstr("r must be positive"));
}

}  // namespace
}  // namespace cohort::trainer
