#include "cohort/launcher/agent/mpi/pmix/published_value.h"

#include <charconv>
#include <cstdint>
#include <cstring>

namespace cohort::launcher {
namespace {

constexpr char kText = 't';
constexpr char kBytes = 'b';

}  // namespace

// "NAMESPACE\nRANK\nt...": a text, or b for bytes.
std::optional<std::string> PublishedValue::Write(const pmix_proc_t& rank, const pmix_value_t& value) {
  std::string text(rank.nspace, ::strnlen(rank.nspace, PMIX_MAX_NSLEN));
  text += "\n" + std::to_string(rank.rank) + "\n";
  if (value.type == PMIX_STRING && value.data.string != nullptr) return text + kText + value.data.string;
  if (value.type != PMIX_BYTE_OBJECT || value.data.bo.bytes == nullptr) return std::nullopt;
  return text + kBytes + std::string(value.data.bo.bytes, value.data.bo.size);
}

bool PublishedValue::Parse(const std::string& name, const std::string& text) {
  const size_t first = text.find('\n'), second = text.find('\n', first == std::string::npos ? first : first + 1);
  if (second == std::string::npos || second + 1 >= text.size() || first > PMIX_MAX_NSLEN) return false;
  const auto [end, error] = std::from_chars(text.data() + first + 1, text.data() + second, data_.proc.rank);
  if (error != std::errc() || end != text.data() + second) return false;
  text.copy(data_.proc.nspace, first);
  name.copy(data_.key, PMIX_MAX_KEYLEN);
  value_ = text.substr(second + 2);
  const bool is_text = text[second + 1] == kText;
  data_.value.type = is_text ? PMIX_STRING : PMIX_BYTE_OBJECT;
  if (is_text) {
    data_.value.data.string = value_.data();
  } else {
    data_.value.data.bo = {value_.data(), value_.size()};
  }
  return true;
}

}  // namespace cohort::launcher
