#include "cohort/trainer/adapter/lora_files.h"

#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <system_error>

#include "cohort/runtime/base/whole_file.h"
#include "cohort/trainer/adapter/peft_config.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/name_list.h"
#include "cohort/trainer/base/tensor_buffer.h"
#include "cohort/trainer/base/wrapped_name.h"
#include "cohort/trainer/placement/box_copy.h"
#include "cohort/trainer/placement/placement_table.h"
#include "cohort/trainer/state/checkpoint/checkpoint.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "cohort/trainer/state/checkpoint/safetensors_file.h"
#include "cohort/trainer/transfer/collectives.h"
#include "cohort/trainer/transfer/same_on_all_ranks.h"
#include "nlohmann/json.hpp"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using nlohmann::json;

constexpr const char* kConfigFile = "/adapter_config.json";
constexpr const char* kTensorFile = "/adapter_model.safetensors";
constexpr const char* kPickle = "/adapter_model.bin";
constexpr const char* kPrefix = "base_model.model.";

// The names as a regular expression of Python that fits these layers alone: peft takes a list for endings too.
std::string Expression(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (!text.empty()) text += "|";
    for (const char letter : name) {
      if (std::isalnum(static_cast<unsigned char>(letter)) == 0 && letter != '_') text += '\\';
      text += letter;
    }
  }
  return text;
}

// Keys keep their order: the first of a pattern that fits a layer counts.
nlohmann::ordered_json ConfigJson(const LoraConfig& config) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::object(), alphas = ranks;
  for (const auto& [key, r] : config.rank_pattern) ranks.emplace(key, r);
  for (const auto& [key, alpha] : config.alpha_pattern) alphas.emplace(key, alpha);
  nlohmann::ordered_json targets = config.target_modules;
  if (config.target_modules.size() == 1 && config.target_modules[0] == "all-linear") targets = "all-linear";
  if (config.full_names) targets = Expression(config.target_modules);
  return {{"peft_type", "LORA"},
          {"task_type", nullptr},
          {"base_model_name_or_path", nullptr},
          {"inference_mode", true},
          {"r", config.r},
          {"lora_alpha", config.lora_alpha},
          {"lora_dropout", config.lora_dropout},
          {"use_rslora", config.use_rslora},
          {"rank_pattern", ranks},
          {"alpha_pattern", alphas},
          {"target_modules", targets},
          {"bias", "none"},
          {"fan_in_fan_out", false}};
}

// Makes each matrix this rank's part, and refuses one that is not what its placement says.
void TakeParts(const Lora& lora, const char* who) {
  lora.Reshard();
  for (const auto& [name, parameter] : lora.named_parameters()) {
    const auto placement = Placements().OrWhole(parameter);
    TORCH_CHECK(parameter.sizes() == placement->local_sizes(), who, ": ", name, " has sizes ", parameter.sizes(),
                " here, and its placement says ", at::IntArrayRef(placement->local_sizes()), ": ",
                placement->Describe());
  }
}

// A matrix of the whole model, and this rank's part of it; undefined where another stage of a pipeline has it.
struct Matrix {
  std::vector<int64_t> sizes;
  at::ScalarType type = at::kFloat;
  at::Tensor part = {};
};

// All matrices of the ranks' models by name, equal but for the parts on every rank.
std::map<std::string, Matrix> MatricesOf(const Lora& lora, comm::Communicator* world) {
  std::map<std::string, Matrix> matrices;
  json mine = json::object();
  for (const auto& [name, parameter] : lora.named_parameters()) {
    const std::vector<int64_t>& sizes = Placements().OrWhole(parameter)->sizes();
    matrices[name] = {sizes, parameter.scalar_type(), parameter};
    mine[name] = {{"sizes", sizes}, {"type", static_cast<int>(parameter.scalar_type())}};
  }
  if (world == nullptr || world->size() == 1) return matrices;
  for (const std::string& text : GatherTexts(*world, mine.dump(), "listing the adapters of all ranks")) {
    const json theirs = json::parse(text);
    for (const auto& [name, matrix] : theirs.items()) {
      matrices.try_emplace(name, Matrix{matrix["sizes"], static_cast<at::ScalarType>(matrix["type"].get<int>())});
    }
  }
  return matrices;
}

// The whole of a matrix, whose parts the ranks have, on every rank. Copies are equal, so the greatest is any of them.
at::Tensor Whole(const std::string& name, const Matrix& matrix, comm::Communicator* world) {
  at::Tensor whole = torch::full(matrix.sizes, -std::numeric_limits<float>::infinity(), at::kFloat);
  std::string placed = "none of it is here";
  if (matrix.part.defined()) {
    const auto placement = Placements().OrWhole(matrix.part);
    PutBoxes(matrix.part.detach(), placement->boxes(), whole);
    placed = placement->Describe();
  }
  if (world != nullptr && world->size() > 1 && whole.numel() > 0) {
    ThrowUnlessOk(AllReduce(*world, AsBuffer(whole), AsBuffer(whole), comm::ReduceOp::kMax).Wait(),
                  "gathering an adapter");
  }
  TORCH_CHECK(!at::isneginf(whole).any().item<bool>(), "save_pretrained: no rank of the group has all of ", name, " (",
              placed, "), or it has infinite values; give all ranks that share the model");
  return whole.to(matrix.type);
}

void Write(const std::string& directory, const LoraConfig& config, std::vector<FilePiece>& pieces) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    throw DistributedError(absl::StatusCode::kPermissionDenied, "can't make " + directory + ": " + error.message());
  }
  WriteTensors(directory + kTensorFile, pieces, FilePlace::kAlone, {{"format", "pt"}});
  ThrowUnlessOk(runtime::WriteWholeFile(directory + kConfigFile, ConfigJson(config).dump(2) + "\n", {.durable = true}),
                "writing the adapter's configuration");
}

void Save(const Lora& lora, comm::Communicator* world, const std::string& directory) {
  TORCH_CHECK(!lora.merged(), "save_pretrained: the adapters are merged into the base; call unmerge() first");
  const auto take_parts = [&lora] { TakeParts(lora, "save_pretrained"); };
  if (world == nullptr) {
    take_parts();
  } else {
    TogetherOrNot(*world, "taking the adapters' parts", take_parts);
  }
  std::vector<FilePiece> pieces;
  for (const auto& [name, matrix] : MatricesOf(lora, world)) {
    const at::Tensor whole = Whole(name, matrix, world);
    pieces.push_back({.key = kPrefix + name, .shape = whole.sizes().vec(), .data = whole});
  }
  const auto write = [&] {
    if (world == nullptr || world->rank() == 0) Write(directory, lora.config(), pieces);
  };
  if (world == nullptr) return write();
  TogetherOrNot(*world, "writing the adapters to " + directory, write);
}

// A file's tensors by the names that Lora has for them.
struct AdapterTensors {
  std::map<std::string, at::Tensor> matrices;
  std::string path;
};

// The name of a tensor in the file as Lora names it. Peft's prefix, the parts of wrappers, and the adapter's name,
// which a whole model's state_dict has ("up.lora_A.default.weight"), are taken away.
std::string PlainName(std::string name, std::set<std::string>& adapters) {
  if (name.starts_with(kPrefix)) name.erase(0, std::strlen(kPrefix));
  name = UnwrappedName(name);
  for (const std::string_view wrapper : {"_orig_mod.", "module.", "_orig_mod."}) {
    while (name.starts_with(wrapper)) name.erase(0, wrapper.size());
  }
  for (const std::string part : {".lora_A.", ".lora_B.", ".lora_embedding_A.", ".lora_embedding_B."}) {
    const size_t at = name.find(part);
    if (at == std::string::npos) continue;
    const std::string behind = name.substr(at + part.size());
    const bool embedding = part.find("embedding") != std::string::npos;
    const size_t dot = behind.rfind(".weight");
    const std::string adapter = embedding ? behind : dot == std::string::npos ? "" : behind.substr(0, dot);
    if (adapter.empty()) continue;
    adapters.insert(adapter);
    return name.substr(0, at + part.size() - 1) + (embedding ? "" : ".weight");
  }
  return name;
}

AdapterTensors ReadTensors(const std::string& directory) {
  AdapterTensors read = {.matrices = {}, .path = directory + kTensorFile};
  std::error_code ignored;
  TORCH_CHECK(std::filesystem::exists(read.path, ignored) || !std::filesystem::exists(directory + kPickle, ignored),
              directory,
              " has its matrices as adapter_model.bin, an old form; write them as safetensors in Python: "
              "safetensors.torch.save_file(torch.load(\"adapter_model.bin\"), \"adapter_model.safetensors\")");
  std::set<std::string> adapters;
  for (auto& [name, tensor] : ReadSafetensors(read.path)) {
    TORCH_CHECK(at::isFloatingType(tensor.scalar_type()), read.path, ": ", name, " is of type ", tensor.scalar_type(),
                ", and matrices are of floating-point types");
    const bool first = read.matrices.emplace(PlainName(name, adapters), std::move(tensor)).second;
    TORCH_CHECK(first, read.path, " has ", name, " twice, under names that differ in wrappers or adapters");
  }
  TORCH_CHECK(adapters.size() <= 1, read.path,
              " has several adapters: ", NameList(std::vector<std::string>(adapters.begin(), adapters.end())),
              "; save one of them with peft");
  return read;
}

// The layers that matrices belong to.
std::vector<std::string> LayersOf(const std::vector<std::string>& matrices) {
  std::set<std::string> layers;
  for (const std::string& name : matrices) {
    const size_t at = name.rfind(".lora_");
    if (at != std::string::npos) layers.insert(name.substr(0, at));
  }
  return {layers.begin(), layers.end()};
}

// Whether two scales are the same but for the rounding of their formula.
bool SameScale(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b)); }

using Matrices = std::map<std::string, at::Tensor>;  // by their names in the model

// Reads the matrices of the whole model, and changes no adapter.
Matrices ReadMatrices(const Lora& lora, const std::string& directory) {
  TORCH_CHECK(!lora.merged(), "load_adapter: the adapters are merged into the base; call unmerge() first");
  TakeParts(lora, "load_adapter");  // first: ranks that can't read have shards alike
  const LoraConfig config = ReadLoraConfig(directory);
  for (const std::string& layer : LayersOf(lora.names_of_model())) {
    const LoraConfig there = config.For(layer), here = lora.config().For(layer);
    TORCH_CHECK(there.r == here.r && SameScale(there.scale(), here.scale()), "load_adapter: ", directory, " has r ",
                there.r, " and scale ", there.scale(), ", and the model's adapters have r ", here.r, " and scale ",
                here.scale(), " (", layer, ")");
  }
  auto [matrices, path] = ReadTensors(directory);
  std::vector<std::string> missing, unexpected;
  std::set<std::string> known;
  for (const std::string& name : lora.names_of_model()) {
    known.insert(name);
    if (!matrices.contains(name)) missing.push_back(name);
  }
  for (const auto& [name, matrix] : matrices) {
    if (!known.contains(name)) unexpected.push_back(name);
  }
  const std::string difference = NameDifference(missing, unexpected, "the model");
  TORCH_CHECK(difference.empty(), "load_adapter: ", path, " is of other layers: ", difference,
              "; give Lora the target_modules of the file (ReadLoraConfig)");
  for (const auto& [name, parameter] : lora.named_parameters()) {
    const at::IntArrayRef sizes = Placements().OrWhole(parameter)->sizes();
    const at::Tensor& matrix = matrices.at(name);
    TORCH_CHECK(matrix.sizes() == sizes, "load_adapter: ", name, " in ", path, " has sizes ", matrix.sizes(), ", not ",
                sizes);
  }
  return matrices;
}

void Fill(Lora& lora, const Matrices& matrices) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : lora.named_parameters()) {
    TakeBoxes(matrices.at(name), Placements().OrWhole(parameter)->boxes(), parameter);
  }
}

}  // namespace

void save_pretrained(const Lora& lora, comm::Communicator& world, const std::string& directory) {
  Save(lora, &world, directory);
}

void save_pretrained(const Lora& lora, const std::string& directory) { Save(lora, nullptr, directory); }

LoraConfig ReadLoraConfig(const std::string& directory) {
  const std::string path = directory + kConfigFile;
  const PeftConfig config = ParsePeftConfig(ReadText(path), path);
  LoraConfig read;
  read.r = config.r;
  read.lora_alpha = config.lora_alpha;
  read.lora_dropout = config.lora_dropout;
  read.use_rslora = config.use_rslora;
  read.rank_pattern = config.rank_pattern;
  read.alpha_pattern = config.alpha_pattern;
  read.target_modules = config.target_modules;
  if (!config.by_tensors) return read;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : ReadTensors(directory).matrices) names.push_back(name);
  read.target_modules = LayersOf(names);
  read.full_names = true;
  return read;
}

void load_adapter(Lora& lora, const std::string& directory) { Fill(lora, ReadMatrices(lora, directory)); }

void load_adapter(Lora& lora, comm::Communicator& world, const std::string& directory) {
  Matrices matrices;
  TogetherOrNot(world, "load_adapter", [&] { matrices = ReadMatrices(lora, directory); });
  std::vector<at::Tensor> values;
  for (const auto& [name, values_of_one] : matrices) values.push_back(values_of_one);
  CheckSameValues(world, "load_adapter", values, "give all ranks the same files");
  Fill(lora, matrices);
}

}  // namespace cohort::trainer
