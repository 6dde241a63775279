// Adapters that Python's peft wrote (make_peft_corpus.py) compute here what they compute there, or are refused by the
// name of the setting.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "cohort/trainer/adapter/lora.h"
#include "cohort/trainer/adapter/lora_files.h"
#include "cohort/trainer/nn/embedding.h"
#include "cohort/trainer/nn/linear.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "cohort/trainer/state/checkpoint/safetensors_file.h"
#include "cohort/trainer/state/load_state_dict.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainer/error_of.h"
#include "tests/trainer/removed_folder.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const std::string kCorpus = COHORT_PEFT_CORPUS;

struct BlockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::tanh(up(x))); }
  nn::Linear up = register_module("up", nn::Linear(4, 6)), down = register_module("down", nn::Linear(6, 4));
};
TORCH_MODULE(Block);

// The model of the script.
struct ScriptNet : torch::nn::Module {
  at::Tensor forward(const at::Tensor& codes) {
    at::Tensor x = tokens(codes);
    for (const auto& layer : *layers) x = layer->as<BlockImpl>()->forward(x);
    return up(x);
  }
  nn::Embedding tokens = register_module("tokens", nn::Embedding(11, 4));
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList(Block(), Block()));
  nn::Linear up = register_module("up", nn::Linear(4, 3));
};

const std::map<std::string, at::Tensor>& Outputs() {
  static const auto outputs = ReadSafetensors(kCorpus + "/outputs.safetensors");
  return outputs;
}

std::shared_ptr<ScriptNet> Base() {
  const auto net = std::make_shared<ScriptNet>();
  load_state_dict(*net, Outputs(), {.prefix = "base."});
  net->eval();
  return net;
}

at::Tensor ScriptCodes() { return torch::arange(22).remainder(11).view({2, 11}); }

// Writes the adapter again, and reads what was written.
at::Tensor WrittenAgain(const Lora& lora) {
  const RemovedFolder folder;
  save_pretrained(lora, folder.path());
  const auto net = Base();
  Lora other(*net, ReadLoraConfig(folder.path()));
  EXPECT_EQ(other.adapted(), lora.adapted());
  load_adapter(other, folder.path());
  net->eval();
  return net->forward(ScriptCodes());
}

TEST(PeftCorpus, ComputesWhatPeftComputes) {
  int cases = 0;
  for (const auto& [name, expected] : Outputs()) {
    if (!name.starts_with("output.")) continue;
    SCOPED_TRACE(name);
    const std::string directory = kCorpus + "/" + name.substr(7);
    const auto net = Base();
    Lora lora(*net, ReadLoraConfig(directory));
    load_adapter(lora, directory);
    net->eval();
    const at::Tensor output = net->forward(ScriptCodes());
    EXPECT_TRUE(torch::allclose(output, expected, 1e-5, 1e-6)) << (output - expected).abs().max();
    EXPECT_TRUE(torch::equal(WrittenAgain(lora), output));
    lora.merge();
    EXPECT_TRUE(torch::allclose(net->forward(ScriptCodes()), expected, 1e-4, 1e-5));
    ++cases;
  }
  EXPECT_GE(cases, 16);
}

TEST(PeftCorpus, RefusesConfigurationsThatItCannotCompute) {
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("refused_")) continue;
    EXPECT_THAT(ErrorOf([&] { ReadLoraConfig(entry.path().string()); }), HasSubstr(": " + name.substr(8) + " is "));
    ++cases;
  }
  EXPECT_GE(cases, 8);
}

// A copy of the case "list" whose tensors `change` has changed.
template <typename Change>
std::string ErrorOfTensors(const Change& change) {
  const RemovedFolder folder;
  const std::string config = folder.path() + "/adapter_config.json";
  fs::copy_file(kCorpus + "/list/adapter_config.json", config);
  auto tensors = ReadSafetensors(kCorpus + "/list/adapter_model.safetensors");
  change(tensors);
  std::vector<FilePiece> pieces;
  for (const auto& [name, tensor] : tensors) {
    pieces.push_back({.key = name, .shape = tensor.sizes().vec(), .data = tensor});
  }
  WriteTensors(folder.path() + "/adapter_model.safetensors", pieces, FilePlace::kAlone);
  const auto net = Base();
  Lora lora(*net, ReadLoraConfig(folder.path()));
  return ErrorOf([&] { load_adapter(lora, folder.path()); });
}

TEST(PeftCorpus, NamesEveryTensorThatIsWrong) {
  using Tensors = std::map<std::string, at::Tensor>;
  const std::string up = "base_model.model.up.lora_A.weight", down = "base_model.model.layers.1.down.lora_B.weight";
  EXPECT_EQ(ErrorOfTensors([](Tensors&) {}), "");
  EXPECT_THAT(ErrorOfTensors([&](Tensors& tensors) {
                tensors.erase(up);
                tensors.erase(down);
                tensors["base_model.model.side.lora_A.weight"] = torch::ones({2, 4});
                tensors["base_model.model.tokens.weight"] = torch::ones({11, 4});
              }),
              AllOf(HasSubstr("has no layers.1.down.lora_B.weight, up.lora_A.weight, which the model has"),
                    HasSubstr("it has side.lora_A.weight, tokens.weight, which the model has not")));
  EXPECT_THAT(ErrorOfTensors([&](Tensors& tensors) { tensors[up] = torch::ones({3, 4}); }),
              HasSubstr("up.lora_A.weight in "));
  EXPECT_THAT(ErrorOfTensors([&](Tensors& tensors) { tensors[up] = torch::ones({2, 4}, at::kInt); }),
              HasSubstr("is of type Int"));
  EXPECT_THAT(ErrorOfTensors([&](Tensors& tensors) {
                tensors["base_model.model.up.lora_A.other.weight"] = torch::ones({2, 4});
                tensors["base_model.model.up.lora_B.default.weight"] = torch::ones({3, 2});
                tensors.erase(up);
                tensors.erase("base_model.model.up.lora_B.weight");
              }),
              HasSubstr("has several adapters: default, other"));
}

TEST(PeftCorpus, SaysHowToConvertAPickle) {
  const RemovedFolder folder;
  fs::copy_file(kCorpus + "/list/adapter_config.json", folder.path() + "/adapter_config.json");
  std::ofstream(folder.path() + "/adapter_model.bin") << "PK";
  const auto net = Base();
  Lora lora(*net, ReadLoraConfig(folder.path()));
  EXPECT_THAT(ErrorOf([&] { load_adapter(lora, folder.path()); }), HasSubstr("save_file(torch.load("));
}

}  // namespace
}  // namespace cohort::trainer
