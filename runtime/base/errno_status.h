// System-call errors as absl::Status.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>

#include "absl/status/status.h"

namespace cohort::runtime {

// "No such file or directory"
inline std::string ErrnoText(int error) { return std::generic_category().message(error); }

// `what` failed with `error`: running out of memory, space or descriptors is kResourceExhausted, a missing right is
// kPermissionDenied, a vanished peer kUnavailable, all else kInternal.
inline absl::Status ErrnoStatus(int error, const std::string& what) {
  const std::string text = what + ": " + ErrnoText(error);
  switch (error) {
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(text);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(text);
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN:
    case ESRCH:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace cohort::runtime
