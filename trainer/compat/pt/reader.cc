#include "cohort/trainer/compat/pt/reader.h"

#include <algorithm>
#include <map>
#include <utility>

#include "cohort/trainer/compat/pt/error.h"

namespace cohort::trainer::pt {
namespace {

void CheckStorages(const StoredTensor& tensor, std::map<std::string, std::string>& types) {
  for (const StoredTensor& part : tensor.parts) CheckStorages(part, types);
  if (tensor.layout != StoredTensor::Layout::kStrided) return;
  const auto [known, is_new] = types.emplace(tensor.storage.key, tensor.storage.type);
  if (known->second != tensor.storage.type) {
    Refuse("its storage ", tensor.storage.key, " has both the type torch.", known->second, " and torch.",
           tensor.storage.type);
  }
}

// The bytes of what has a byte order and a sign of its own.
size_t PartBytes(const std::string& type) {
  const auto element = static_cast<size_t>(ElementBytes(type));
  return IsComplex(type) ? element / 2 : element;
}

void SwapBytes(std::string& bytes, size_t part) {
  for (size_t i = 0; i + part <= bytes.size(); i += part) {
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(i), bytes.begin() + static_cast<std::ptrdiff_t>(i + part));
  }
}

// Floating point in little-endian order, whose sign is the last bit.
void Negate(std::string& bytes, size_t part, size_t first, size_t step) {
  for (size_t i = first * part; i + part <= bytes.size(); i += step * part) {
    bytes[i + part - 1] = static_cast<char>(bytes[i + part - 1] ^ '\x80');
  }
}

bool HasSign(const std::string& type) { return IsComplex(type) || type.starts_with("float") || type == "bfloat16"; }

}  // namespace

Reader::Reader(const std::string& path) : file_(path), source_(OpenSource(file_)) {
  contents_ = TensorsOf(source_->root());
  std::map<std::string, std::string> types;
  for (const auto& [name, tensor] : contents_.tensors) {
    CheckStorages(tensor, types);
    if ((tensor.negative && !HasSign(tensor.type)) || (tensor.conjugate && !IsComplex(tensor.type))) {
      Refuse("tensor \"", name, "\" of type torch.", tensor.type, " is stored as its conjugate or negative");
    }
  }
}

std::string Reader::NameOfElements(const StoredTensor& tensor) const {
  std::string name = tensor.storage.key;
  if (tensor.conjugate || tensor.negative || source_->big_endian()) {
    name += "/" + tensor.type + (tensor.conjugate ? "/conj" : "") + (tensor.negative ? "/neg" : "");
  }
  return name;
}

std::string Reader::Elements(const StoredTensor& tensor) {
  std::string bytes = source_->Read(tensor.storage);
  const size_t part = PartBytes(tensor.type);
  if (source_->big_endian()) SwapBytes(bytes, part);
  if (tensor.negative) Negate(bytes, part, 0, 1);
  if (tensor.conjugate) Negate(bytes, part, 1, 2);
  return bytes;
}

}  // namespace cohort::trainer::pt
