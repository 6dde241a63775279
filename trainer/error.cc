#include "trainer/error.h"

namespace cohort::trainer {

void ThrowUnlessOk(const absl::Status& status, const std::string& context) {
  if (status.ok()) return;
  throw DistributedError(status.code(), context + ": " + std::string(status.message()));
}

}  // namespace cohort::trainer
