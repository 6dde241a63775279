// A control group (cgroup v2) of an agent's own for its ranks: whatever they start is in it, and nothing that it does
// to its environment, session or parents takes it out, so that all of it can be killed at once. Only where this
// process' own cgroup may be written: by root outside of containers, and where it was delegated. Nothing is limited by
// it.
//
// The maker of one holds a lock on its folder: an empty one that nobody holds has lost its job, and is removed by the
// next. See the kernel's Documentation/admin-guide/cgroup-v2.rst.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

enum class CgroupVersion {
  kFirst,   // the hierarchy of its controller "cpu"
  kSecond,  // the one hierarchy
};
// The folder of the group that a process is in. `process`: its number, or "self". `root` stands for "/": its
// proc/PROCESS/cgroup and proc/self/mountinfo are read. Empty where there is none, or it is not visible here.
std::string CgroupFolder(const std::string& process, CgroupVersion version, const std::string& root = "/");

// The folder of this process' own cgroup v2. `root` stands for "/": proc/self/mountinfo and proc/self/cgroup are read.
// kUnavailable where there is none, or it is not visible here.
absl::StatusOr<std::string> OwnCgroup(const std::string& root = "/");

// fork into the cgroup whose folder this descriptor is of: moving a process afterwards waits for all CPUs, and what it
// had started by then would stay behind. -1 with errno where that is not possible. The child may only make system
// calls.
pid_t ForkInto(int cgroup);

class Cgroup {
 public:
  // Chooses a name below `parent`, or none where that is empty: then every call does nothing and succeeds.
  explicit Cgroup(const std::string& parent);
  // One that another process has made, or will: its folder(). Only for Kill and Remove.
  static Cgroup Existing(const std::string& folder);

  // Makes it, and below it one to start processes in; again after Kill, since kernels from 6.14 on kill what is started
  // in one that was killed before. Tries that with a process, from the main thread. kUnavailable where it is not
  // permitted or does not work; Kill and Remove may be called all the same.
  absl::Status Make();
  const std::string& folder() const { return folder_; }
  // The descriptor of the one to start processes in, for clone3; -1: there is none.
  int fd() const { return inner_.get(); }

  // SIGKILL to all that is in it, and in those below, until nothing lives there. False when the time was over first.
  bool Kill(std::chrono::milliseconds timeout);
  // The same, and removes it.
  bool Remove(std::chrono::milliseconds timeout);

 private:
  absl::Status MakeOuter();
  absl::Status MakeInner();
  void KillOnce();

  std::string folder_;
  runtime::FileDescriptor outer_;  // of the folder, locked
  runtime::FileDescriptor inner_;
  int made_ = 0;  // below it
};

// Removes the empty ones below `parent` that nobody holds. About 5 us for each that is there.
void RemoveStaleCgroups(const std::string& parent);

}  // namespace cohort::launcher
