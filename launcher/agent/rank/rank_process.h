// Starting one rank: a new process, made ours for good, that executes the program.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

struct RankCommand {
  std::vector<std::string> argv;  // argv[0] is what the program sees as its name
  std::string path;               // what is executed
  std::vector<std::string> environment;
  std::string working_directory;
  std::vector<int> cpus;  // empty: not bound
  bool reads_input = false;
  int input = -1;      // its standard input, not owned, where it does not get one by RankProcess::input; -1: none
  int inherited = -1;  // another descriptor that it finds open under the same number; -1: none
  int local_rank = 0;  // for its mark (limit_mark.h)
  int cgroup = -1;     // a descriptor of the folder of the one to start in; -1, or not permitted: ours
};

struct RankProcess {
  pid_t pid = -1;                  // also its process group
  runtime::FileDescriptor input;   // write end of its standard input, where it reads one
  runtime::FileDescriptor output;  // read ends of its standard output and error, non-blocking
  runtime::FileDescriptor error;
  runtime::FileDescriptor exec_error;  // see ExecOutcome
};

// Starts it in a process that leads a session of its own, dies with the calling thread (call it from the main
// thread), has default signal handling, reads /dev/null unless it has an input, and inherits no other descriptor but
// `inherited`. Does not wait for the program. kResourceExhausted when there are no descriptors or processes left.
absl::StatusOr<RankProcess> StartRank(const RankCommand& command);

// Whether the program runs (OK), or could not be executed: kNotFound, kPermissionDenied or kInternal with step and
// cause. Nothing while that is not known: exec_error can be read when it is. Never blocks; to be asked no
// more after an answer.
std::optional<absl::Status> ExecOutcome(const RankProcess& process, const RankCommand& command);

// How long the kernel may take, and the status for when it has taken longer: kDeadlineExceeded.
inline constexpr std::chrono::seconds kExecTimeout{30};
absl::Status ExecIsLate(const RankCommand& command, std::chrono::milliseconds limit);

}  // namespace cohort::launcher
