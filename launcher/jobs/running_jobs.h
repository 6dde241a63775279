// The jobs that run on this machine, as their dlaunch answers for them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/v1/job.pb.h"

namespace cohort::launcher {

// The ids of jobs whose dlaunch listens, ascending, from the text of /proc/net/unix. Pure.
std::vector<std::string> FindJobIds(std::string_view proc_net_unix);

// The jobs of this machine, or of its network namespace, now. Only root sees those of other users.
std::vector<std::string> RunningJobIds();

// The ids that start with what the user typed, with or without "job-" before it: none where that is all that was typed,
// or a part of it, since it says nothing of a job.
std::vector<std::string> MatchJobIds(const std::vector<std::string>& ids, const std::string& typed);

// How long a dlaunch that is well may take for an answer.
inline constexpr std::chrono::seconds kAnswerTimeout{5};

// A connection to the dlaunch of a job.
class JobConnection {
 public:
  // kUnavailable: it has ended meanwhile, or takes nobody. kPermissionDenied: it is another user's, and we are not
  // root.
  static absl::StatusOr<JobConnection> Open(const std::string& job_id);

  // Sends one request. kUnavailable: it has ended.
  absl::Status Send(const v1::JobRequest& request);
  // Waits for the answer until the deadline. kPermissionDenied: it refuses, with its reason; kDeadlineExceeded: it is
  // silent (stopped?); kUnavailable: it has ended.
  absl::StatusOr<v1::JobSnapshot> Receive(runtime::Deadline deadline);
  // Both.
  absl::StatusOr<v1::JobSnapshot> Ask(const v1::JobRequest& request, runtime::Deadline deadline);
  // All pages of the answer to this request, which begins with the first: each within kAnswerTimeout.
  absl::StatusOr<v1::JobSnapshot> AskForAll(v1::JobRequest request);
  // True when its dlaunch has ended by the deadline.
  bool WaitForEnd(runtime::Deadline deadline);

  pid_t pid() const { return pid_; }
  // To be polled together with others: readable, look with WaitForEnd.
  int fd() const { return fd_.get(); }

 private:
  std::string Who() const { return "its dlaunch (pid " + std::to_string(pid_) + ")"; }

  runtime::FileDescriptor fd_;
  pid_t pid_ = 0;
};

}  // namespace cohort::launcher
