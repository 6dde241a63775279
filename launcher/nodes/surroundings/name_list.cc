#include "cohort/launcher/nodes/surroundings/name_list.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"

namespace cohort::launcher {

std::vector<std::string> NamesIn(std::string_view text) {
  std::vector<std::string> names;
  // A bracket before an address is part of "[fd00::1]:29500"; around a list it is JSON's.
  for (const absl::string_view word : absl::StrSplit(absl::string_view(text.data(), text.size()),
                                                     absl::ByAnyChar(",; \t\r\n\"'[]"), absl::SkipEmpty())) {
    std::string name(word);
    const bool one_colon = std::count(name.begin(), name.end(), ':') == 1;
    if (one_colon) name.resize(name.find(':'));
    if (!name.empty()) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace cohort::launcher
