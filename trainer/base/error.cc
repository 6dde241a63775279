#include "cohort/trainer/base/error.h"

namespace cohort::trainer {

void ThrowUnlessOk(const absl::Status& status, const std::string& context) {
  if (status.ok()) return;
  throw DistributedError(status.code(), context + ": " + std::string(status.message()));
}

void ThrowUnlessAllCame(const absl::Status& status, const std::string& context) {
  // A rank that is through with its batches may have ended already.
  const auto says = [&](const char* words) { return status.message().find(words) != absl::string_view::npos; };
  const bool ended = says("exited with code 0") || says("exited with status 0");
  if (!absl::IsDeadlineExceeded(status) && !absl::IsFailedPrecondition(status) && !ended) {
    return ThrowUnlessOk(status, context);
  }
  throw DistributedError(status.code(), context + ": " + std::string(status.message()) +
                                            " (Do ranks have different numbers of batches? Then train under Join of "
                                            "cohort/trainer.h. Or has a rank left out a backward pass that the others "
                                            "run?)");
}

}  // namespace cohort::trainer
