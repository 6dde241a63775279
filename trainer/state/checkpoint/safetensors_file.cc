#include "cohort/trainer/state/checkpoint/safetensors_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/json_text.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "nlohmann/json.hpp"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using nlohmann::json;

// Types of the format, some of which a libtorch may lack.
constexpr std::array kFormatTypes = {
    "BOOL", "F4",  "F6_E2M3", "F6_E3M2", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
    "I16",  "U16", "F16",     "BF16",    "I32", "U32", "F32",     "C64",     "F64",     "I64",         "U64"};

struct Entry {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape = {};
  size_t begin = 0;  // bytes of the data
  size_t end = 0;
};

// A number of elements or bytes; false for anything else.
bool WholeNumber(const json& value, uint64_t& number) {
  if (!value.is_number_unsigned()) return false;
  number = value.get<uint64_t>();
  return number < (uint64_t{1} << 62);
}

[[noreturn]] void ThrowNoSafetensors(const std::string& path, const std::string& why) {
  throw DistributedError(absl::StatusCode::kDataLoss, path + " is damaged or no safetensors file: " + why);
}

// Throws for a type that the format has and this libtorch has not: such a file is whole.
void RefuseOtherTypes(const std::string& path, const std::string& name, const json& item) {
  if (!item.is_object() || !item.contains("dtype") || !item["dtype"].is_string()) return;
  const auto type = item["dtype"].get<std::string>();
  if (FindSafetensorsType(type).has_value()) return;
  if (std::find(kFormatTypes.begin(), kFormatTypes.end(), type) == kFormatTypes.end()) return;
  throw DistributedError(absl::StatusCode::kUnimplemented, path + ": tensor " + name.substr(0, 200) + " has the type " +
                                                               type + ", which libtorch " + TORCH_VERSION +
                                                               " has not; convert it to F32 in Python");
}

// Why an entry of the header is none, or empty text. `data_bytes` is the length of the file's data.
std::string ParseEntry(const json& item, size_t data_bytes, Entry& entry) {
  if (!item.is_object() || !item.contains("dtype") || !item.contains("shape") || !item.contains("data_offsets")) {
    return "has no dtype, shape or data_offsets";
  }
  if (!item["dtype"].is_string() || !item["shape"].is_array()) return "has a dtype or shape of another kind";
  const auto type = FindSafetensorsType(item["dtype"].get<std::string>());
  if (!type.has_value()) return "has the unknown type " + item["dtype"].get<std::string>().substr(0, 16);
  entry.type = *type;
  uint64_t bytes = at::elementSize(entry.type), size = 0, begin = 0, end = 0;
  bool empty = false;
  for (const json& dimension : item["shape"]) {
    if (!WholeNumber(dimension, size)) return "has an impossible shape";
    empty = empty || size == 0;
    // Without elements too, the product of the other sizes must be a number: strides are made of it.
    if (__builtin_mul_overflow(bytes, std::max<uint64_t>(size, 1), &bytes) || bytes >= (uint64_t{1} << 62)) {
      return "has an impossible shape";
    }
    entry.shape.push_back(static_cast<int64_t>(size));
  }
  if (empty) bytes = 0;
  const json& offsets = item["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !WholeNumber(offsets[0], begin) || !WholeNumber(offsets[1], end) ||
      begin > end || end > data_bytes || end - begin != bytes) {
    return "has data_offsets that are not its bytes of the file";
  }
  entry.begin = begin;
  entry.end = end;
  return "";
}

// The entries of a header, in the order of their data. As the format demands, they fill it, each byte once.
std::vector<Entry> EntriesOf(const std::string& path, const std::string& head, size_t data_bytes) {
  const auto [header, broken] = ParseJson(head);
  if (!broken.empty()) ThrowNoSafetensors(path, "its header: " + broken);
  if (!header.is_object()) ThrowNoSafetensors(path, "its header is no JSON object");
  std::vector<Entry> entries;
  for (const auto& [name, item] : header.items()) {
    if (name == "__metadata__") continue;
    RefuseOtherTypes(path, name, item);
    Entry entry = {.name = name};
    const std::string why = ParseEntry(item, data_bytes, entry);
    if (!why.empty()) ThrowNoSafetensors(path, "tensor " + name.substr(0, 200) + " " + why);
    entries.push_back(std::move(entry));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  size_t reached = 0;
  for (const Entry& entry : entries) {
    if (entry.begin < reached) ThrowNoSafetensors(path, "tensors share bytes: " + entry.name.substr(0, 200));
    if (entry.begin > reached)
      ThrowNoSafetensors(path, "bytes before " + entry.name.substr(0, 200) + " are no tensor's");
    reached = entry.end;
  }
  if (reached != data_bytes) ThrowNoSafetensors(path, "its last bytes are no tensor's");
  return entries;
}

std::map<std::string, at::Tensor> ReadOneFile(const std::string& path) {
  const std::string text = ReadText(path);
  if (text.size() < 8) ThrowNoSafetensors(path, "it is shorter than 8 bytes");
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= uint64_t{static_cast<unsigned char>(text[i])} << (8 * i);
  if (length > text.size() - 8) ThrowNoSafetensors(path, "its header is longer than the file");
  const size_t data = 8 + length;
  std::map<std::string, at::Tensor> tensors;
  for (const Entry& entry : EntriesOf(path, text.substr(8, length), text.size() - data)) {
    at::Tensor tensor = torch::empty(entry.shape, entry.type);
    if (entry.end > entry.begin) {
      std::memcpy(tensor.data_ptr(), text.data() + data + entry.begin, entry.end - entry.begin);
    }
    tensors.emplace(entry.name, std::move(tensor));
  }
  return tensors;
}

// The file of each tensor, as "model.safetensors.index.json" says it.
std::map<std::string, std::string> WeightMap(const std::string& path) {
  const auto damaged = [&path](const std::string& why) {
    throw DistributedError(absl::StatusCode::kDataLoss, path + " is damaged or no index of safetensors files: " + why);
  };
  const auto [index, broken] = ParseJson(ReadText(path));
  if (!broken.empty()) damaged(broken);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    damaged("it has no weight_map");
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const std::string plain = file.is_string() ? file.get<std::string>() : "";
    if (plain.empty() || plain == "." || plain == ".." || plain.find('/') != std::string::npos) {
      damaged("the file of " + name.substr(0, 200) + " is " + ShortText(file) + ", which is no name of one beside it");
    }
    files[name] = plain;
  }
  return files;
}

std::map<std::string, at::Tensor> ReadShards(const std::string& path) {
  const std::map<std::string, std::string> files = WeightMap(path);
  std::set<std::string> shards;
  for (const auto& [name, file] : files) shards.insert(file);
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& shard : shards) {
    const std::string shard_path = (std::filesystem::path(path).parent_path() / shard).string();
    for (auto& [name, tensor] : ReadOneFile(shard_path)) {
      const auto entry = files.find(name);
      if (entry == files.end() || entry->second != shard) {
        throw DistributedError(absl::StatusCode::kDataLoss,
                               shard_path + " has tensor " + name.substr(0, 200) + ", which " + path + " does not say");
      }
      tensors.emplace(name, std::move(tensor));
    }
  }
  for (const auto& [name, file] : files) {
    if (tensors.contains(name)) continue;
    throw DistributedError(absl::StatusCode::kDataLoss,
                           path + " says that tensor " + name.substr(0, 200) + " is in " + file + ", which has none");
  }
  return tensors;
}

}  // namespace

std::map<std::string, at::Tensor> ReadSafetensors(const std::string& path) {
  return path.ends_with(".json") ? ReadShards(path) : ReadOneFile(path);
}

}  // namespace cohort::trainer
