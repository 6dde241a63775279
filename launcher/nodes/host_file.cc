#include "cohort/launcher/nodes/host_file.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::string_view;

constexpr size_t kMostShown = 60;  // characters of a word that is not understood
constexpr size_t kMostGridWords = 4;

enum class Key { kSlots, kMaxSlots, kUser, kIdle };

std::optional<Key> FindKey(string name) {
  static constexpr std::pair<string_view, Key> kKeys[] = {
      {"slots", Key::kSlots},    {"slot", Key::kSlots},         {"count", Key::kSlots},        {"cpu", Key::kSlots},
      {"cpus", Key::kSlots},     {"max_slots", Key::kMaxSlots}, {"slots_max", Key::kMaxSlots}, {"user", Key::kUser},
      {"username", Key::kUser},  {"user_name", Key::kUser},     {"binding", Key::kIdle},       {"ifname", Key::kIdle},
      {"map", Key::kIdle},       {"boards", Key::kIdle},        {"sockets", Key::kIdle},       {"cores", Key::kIdle},
      {"slot_list", Key::kIdle}, {"cpu_set", Key::kIdle}};
  std::replace(name.begin(), name.end(), '-', '_');
  const auto* const found =
      std::find_if(std::begin(kKeys), std::end(kKeys), [&](const auto& known) { return known.first == name; });
  return found == std::end(kKeys) ? std::nullopt : std::optional<Key>(found->second);
}

// The words of a line; an '=' is a word of its own, whatever blanks are around it.
std::vector<string> WordsOf(string_view line) {
  std::vector<string> words;
  const std::vector<string> parts = absl::StrSplit(string(line), absl::ByAnyChar(" \t\r\v\f"), absl::SkipEmpty());
  for (const string_view part : parts) {
    size_t begin = 0;
    for (size_t i = 0; i <= part.size(); ++i) {
      if (i < part.size() && part[i] != '=') continue;
      if (i > begin) words.emplace_back(part.substr(begin, i - begin));
      if (i < part.size()) words.emplace_back("=");
      begin = i + 1;
    }
  }
  return words;
}

absl::Status Invalid(const string& text) { return absl::InvalidArgumentError(text); }

string Quoted(const string& word) { return "'" + Printable(word, kMostShown) + "'"; }

absl::Status WrongSlots(const string& key, const string& value) {
  return Invalid(key + "=" + Printable(value, kMostShown) + ": give a number of ranks, 1 to " +
                 std::to_string(kMaxRanksPerNode) + (value == "0" ? ", or leave the host out" : ""));
}

absl::Status Unknown(const string& key) {
  if (key == "port")
    return InvalidArgumentError(Remedy::kHostFilePort, "port= is not taken here; name it in --ssh \"ssh -p PORT\"");
  return InvalidArgumentError(
      Remedy::kHostFileKey,
      Quoted(key) +
          " is not known in a list of hosts; known are slots=, max_slots=, user=, and a number of ranks behind "
          "the host as in a:4 or a 4");
}

// All that a line says of its hosts.
struct Facts {
  std::optional<int> slots, most;
  string user;
};

// Reads words[at] = words[at + 2].
absl::Status ReadKey(const std::vector<string>& words, size_t at, Facts* facts, std::vector<string>* idle_keys) {
  const string& name = words[at];
  const std::optional<Key> key = FindKey(name);
  if (!key) return Unknown(name);
  if (at + 2 >= words.size() || words[at + 2] == "=") return Invalid(name + "= has no value");
  const string& value = words[at + 2];
  if (*key == Key::kUser) {
    if (!facts->user.empty()) return Invalid("there are two users: " + facts->user + " and " + Quoted(value));
    facts->user = value;
  } else if (*key == Key::kIdle) {
    if (std::find(idle_keys->begin(), idle_keys->end(), name) == idle_keys->end()) idle_keys->push_back(name);
  } else {
    std::optional<int>& number = *key == Key::kSlots ? facts->slots : facts->most;
    if (number) return Invalid(name + "= is there twice");
    number = ReadSlots(value);
    if (!number) return WrongSlots(name, value);
  }
  return absl::OkStatus();
}

// "4 all.q@a UNDEFINED", behind the host.
absl::Status ReadGridWords(const std::vector<string>& words, Facts* facts) {
  const bool all_digits = words[1].find_first_not_of("0123456789") == string::npos;
  if (!all_digits) return Unknown(words[1]);
  if (words.size() > kMostGridWords) return Unknown(words[kMostGridWords]);
  facts->slots = ReadSlots(words[1]);
  return facts->slots ? absl::OkStatus() : WrongSlots("the number behind the host", words[1]);
}

// Words of other files, and of lists relative to an allocation.
absl::Status CheckBeginning(const std::vector<string>& words) {
  const string& first = words[0];
  if (first == "=" || (words.size() > 1 && words[1] == "="))
    return Invalid("the line has no host before its first '='");
  if (first == "rank" && words.size() > 2) {
    return InvalidArgumentError(Remedy::kHostFileRanks,
                                "this is a rank file; give a list of hosts, and see --rank-order and --bind");
  }
  if (first.front() == '+') {
    return InvalidArgumentError(
        Remedy::kHostFileAllocation,
        Quoted(first) +
            " counts nodes of an allocation; name the host, or leave the list out in the job of a "
            "scheduler, whose nodes are then taken");
  }
  if (first.front() == '^')
    return InvalidArgumentError(Remedy::kHostFileExclusion,
                                Quoted(first) + " leaves a host out; remove its other line instead");
  return absl::OkStatus();
}

absl::Status AddLine(string_view line, HostCollection* hosts, std::vector<string>* idle_keys) {
  const std::vector<string> words = WordsOf(line);
  if (words.empty()) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(CheckBeginning(words));
  Facts facts;
  const bool has_keys = words.size() > 2 && words[2] == "=";
  if (words.size() > 1 && !has_keys) COHORT_RETURN_IF_ERROR(ReadGridWords(words, &facts));
  for (size_t i = 1; has_keys && i < words.size(); i += 3) {
    if (words[i] == "=" || i + 1 >= words.size() || words[i + 1] != "=") return Unknown(words[i]);
    COHORT_RETURN_IF_ERROR(ReadKey(words, i, &facts, idle_keys));
  }
  HostCollection own;  // the hosts of this line
  COHORT_RETURN_IF_ERROR(own.AddPatterns(words[0]));
  for (const HostEntry& entry : std::move(own).Take()) {
    if (entry.slots && facts.slots)
      return InvalidArgumentError(Remedy::kHostFileTwice,
                                  Quoted(words[0]) + " has two numbers of ranks; leave one out");
    if (!facts.user.empty() && entry.host.find('@') != string::npos) {
      return InvalidArgumentError(Remedy::kHostFileTwice, Quoted(entry.host) + " has two users; leave one out");
    }
    std::optional<int> slots = entry.slots ? entry.slots : facts.slots;
    if (facts.most && slots.value_or(1) > *facts.most) {
      return Invalid("slots=" + std::to_string(*slots) + " is above max_slots=" + std::to_string(*facts.most));
    }
    if (!slots) slots = facts.most;
    COHORT_RETURN_IF_ERROR(hosts->Add((facts.user.empty() ? "" : facts.user + "@") + entry.host, slots));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HostFile> ParseHostFile(string_view text, const string& origin) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // a byte order mark
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    return InvalidArgumentError(Remedy::kHostFileUtf16, origin + ": it is written in UTF-16; save it as UTF-8");
  }
  HostFile file;
  HostCollection hosts;
  int number = 0;
  const std::vector<string> lines = absl::StrSplit(string(text), '\n');
  for (const string_view line : lines) {
    ++number;
    const absl::Status added = AddLine(line.substr(0, line.find('#')), &hosts, &file.idle_keys);
    if (added.ok()) continue;
    return Prefixed(origin + " line " + std::to_string(number) + ": ", added);
  }
  file.hosts = std::move(hosts).Take();
  if (file.hosts.empty())
    return InvalidArgumentError(Remedy::kNoHosts, origin + ": no hosts in it; write one on each line");
  return file;
}

}  // namespace cohort::launcher
