#include "cohort/launcher/remedies/remedies.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>

#include "absl/strings/cord.h"

namespace cohort::launcher {
namespace {

constexpr char kPayload[] = "cohort.launcher/remedy";  // of a status: the id

constexpr std::string_view kIds[] = {
#define COHORT_REMEDY(id, name) id,
#include "cohort/launcher/remedies/remedies.def"
#undef COHORT_REMEDY
};

std::string WithId(std::string_view text, std::string_view id) {
  return std::string(text).append(" [").append(id).append("]");
}

}  // namespace

std::string_view IdOf(Remedy remedy) { return kIds[static_cast<size_t>(remedy)]; }

absl::Status WithRemedy(Remedy remedy, absl::Status error) {
  error.SetPayload(kPayload, absl::Cord(std::string(IdOf(remedy))));
  return error;
}

absl::Status InvalidArgumentError(Remedy remedy, const std::string& message) {
  return WithRemedy(remedy, absl::InvalidArgumentError(message));
}

absl::Status WithRemedyOf(const absl::Status& cause, absl::Status error) {
  if (const auto id = cause.GetPayload(kPayload)) {
    error.SetPayload(kPayload, *id);
  } else {
    error.ErasePayload(kPayload);
  }
  return error;
}

absl::Status Prefixed(const std::string& before, const absl::Status& cause) {
  return WithRemedyOf(cause, absl::Status(cause.code(), before + std::string(cause.message())));
}

std::string TextOf(const absl::Status& error) {
  const auto id = error.GetPayload(kPayload);
  const std::string message(error.message());
  return id ? WithId(message, std::string(*id)) : message;
}

std::string WithRemedy(Remedy remedy, std::string_view text) { return WithId(text, IdOf(remedy)); }

bool EndsWithRemedy(std::string_view text) {
  const size_t open = text.rfind(" [");
  if (open == std::string_view::npos || !text.ends_with(']')) return false;
  const std::string_view id = text.substr(open + 2, text.size() - open - 3);
  return std::find(std::begin(kIds), std::end(kIds), id) != std::end(kIds);
}

}  // namespace cohort::launcher
