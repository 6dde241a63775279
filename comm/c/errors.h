// Errors of the C interface: numbers outside, a text for each thread, and the border that no exception crosses.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "cohort/comm/c/cohort.h"

namespace cohort::comm::c {

// Keeps the text for cohort_last_error in this thread, and returns `status`.
cohort_status Fail(cohort_status status, const std::string& text);
// The same for an error of the layers below. COHORT_OK for an OK status.
cohort_status Fail(const absl::Status& status);
// COHORT_INVALID_ARGUMENT of the function "cohort_" + `function`.
cohort_status Invalid(const char* function, const std::string& text);

// Runs the body of a function of the interface.
template <typename Body>
cohort_status Guarded(const char* function, Body body) noexcept {
  try {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      return Fail(COHORT_RESOURCE_EXHAUSTED, std::string("cohort_") + function + ": no memory");
    } catch (const std::exception& error) {
      return Fail(COHORT_INTERNAL, std::string("cohort_") + function + ": " + error.what());
    } catch (...) {
      return Fail(COHORT_INTERNAL, std::string("cohort_") + function + ": an exception of an unknown type");
    }
  } catch (...) {
    return COHORT_RESOURCE_EXHAUSTED;  // there was no memory for the text
  }
}

}  // namespace cohort::comm::c
