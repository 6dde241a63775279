// Where node segments are: open in processes of this machine that the caller may look into.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/file_descriptor.h"

namespace cohort::blackbox {

struct Found {
  runtime::FileDescriptor fd;  // for reading only
  int holder = 0;              // the pid through which it was found
  std::string job_id;
};

// The segment that a rank or an agent has open. kNotFound: it has none (or is no process); kPermissionDenied: the
// caller may not look.
absl::StatusOr<Found> FindInProcess(int pid);
// Every segment on this machine that the caller may read, each once. With `job_id` not empty only those of that job.
std::vector<Found> FindAll(const std::string& job_id);

// "running", "stopped", "traced", "ending", "gone": what the kernel says of a process; "-" for pid 0.
std::string ProcessState(int pid);

}  // namespace cohort::blackbox
