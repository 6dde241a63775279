// The keeper: a process that kills an agent's cgroup and removes it, and its folder, when the agent is gone. It is
// there for the case that dlaunch, agent and sentinel are all killed at the same instant.
//
// The sentinel forks it when the agent has made a cgroup: the sentinel has no threads, so the copy is whole and small,
// and a job without a cgroup has no keeper and pays nothing. It waits for the agent's end alone, not for the
// sentinel's: killing a cgroup twice does no harm, and a sentinel that is stopped then holds nothing up.
//
// It shares nothing by which others are killed with theirs: it has its own session, process group, name and command
// line (without "dlaunch"), ignores what a terminal or scheduler sends, and is outside of the job's cgroup. One
// descriptor, a pidfd of the agent, is all that it holds (none before Linux 5.3), so nobody waits for it.
//
// A second sentinel could do the same, and would also sweep by /proc. But each job would pay for it, and one write
// kills a cgroup, where a sweep has to be told of groups and must look at every process of the machine.
//
// A keeper whose sentinel was killed keeps watch as the agent's child, beside that of the next sentinel. The agent's
// next sweep ends it.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/runtime/process/process_watch.h"

namespace cohort::launcher {

// The name and the whole command line of its process.
inline constexpr char kKeeperName[] = "cohort-keeper";

// The keeper as its parent sees it: for a process without threads, the agent's child.
class Keeper {
 public:
  // `agent` must be this process' parent. `cgroup` is used by name only. `address`: the agent's, for its folder.
  Keeper(pid_t agent, std::string address, Cgroup* cgroup)
      : agent_(agent), address_(std::move(address)), cgroup_(cgroup) {}
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // Forks it. Does nothing if the agent is gone or the system gives no process.
  void Start();
  // The keeper has ended, which it does not do by itself while the agent lives: forks another, ten times at most.
  void OnEnded();
  // The keeper's process, or none where there is no keeper.
  const runtime::ProcessWatch& watch() const { return watch_; }
  pid_t pid() const { return pid_; }
  // Ends it, and waits for that. The cgroup is not touched.
  void End();

 private:
  [[noreturn]] void Guard(runtime::ProcessWatch* agent);

  const pid_t agent_;
  const std::string address_;
  Cgroup* const cgroup_;
  int restarts_ = 0;
  pid_t pid_ = -1;
  runtime::ProcessWatch watch_;
};

}  // namespace cohort::launcher
