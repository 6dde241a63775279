#include "cohort/trainer/adapter/lora_files.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>

#include "cohort/runtime/base/whole_file.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/json_depth.h"
#include "cohort/trainer/base/tensor_buffer.h"
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
constexpr const char* kPrefix = "base_model.model.";

[[noreturn]] void ThrowDamaged(const std::string& path, const std::string& why) {
  throw DistributedError(absl::StatusCode::kDataLoss, path + " is damaged: " + why);
}

json ConfigJson(const LoraConfig& config) {
  json targets = config.target_modules;
  if (config.target_modules.size() == 1 && config.target_modules[0] == "all-linear") targets = "all-linear";
  return {{"peft_type", "LORA"},
          {"task_type", nullptr},
          {"base_model_name_or_path", nullptr},
          {"inference_mode", true},
          {"r", config.r},
          {"lora_alpha", config.lora_alpha},
          {"lora_dropout", config.lora_dropout},
          {"use_rslora", config.use_rslora},
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

// A member of the configuration, of the kind of `fallback`, which stands for one that is absent or null.
template <typename Value>
Value Member(const json& config, const char* key, const Value& fallback, const std::string& path) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return fallback;
  try {
    return found->get<Value>();
  } catch (const json::exception&) {
    ThrowDamaged(path, std::string(key) + " is of another kind: " + found->dump().substr(0, 100));
  }
}

// Refuses settings of peft's LoraConfig that ours cannot express.
void RefuseOtherKinds(const json& config, const std::string& path) {
  TORCH_CHECK(Member<std::string>(config, "peft_type", "LORA", path) == "LORA", path,
              " is of another method: ", config["peft_type"].dump().substr(0, 100));
  for (const char* key : {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora"}) {
    TORCH_CHECK(!Member<bool>(config, key, false, path), path, ": ", key, " is not supported");
  }
  TORCH_CHECK(Member<std::string>(config, "bias", "none", path) == "none", path, ": trained biases are not supported");
  for (const char* key : {"rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication", "target_parameters",
                          "trainable_token_indices"}) {
    const auto found = config.find(key);
    TORCH_CHECK(found == config.end() || found->is_null() || found->empty(), path, ": ", key, " is not supported");
  }
}

// Whether two scales are the same but for the rounding of their formula.
bool SameScale(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b)); }

using Matrices = std::map<std::string, at::Tensor>;  // by their names in the file

// Reads the matrices of the whole model, and changes no adapter.
Matrices ReadMatrices(const Lora& lora, const std::string& directory) {
  TORCH_CHECK(!lora.merged(), "load_adapter: the adapters are merged into the base; call unmerge() first");
  TakeParts(lora, "load_adapter");  // first: ranks that can't read have shards alike
  const LoraConfig config = ReadLoraConfig(directory);
  TORCH_CHECK(config.r == lora.config().r && SameScale(config.scale(), lora.config().scale()),
              "load_adapter: ", directory, " has r ", config.r, " and scale ", config.scale(),
              ", and the model's adapters have r ", lora.config().r, " and scale ", lora.config().scale());
  const std::string path = directory + kTensorFile;
  Matrices matrices = ReadSafetensors(path);
  for (const auto& [name, parameter] : lora.named_parameters()) {
    const auto found = matrices.find(kPrefix + name);
    TORCH_CHECK(found != matrices.end(), "load_adapter: ", path, " has no ", kPrefix, name);
    const at::IntArrayRef sizes = Placements().OrWhole(parameter)->sizes();
    TORCH_CHECK(found->second.sizes() == sizes, "load_adapter: ", name, " in ", path, " has sizes ",
                found->second.sizes(), ", not ", sizes);
  }
  TORCH_CHECK(matrices.size() == lora.matrices_of_model(), "load_adapter: ", path, " has ", matrices.size(),
              " matrices, and the model's adapters have ", lora.matrices_of_model(),
              "; give Lora the target_modules of the file");
  return matrices;
}

void Fill(Lora& lora, const Matrices& matrices) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : lora.named_parameters()) {
    TakeBoxes(matrices.at(kPrefix + name), Placements().OrWhole(parameter)->boxes(), parameter);
  }
}

}  // namespace

void save_pretrained(const Lora& lora, comm::Communicator& world, const std::string& directory) {
  Save(lora, &world, directory);
}

void save_pretrained(const Lora& lora, const std::string& directory) { Save(lora, nullptr, directory); }

LoraConfig ReadLoraConfig(const std::string& directory) {
  const std::string path = directory + kConfigFile;
  const std::string text = ReadText(path);
  if (NestsTooDeep(text)) ThrowDamaged(path, "it is nested too deep");
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) ThrowDamaged(path, "it is no JSON object");
  RefuseOtherKinds(config, path);
  LoraConfig read;
  read.r = Member<int64_t>(config, "r", 8, path);
  read.lora_alpha = Member<double>(config, "lora_alpha", 8, path);
  read.lora_dropout = Member<double>(config, "lora_dropout", 0, path);
  read.use_rslora = Member<bool>(config, "use_rslora", false, path);
  const auto targets = config.find("target_modules");
  if (targets != config.end() && targets->is_string()) {
    read.target_modules = {targets->get<std::string>()};
  } else {
    read.target_modules = Member<std::vector<std::string>>(config, "target_modules", {}, path);
  }
  if (read.r <= 0) ThrowDamaged(path, "r is not positive");
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
