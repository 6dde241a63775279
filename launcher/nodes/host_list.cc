#include "cohort/launcher/nodes/host_list.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::string_view;

constexpr size_t kMaxHostLength = 255;  // RFC 1035
constexpr size_t kMaxRangeDigits = 9;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

string_view Trim(string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

std::optional<int> ReadNumber(string_view text) {
  if (text.size() > kMaxRangeDigits) return {};
  return ReadWholeNumber(text, 0, std::numeric_limits<int>::max());
}

// Cuts at commas and blanks that are outside of brackets.
absl::StatusOr<std::vector<string_view>> CutIntoPatterns(string_view text) {
  std::vector<string_view> parts;
  size_t begin = 0;
  bool inside = false, named = false;  // named: there is a host since the last comma
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (i < text.size() && (c == '[' || c == ']')) {
      if (inside == (c == '[')) return absl::InvalidArgumentError("its brackets don't match");
      inside = !inside;
    }
    if (inside && i == text.size()) return absl::InvalidArgumentError("a bracket is not closed");
    const bool blank = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (inside || (c != ',' && !blank)) continue;
    if (i > begin) parts.push_back(text.substr(begin, i - begin));
    named = named || i > begin;
    begin = i + 1;
    if (blank) continue;
    if (!named) return InvalidArgumentError(Remedy::kHostList, "a host without a name; look for two commas in a row");
    named = false;
  }
  return parts;
}

// "01-03,7": the texts 01, 02, 03, 7.
absl::StatusOr<std::vector<string>> ExpandRanges(string_view ranges) {
  std::vector<string> texts;
  for (size_t begin = 0; begin <= ranges.size();) {
    const size_t comma = std::min(ranges.find(',', begin), ranges.size());
    const string_view range = ranges.substr(begin, comma - begin);
    begin = comma + 1;
    const size_t dash = range.find('-');
    const string_view low_text = range.substr(0, dash);
    const std::optional<int> low = ReadNumber(low_text);
    const std::optional<int> high = dash == string_view::npos ? low : ReadNumber(range.substr(dash + 1));
    if (!low || !high || *low > *high) {
      return absl::InvalidArgumentError("'[" + string(ranges) + "]' is not a list of ranges such as [1-3,7]");
    }
    if (static_cast<size_t>(*high - *low) + texts.size() >= static_cast<size_t>(kMaxNodes)) {
      return absl::InvalidArgumentError("'[" + string(ranges) + "]' stands for more than " + std::to_string(kMaxNodes) +
                                        " hosts");
    }
    for (int number = *low; number <= *high; ++number) {
      string digits = std::to_string(number);
      if (digits.size() < low_text.size()) digits.insert(0, low_text.size() - digits.size(), '0');
      texts.push_back(std::move(digits));
    }
  }
  return texts;
}

// Every combination of the brackets' contents.
absl::StatusOr<std::vector<string>> ExpandBrackets(string_view pattern) {
  std::vector<string> names = {""};
  while (!pattern.empty()) {
    const size_t open = std::min(pattern.find('['), pattern.size());
    for (string& name : names) name += pattern.substr(0, open);
    pattern.remove_prefix(open);
    if (pattern.empty()) break;
    const size_t close = pattern.find(']');  // there is one: CutIntoPatterns saw to it
    COHORT_ASSIGN_OR_RETURN(const std::vector<string> texts, ExpandRanges(pattern.substr(1, close - 1)));
    pattern.remove_prefix(close + 1);
    if (names.size() * texts.size() > static_cast<size_t>(kMaxNodes)) {
      return absl::InvalidArgumentError("it stands for more than " + std::to_string(kMaxNodes) + " hosts");
    }
    std::vector<string> longer;
    for (const string& name : names) {
      for (const string& text : texts) longer.push_back(name + text);
    }
    names = std::move(longer);
  }
  return names;
}

bool IsAddress6(string_view host) { return host.find(':') != string_view::npos; }

absl::Status CheckHost(string_view host) {
  string_view name = host;
  if (const size_t at = host.find('@'); at != string_view::npos) {
    const string_view user = host.substr(0, at);
    name = host.substr(at + 1);
    const bool fits = !user.empty() && std::all_of(user.begin(), user.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
    });
    if (!fits || user.front() == '-') return absl::InvalidArgumentError("'" + string(user) + "' can't be a user");
  }
  if (name.empty())
    return InvalidArgumentError(Remedy::kHostList, "a host without a name; look for two commas in a row");
  if (name.front() == '-') {
    return absl::InvalidArgumentError("'" + string(name) + "' begins with '-' and could be taken for an option");
  }
  if (name.size() > kMaxHostLength) {
    return absl::InvalidArgumentError("a host name of " + std::to_string(name.size()) + " characters");
  }
  bool six = IsAddress6(name);
  if (six && name.back() == '%') {
    return absl::InvalidArgumentError("'" + string(name) + "' lacks its interface, as in fe80::1%eth0");
  }
  for (const char c : name) {
    const auto u = static_cast<unsigned char>(c);
    if (six && c == '%') {  // the name of an interface follows
      six = false;
      continue;
    }
    const bool fits =
        six ? std::isxdigit(u) != 0 || c == ':' || c == '.' : std::isalnum(u) != 0 || c == '.' || c == '-' || c == '_';
    if (!fits) return absl::InvalidArgumentError("'" + string(name) + "' can't be a host: '" + c + "' is in it");
  }
  return absl::OkStatus();
}

// Returns the place of the number of ranks in "n[1-3]:4" or, as in Slurm's host files, "n1*4"; the end: there is none.
size_t SlotsBegin(string_view text) {
  const size_t brackets_end = text.rfind(']');
  return std::min(text.find_first_of(":*", brackets_end == string_view::npos ? 0 : brackets_end), text.size());
}

}  // namespace

absl::Status HostCollection::AddPattern(string_view text) {
  std::optional<int> slots;
  std::vector<string> names;
  const size_t at = text.find('@');
  const size_t first = at == string_view::npos ? 0 : at + 1;
  const size_t close = text.find(']');
  string_view rest;
  if (text.substr(first).starts_with("[") && IsAddress6(text.substr(0, close))) {
    names = {string(text.substr(0, first)) + string(text.substr(first + 1, close - first - 1))};
    rest = text.substr(close + 1);
  } else if (std::count(text.begin(), text.end(), ':') > 1) {
    names = {string(text)};  // a bare IPv6 address
  } else {
    COHORT_ASSIGN_OR_RETURN(names, ExpandBrackets(text.substr(0, SlotsBegin(text))));
    rest = text.substr(SlotsBegin(text));
  }
  if (!rest.empty()) {
    if (rest.front() == ':' || rest.front() == '*') slots = ReadSlots(rest.substr(1));
    if (!slots) {
      return absl::InvalidArgumentError("'" + string(text) +
                                        "': after the colon comes the number of ranks there, 1 to " +
                                        std::to_string(kMaxRanksPerNode));
    }
  }
  for (const string& name : names) COHORT_RETURN_IF_ERROR(Add(name, slots));
  return absl::OkStatus();
}

absl::Status HostCollection::AddPatterns(string_view text) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<string_view> patterns, CutIntoPatterns(text));
  for (const string_view pattern : patterns) COHORT_RETURN_IF_ERROR(AddPattern(pattern));
  return absl::OkStatus();
}

absl::Status HostCollection::Add(const string& host, std::optional<int> slots) {
  COHORT_RETURN_IF_ERROR(CheckHost(host));
  const auto [place, is_new] = places_.emplace(host, hosts_.size());
  if (is_new) {
    if (hosts_.size() >= static_cast<size_t>(kMaxNodes)) {
      return absl::InvalidArgumentError("more than " + std::to_string(kMaxNodes) + " hosts");
    }
    hosts_.push_back({host, slots});
    return absl::OkStatus();
  }
  HostEntry& known = hosts_[place->second];
  known.slots = known.slots.value_or(1) + slots.value_or(1);
  if (*known.slots <= kMaxRanksPerNode) return absl::OkStatus();
  return absl::InvalidArgumentError("host '" + host + "' stands there for more than " +
                                    std::to_string(kMaxRanksPerNode) + " ranks in all");
}

std::optional<int> ReadSlots(string_view text) {
  const std::optional<int> slots = ReadNumber(text);
  return slots && *slots >= 1 && *slots <= kMaxRanksPerNode ? slots : std::nullopt;
}

absl::StatusOr<std::vector<HostEntry>> ParseHostList(string_view text, const string& origin) {
  if (Trim(text).empty())
    return InvalidArgumentError(Remedy::kNoHosts, origin + ": no hosts; give names separated by commas");
  HostCollection hosts;
  COHORT_RETURN_IF_ERROR(Prefixed(origin + ": ", hosts.AddPatterns(text)));
  return std::move(hosts).Take();
}

absl::StatusOr<std::vector<HostEntry>> ParseNodeFile(string_view text, const string& origin) {
  std::vector<HostEntry> hosts;
  std::set<string> seen;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const string host(Trim(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (host.empty() || !seen.insert(host).second) continue;
    COHORT_RETURN_IF_ERROR(Prefixed(origin + ": ", CheckHost(host)));
    hosts.push_back({host, std::nullopt});
    if (hosts.size() > static_cast<size_t>(kMaxNodes)) {
      return absl::InvalidArgumentError(origin + ": more than " + std::to_string(kMaxNodes) + " hosts");
    }
  }
  if (hosts.empty()) return InvalidArgumentError(Remedy::kNoHosts, origin + ": no hosts in it");
  return hosts;
}

bool NaturalLess(string_view a, string_view b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!IsDigit(a[i]) || !IsDigit(b[j])) {
      if (a[i] != b[j]) return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
      ++i, ++j;
      continue;
    }
    const auto run = [](string_view text, size_t* at) {
      while (*at < text.size() && text[*at] == '0') ++*at;
      const size_t begin = *at;
      while (*at < text.size() && IsDigit(text[*at])) ++*at;
      return text.substr(begin, *at - begin);
    };
    const string_view x = run(a, &i), y = run(b, &j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  if (i < a.size() || j < b.size()) return i >= a.size();
  return a < b;  // differ in leading zeros at most
}

}  // namespace cohort::launcher
