#include "cohort/comm/c/errors.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace cohort::comm::c {
namespace {

// The last error of this thread. It has no destructor: what runs at a thread's or the process' end may make calls.
struct LastError {
  char text[kMostErrorBytes];
};
static_assert(std::is_trivially_destructible_v<LastError>);
constinit thread_local LastError last_error = {};

cohort_status NumberOfCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return COHORT_OK;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kAlreadyExists:
      return COHORT_INVALID_ARGUMENT;
    case absl::StatusCode::kDeadlineExceeded:
      return COHORT_DEADLINE_EXCEEDED;
    case absl::StatusCode::kUnavailable:
      return COHORT_UNAVAILABLE;
    case absl::StatusCode::kAborted:
      return COHORT_ABORTED;
    case absl::StatusCode::kCancelled:
      return COHORT_CANCELLED;
    case absl::StatusCode::kFailedPrecondition:
      return COHORT_FAILED_PRECONDITION;
    case absl::StatusCode::kNotFound:
      return COHORT_NOT_FOUND;
    case absl::StatusCode::kResourceExhausted:
      return COHORT_RESOURCE_EXHAUSTED;
    case absl::StatusCode::kUnimplemented:
      return COHORT_UNIMPLEMENTED;
    default:
      return COHORT_INTERNAL;
  }
}

}  // namespace

cohort_status Fail(cohort_status status, const std::string& text) {
  const size_t bytes = std::min(text.size(), kMostErrorBytes - 1);
  std::memcpy(last_error.text, text.data(), bytes);
  last_error.text[bytes] = '\0';
  return status;
}

cohort_status Fail(const absl::Status& status) {
  return status.ok() ? COHORT_OK : Fail(NumberOfCode(status.code()), std::string(status.message()));
}

std::string TextOf(const BlockNote& note) {
  std::string text = "blocks of " + std::to_string(note.block_bytes) + " bytes";
  if (note.tag != 0) text += ", tag " + std::to_string(note.tag >> 32) + "/" + std::to_string(note.tag & 0xffffffff);
  return text;
}

cohort_status Fail(const absl::Status& status, const BlockNote& note) {
  if (note.block_bytes == 0 || !absl::IsFailedPrecondition(status)) return Fail(status);
  return Fail(COHORT_FAILED_PRECONDITION,
              std::string(status.message()) + "; on this rank the call has " + TextOf(note));
}

cohort_status Invalid(const char* function, const std::string& text) {
  return Fail(COHORT_INVALID_ARGUMENT, std::string("cohort_") + function + ": " + text);
}

}  // namespace cohort::comm::c

const char* cohort_last_error(void) { return cohort::comm::c::last_error.text; }

const char* cohort_status_name(cohort_status status) {
  static constexpr const char* kNames[] = {"ok",
                                           "pending",
                                           "invalid argument",
                                           "invalid handle",
                                           "busy",
                                           "deadline exceeded",
                                           "unavailable",
                                           "aborted",
                                           "cancelled",
                                           "failed precondition",
                                           "not found",
                                           "resource exhausted",
                                           "unimplemented",
                                           "internal error"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == COHORT_INTERNAL + 1);
  return status < 0 || status > COHORT_INTERNAL ? "unknown status" : kNames[status];
}
