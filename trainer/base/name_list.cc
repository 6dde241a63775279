#include "cohort/trainer/base/name_list.h"

#include <algorithm>

namespace cohort::trainer {

std::string NameList(const std::vector<std::string>& names) {
  constexpr size_t kMost = 20, kMostOfAName = 200;
  if (names.empty()) return "none";
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += (i > 0 ? ", " : "") + names[i].substr(0, kMostOfAName);
  }
  const size_t others = names.size() - std::min(names.size(), kMost);
  if (others > 0) text += " and " + std::to_string(others) + (others == 1 ? " other" : " others");
  return text;
}

std::string NameDifference(const std::vector<std::string>& missing, const std::vector<std::string>& unexpected,
                           const std::string& owner) {
  std::string text;
  if (!missing.empty()) text += "it has no " + NameList(missing) + ", which " + owner + " has";
  if (!unexpected.empty()) {
    text += (text.empty() ? "" : "; ") + ("it has " + NameList(unexpected)) + ", which " + owner + " has not";
  }
  return text;
}

}  // namespace cohort::trainer
