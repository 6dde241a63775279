#include "cohort/trainer/state/checkpoint/safetensors_file.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/base/json_depth.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "nlohmann/json.hpp"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using nlohmann::json;

struct Entry {
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;
  size_t begin = 0;  // bytes of the data
  size_t end = 0;
};

// A number of elements or bytes; false for anything else.
bool WholeNumber(const json& value, uint64_t& number) {
  if (!value.is_number_unsigned()) return false;
  number = value.get<uint64_t>();
  return number < (uint64_t{1} << 62);
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

}  // namespace

std::map<std::string, at::Tensor> ReadSafetensors(const std::string& path) {
  const std::string text = ReadText(path);
  const auto damaged = [&path](const std::string& why) {
    return DistributedError(absl::StatusCode::kDataLoss, path + " is damaged or no safetensors file: " + why);
  };
  if (text.size() < 8) throw damaged("it is shorter than 8 bytes");
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= uint64_t{static_cast<unsigned char>(text[i])} << (8 * i);
  if (length > text.size() - 8) throw damaged("its header is longer than the file");
  const std::string head = text.substr(8, length);
  if (NestsTooDeep(head)) throw damaged("its header is nested too deep");
  const json header = json::parse(head, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) throw damaged("its header is no JSON object");
  const size_t data = 8 + length;
  size_t taken = 0;
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, item] : header.items()) {
    if (name == "__metadata__") continue;
    Entry entry;
    const std::string why = ParseEntry(item, text.size() - data, entry);
    if (!why.empty()) throw damaged("tensor " + name.substr(0, 200) + " " + why);
    taken += entry.end - entry.begin;
    if (taken > text.size() - data) throw damaged("tensors share bytes");
    at::Tensor tensor = torch::empty(entry.shape, entry.type);
    if (entry.end > entry.begin) {
      std::memcpy(tensor.data_ptr(), text.data() + data + entry.begin, entry.end - entry.begin);
    }
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

}  // namespace cohort::trainer
