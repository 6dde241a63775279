#include "cohort/trainer/base/caught_error.h"

#include <exception>

#include "cohort/trainer/base/error.h"

namespace cohort::trainer {

std::string TextOfCaught() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "something was thrown that is no std::exception";
  }
}

void ThrowCaught(const std::string& context) {
  try {
    throw;
  } catch (const c10::Error&) {
    throw;
  } catch (...) {
    throw DistributedError(absl::StatusCode::kUnknown, context + ": " + TextOfCaught());
  }
}

}  // namespace cohort::trainer
