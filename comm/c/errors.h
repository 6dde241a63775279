// Errors of the C interface: numbers outside, a text for each thread, and the border that no exception crosses.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "cohort/comm/c/cohort.h"

namespace cohort::comm::c {

// The bytes that are kept of an error's text, with its end.
inline constexpr size_t kMostErrorBytes = 4096;

// Keeps the text for cohort_last_error in this thread, and returns `status`.
cohort_status Fail(cohort_status status, const std::string& text);
// The same for an error of the layers below. COHORT_OK for an OK status.
cohort_status Fail(const absl::Status& status);

// The blocks of a call that the layers below move as bytes, by a tag that stands for their size and the caller's tag.
struct BlockNote {
  int64_t block_bytes = 0;  // 0: a call of other elements
  uint64_t tag = 0;         // the caller's
};
// "blocks of 24 bytes, tag 7/3"
std::string TextOf(const BlockNote& note);
// The same, with the note where members' calls did not match.
cohort_status Fail(const absl::Status& status, const BlockNote& note);

// COHORT_INVALID_ARGUMENT of the function "cohort_" + `function`.
cohort_status Invalid(const char* function, const std::string& text);

// A thread that is cancelled (pthread_cancel) within a call ends behind it: no frame of the library is unwound.
class CancelledLater {
 public:
  CancelledLater() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~CancelledLater() { pthread_setcancelstate(before_, nullptr); }
  CancelledLater(const CancelledLater&) = delete;
  CancelledLater& operator=(const CancelledLater&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

// Runs the body of a function of the interface.
template <typename Body>
cohort_status Guarded(const char* function, Body body) noexcept {
  const CancelledLater later;
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
