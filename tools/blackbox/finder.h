// Finds node segments: open in processes of this machine that the caller may look into.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::blackbox {

struct Found {
  runtime::FileDescriptor fd;  // for reading only
  int holder = 0;              // the pid through which it was found
  std::string job_id;
};

// The segment that a rank or an agent has open. kNotFound: it has none (or is no process); kPermissionDenied: the
// caller may not look.
absl::StatusOr<Found> FindInProcess(int pid);
// Every segment on this machine that the caller may read, each once.
std::vector<Found> FindAll();
// The segments of one job on this machine, by its name or the beginning of it, "job-" left out or not. kNotFound: no
// job that the caller may look into is called so; kInvalidArgument: several are, and which.
absl::StatusOr<std::vector<Found>> FindJob(const std::string& typed);
// Returns the one of `ids`, which may repeat, that `typed` means. Errors as above.
absl::StatusOr<std::string> ResolveJob(const std::vector<std::string>& ids, const std::string& typed);

// "running", "stopped", "traced", "ending", "gone": what the kernel says of a process; "-" for pid 0.
std::string ProcessState(int pid);

}  // namespace cohort::blackbox
