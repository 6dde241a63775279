#include "comm/tuning.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <variant>

namespace cohort::comm {
namespace {

using Figure = std::variant<double*, int64_t*, int32_t*>;

// The one list of the table's figures. `visit(name, figure)` returns false to stop.
template <typename Visit>
void ForEachFigure(Tuning& tuning, const Visit& visit) {
  const std::pair<std::string_view, Figure> figures[] = {
      {"local.alpha_us", &tuning.local.alpha_us},
      {"local.message_us", &tuning.local.message_us},
      {"local.gigabytes_s", &tuning.local.gigabytes_s},
      {"remote.alpha_us", &tuning.remote.alpha_us},
      {"remote.message_us", &tuning.remote.message_us},
      {"remote.gigabytes_s", &tuning.remote.gigabytes_s},
      {"reduce_gigabytes_s", &tuning.reduce_gigabytes_s},
      {"switch_us", &tuning.switch_us},
      {"fanout_bytes", &tuning.fanout_bytes},
      {"local_piece_bytes", &tuning.local_piece_bytes},
      {"remote_piece_bytes", &tuning.remote_piece_bytes},
      {"max_pieces", &tuning.max_pieces},
  };
  for (const auto& [name, figure] : figures) {
    if (!visit(name, figure)) return;
  }
}

// Shortest text that reads back as the same value.
template <typename T>
std::string Print(T value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

template <typename T>
bool Read(std::string_view text, T* value) {
  T read = {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), read);
  if (error != std::errc() || end != text.data() + text.size() || !(read > 0)) return false;
  if (static_cast<double>(read) > static_cast<double>(std::numeric_limits<int32_t>::max())) return false;
  *value = read;
  return true;
}

absl::Status Replace(Tuning& tuning, std::string_view name, std::string_view value) {
  bool known = false;
  bool read = false;
  std::string names;
  ForEachFigure(tuning, [&](std::string_view candidate, const Figure& figure) {
    names += (names.empty() ? "" : ", ") + std::string(candidate);
    if (candidate != name) return true;
    known = true;
    read = std::visit([&](auto* field) { return Read(value, field); }, figure);
    return false;
  });
  if (!known) {
    return absl::InvalidArgumentError("tuning has no figure \"" + std::string(name) + "\"; it has " + names);
  }
  if (!read) {
    return absl::InvalidArgumentError("tuning figure " + std::string(name) + " needs a positive number, not \"" +
                                      std::string(value) + "\"");
  }
  return absl::OkStatus();
}

}  // namespace

std::string Tuning::ToString() const {
  std::string text;
  Tuning copy = *this;
  ForEachFigure(copy, [&](std::string_view name, const Figure& figure) {
    text += (text.empty() ? "" : " ") + std::string(name) + "=" +
            std::visit([](const auto* field) { return Print(*field); }, figure);
    return true;
  });
  return text;
}

uint64_t Tuning::Hash() const {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : ToString()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash == 0 ? 1 : hash;
}

absl::StatusOr<Tuning> Tuning::Parse(std::string_view text) {
  Tuning tuning;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(" ,\n\t"), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) {
      return absl::InvalidArgumentError("tuning needs name=value, not \"" + std::string(word) + "\"");
    }
    absl::Status status = Replace(tuning, word.substr(0, equals), word.substr(equals + 1));
    if (!status.ok()) return status;
  }
  return tuning;
}

}  // namespace cohort::comm
