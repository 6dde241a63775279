// The sentinel: a tiny process beside each agent, in a session of its own, that does nothing until the agent is gone,
// however it went. Then it kills what the agent has left behind and ends. It never outlives the job.
#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/process/process_watch.h"

namespace cohort::launcher {

// Its process' name.
inline constexpr char kSentinelName[] = "dlaunch-watch";

class Sentinel {
 public:
  // `mark`: the variable (NAME=VALUE) that all of this agent's ranks carry. Call from the agent's main thread.
  // `cgroup`, where they are all started as well, is killed and removed in the end.
  Sentinel(std::string mark, Cgroup* cgroup);
  // Lets it sweep once more, and waits for its end (two seconds at most).
  ~Sentinel();
  Sentinel(const Sentinel&) = delete;
  Sentinel& operator=(const Sentinel&) = delete;

  // Forks it, the first time before there are threads; again after its death, as a program of its own (RunSentinel),
  // since a copy of a process with threads may do nothing but system calls. False when the system gives no process; the
  // job can go on without.
  bool Start();
  // It has ended, which it does not do by itself while the agent lives: starts another, ten times at the most. Returns
  // words for people if no other runs, once.
  std::optional<std::string> OnEnded(int wait_status);
  pid_t pid() const { return pid_; }
  // Whether it runs at this moment, and so will sweep.
  bool watches() const;
  // The cgroup is there: the sentinel starts its keeper (keeper.h). Later calls do nothing.
  void OnCgroupMade();
  // Its process groups: killed at the end as well, whatever their members' environment.
  void AddGroup(pid_t group);
  // The group's leader has ended, or will soon: from now on its number belongs to it only as long as others of it are
  // there, and may then be given to somebody else's.
  void LeaderEnded(pid_t group);
  // Whenever children were reaped: takes out groups of which nothing is left. (A process that nobody has waited for
  // keeps its group's number.)
  void ForgetEmptyGroups();
  // All that would be killed.
  const std::set<pid_t>& groups() const { return groups_; }

 private:
  void Tell(pid_t value);

  std::string mark_;
  Cgroup* cgroup_;
  // The process that started us: a pidfd. None where the kernel has none (before Linux 5.3): should that process be
  // killed while this agent is stopped, the agent then stays until it goes on.
  runtime::FileDescriptor launcher_;
  runtime::FileDescriptor output_;  // the agent's standard output at its start
  std::set<pid_t> groups_;
  std::vector<pid_t> leaderless_;  // of those
  bool started_ = false;
  bool cgroup_made_ = false;
  int restarts_ = 0;
  pid_t pid_ = -1;
  runtime::ProcessWatch watch_;
  runtime::FileDescriptor pipe_;  // its end is how the sentinel sees ours
};

// Whether these are main's arguments in a sentinel that was begun as a program, and its life then.
bool IsSentinelCommand(int argc, char** argv);
[[noreturn]] void RunSentinel(int argc, char** argv);

}  // namespace cohort::launcher
