#include "cohort/launcher/remedies/remedies.h"

#include <utility>

namespace cohort::launcher {
namespace {

constexpr std::pair<std::string_view, std::string_view> kRemedies[] = {
#define COHORT_REMEDY(id, words) {id, words},
#include "cohort/launcher/remedies/remedies.def"
#undef COHORT_REMEDY
};

}  // namespace

std::string_view RemedyOf(std::string_view message) {
  for (const auto& [id, words] : kRemedies) {
    if (message.find(words) != std::string_view::npos) return id;
  }
  return "";
}

std::string WithRemedy(std::string message) {
  const std::string_view id = RemedyOf(message);
  if (id.empty() || message.ends_with('\n')) return message;
  return message.append(" [").append(id).append("]");
}

}  // namespace cohort::launcher
