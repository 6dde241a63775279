#include "cohort/comm/select/tuning.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <variant>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {
namespace {

constexpr size_t kMostRules = 256;

using Figure = std::variant<double*, int64_t*, int32_t*>;

// The one list of the table's figures. `visit(name, figure)` returns false to stop.
template <typename Visit>
void ForEachFigure(Tuning& tuning, const Visit& visit) {
  const std::pair<std::string_view, Figure> figures[] = {
      {"local.alpha_us", &tuning.local.alpha_us},
      {"local.message_us", &tuning.local.message_us},
      {"local.gigabytes_s", &tuning.local.gigabytes_s},
      {"local.large_us", &tuning.local.large_us},
      {"local.copied_gigabytes_s", &tuning.local.copied_gigabytes_s},
      {"local.uncached_gigabytes_s", &tuning.local.uncached_gigabytes_s},
      {"local.switch_us", &tuning.local.switch_us},
      {"remote.alpha_us", &tuning.remote.alpha_us},
      {"remote.message_us", &tuning.remote.message_us},
      {"remote.gigabytes_s", &tuning.remote.gigabytes_s},
      {"remote.large_us", &tuning.remote.large_us},
      {"remote.copied_gigabytes_s", &tuning.remote.copied_gigabytes_s},
      {"remote.uncached_gigabytes_s", &tuning.remote.uncached_gigabytes_s},
      {"remote.switch_us", &tuning.remote.switch_us},
      {"remote.cpu_share", &tuning.remote.cpu_share},
      {"direct.access_us", &tuning.direct.access_us},
      {"direct.gigabytes_s", &tuning.direct.gigabytes_s},
      {"direct.uncached_gigabytes_s", &tuning.direct.uncached_gigabytes_s},
      {"window.large_us", &tuning.window.large_us},
      {"window.large_gigabytes_s", &tuning.window.large_gigabytes_s},
      {"window.large_uncached_gigabytes_s", &tuning.window.large_uncached_gigabytes_s},
      {"window.access_us", &tuning.window.direct.access_us},
      {"window.gigabytes_s", &tuning.window.direct.gigabytes_s},
      {"window.uncached_gigabytes_s", &tuning.window.direct.uncached_gigabytes_s},
      {"near.copied_gigabytes_s", &tuning.near.copied_gigabytes_s},
      {"near.large_us", &tuning.near.large_us},
      {"near.gigabytes_s", &tuning.near.gigabytes_s},
      {"near.uncached_gigabytes_s", &tuning.near.uncached_gigabytes_s},
      {"reduce_gigabytes_s", &tuning.reduce_gigabytes_s},
      {"cache_bytes", &tuning.cache_bytes},
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

absl::Status Refuse(size_t position, const std::string& why) {
  return absl::InvalidArgumentError("tuning, position " + std::to_string(position + 1) + ": " + why);
}

std::string Quoted(std::string_view text) { return "\"" + std::string(text.substr(0, 100)) + "\""; }

absl::Status Replace(Tuning& tuning, size_t position, std::string_view name, std::string_view value) {
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
  if (!known) return Refuse(position, "tuning has no figure " + Quoted(name) + "; it has " + names);
  if (!read) {
    return Refuse(position,
                  "figure " + std::string(name) + " needs a positive number below 2^31, not " + Quoted(value));
  }
  return absl::OkStatus();
}

constexpr std::pair<char, int> kSuffixes[] = {{'K', 10}, {'M', 20}, {'G', 30}};

bool ReadSize(std::string_view text, int64_t* size) {
  int shift = 0;
  for (const auto& [letter, bits] : kSuffixes) {
    if (!text.empty() && text.back() == letter) shift = bits;
  }
  if (shift > 0) text.remove_suffix(1);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return false;
  if (number > (std::numeric_limits<int64_t>::max() >> shift) - 1) return false;
  *size = number << shift;
  return true;
}

std::string PrintSize(int64_t size) {
  for (size_t i = std::size(kSuffixes); i-- > 0;) {
    const auto& [letter, bits] = kSuffixes[i];
    if (size > 0 && size % (int64_t{1} << bits) == 0) return std::to_string(size >> bits) + letter;
  }
  return std::to_string(size);
}

absl::Status ReadRange(size_t position, std::string_view text, TuningRule* rule) {
  if (text == "*") return absl::OkStatus();
  const size_t dash = text.find('-');
  const bool whole = dash != std::string_view::npos;
  if (!whole || !ReadSize(text.substr(0, dash), &rule->from) ||
      (dash + 1 < text.size() && !ReadSize(text.substr(dash + 1), &rule->below))) {
    return Refuse(position, "a range of sizes is *, 4K-1M or 4K-, not " + Quoted(text));
  }
  if (rule->from >= rule->below) return Refuse(position, "the range " + Quoted(text) + " is empty");
  return absl::OkStatus();
}

absl::Status ReadLevel(size_t position, std::string_view text, TuningRule* rule) {
  if (text == "local") {
    rule->level = TuningLevel::kLocal;
  } else if (text == "remote") {
    rule->level = TuningLevel::kRemote;
  } else {
    return Refuse(position, "a level is local or remote, not " + Quoted(text));
  }
  return absl::OkStatus();
}

bool FindKind(std::string_view name, CollectiveKind* kind) {
  for (int i = 1; i < kCollectiveKinds; ++i) {
    *kind = static_cast<CollectiveKind>(i);
    if (*kind != CollectiveKind::kSend && *kind != CollectiveKind::kRecv && Name(*kind) == name) return true;
  }
  return false;
}

absl::StatusOr<TuningRule> ReadRule(size_t position, std::string_view name, std::string_view range, size_t value_at,
                                    std::string_view value) {
  TuningRule rule;
  if (!FindKind(name, &rule.kind)) {
    return Refuse(position, "no collective is called " + Quoted(name) + "; use all_reduce, broadcast, barrier, ...");
  }
  COHORT_RETURN_IF_ERROR(ReadRange(position + name.size() + 1, range, &rule));
  const size_t at = value.find('@');
  if (at != std::string_view::npos) {
    COHORT_RETURN_IF_ERROR(ReadLevel(value_at + at + 1, value.substr(at + 1), &rule));
  }
  rule.algorithm = std::string(value.substr(0, at));
  if (FindAlgorithm(rule.kind, rule.algorithm) == nullptr) {
    return Refuse(value_at, std::string(name) + " has no algorithm " + Quoted(rule.algorithm) + "; choose one of " +
                                AlgorithmNames(rule.kind));
  }
  return rule;
}

// A rule without its algorithm: "all_reduce:4K-1M@local".
std::string KeyOf(const TuningRule& rule) {
  std::string text = std::string(Name(rule.kind)) + ":";
  const bool endless = rule.below == std::numeric_limits<int64_t>::max();
  if (rule.from == 0 && endless) {
    text += "*";
  } else {
    text += PrintSize(rule.from) + "-" + (endless ? "" : PrintSize(rule.below));
  }
  if (rule.level != TuningLevel::kBoth) text += rule.level == TuningLevel::kLocal ? "@local" : "@remote";
  return text;
}

std::string PrintRule(const TuningRule& rule) {
  std::string text = KeyOf(rule);
  return text.insert(std::min(text.find('@'), text.size()), "=" + rule.algorithm);
}

// Reads one item into `tuning`, and gives `key` what it sets: the name of a figure, or a rule without its algorithm.
absl::Status ReadItem(Tuning& tuning, size_t position, std::string_view item, std::string* key) {
  const size_t equals = item.find('=');
  if (equals == std::string_view::npos) {
    return Refuse(position, "needs figure=number or collective:range=algorithm, not " + Quoted(item));
  }
  const std::string_view left = item.substr(0, equals);
  const std::string_view right = item.substr(equals + 1);
  const size_t colon = left.find(':');
  if (colon == std::string_view::npos) {
    *key = std::string(left);
    return Replace(tuning, position, left, right);
  }
  COHORT_ASSIGN_OR_RETURN(
      TuningRule rule, ReadRule(position, left.substr(0, colon), left.substr(colon + 1), position + equals + 1, right));
  *key = KeyOf(rule);
  std::erase_if(tuning.rules, [key](const TuningRule& other) { return KeyOf(other) == *key; });  // the base's
  if (tuning.rules.size() >= kMostRules) {
    return Refuse(position, "a table has at most " + std::to_string(kMostRules) + " rules");
  }
  tuning.rules.push_back(std::move(rule));
  return absl::OkStatus();
}

}  // namespace

std::string Tuning::ToString() const {
  std::string text;
  Tuning copy = *this;
  ForEachFigure(copy, [&](std::string_view name, const Figure& figure) {
    text += (text.empty() ? "" : "; ") + std::string(name) + "=" +
            std::visit([](const auto* field) { return Print(*field); }, figure);
    return true;
  });
  for (const TuningRule& rule : rules) text += "; " + PrintRule(rule);
  return text;
}

uint64_t Tuning::Hash() const {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : ToString()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash == 0 ? 1 : hash;
}

absl::StatusOr<Tuning> Tuning::Parse(std::string_view text) { return Parse(text, Tuning()); }

absl::StatusOr<Tuning> Tuning::Parse(std::string_view text, Tuning base) {
  std::map<std::string, size_t> lines;  // of the keys
  size_t line = 1;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of("; ,\n\t\r", begin), text.size());
    if (end > begin) {
      std::string key;
      COHORT_RETURN_IF_ERROR(ReadItem(base, begin, text.substr(begin, end - begin), &key));
      const auto [first, is_new] = lines.emplace(key, line);
      if (!is_new) {
        return Refuse(begin, key + " is given twice, in line " + std::to_string(first->second) + " and in line " +
                                 std::to_string(line) + "; keep one of them");
      }
    }
    if (end < text.size() && text[end] == '\n') ++line;
    begin = end + 1;
  }
  return base;
}

}  // namespace cohort::comm
