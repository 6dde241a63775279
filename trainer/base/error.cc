#include "cohort/trainer/base/error.h"

namespace cohort::trainer {

void ThrowUnlessOk(const absl::Status& status, const std::string& context) {
  if (status.ok()) return;
  throw DistributedError(status.code(), context + ": " + std::string(status.message()));
}

void ThrowUnlessAllCame(const absl::Status& status, const std::string& context) {
  if (!absl::IsDeadlineExceeded(status) && !absl::IsFailedPrecondition(status)) return ThrowUnlessOk(status, context);
  throw DistributedError(
      status.code(),
      context + ": " + std::string(status.message()) +
          " (Do ranks have different numbers of batches? Then train under trainer/transfer/join.h's Join.)");
}

}  // namespace cohort::trainer
