// Killing everything that a job has started, also what left its rank's process group: every process of ours that
// carries the job's mark in its limits (limit_mark.h) or in the environment it was started with, and orphans that this
// process has adopted.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace cohort::launcher {

// The children of this process, dead ones that were not waited for included.
std::vector<pid_t> ListChildren();

// Whom a sweep leaves alone.
struct Spared {
  std::vector<pid_t> processes;
  // With the groups that these lead, and their descendants; but not what has left the group and lost its parent.
  std::vector<pid_t> families = {};
  bool Contains(pid_t pid) const;
};

// Sends SIGKILL to every process that carries `mark` (NAME=VALUE), except this one and `spared`. Returns how
// many there were (dying ones not counted).
int KillMarked(const std::string& mark, const Spared& spared);

// Sends SIGKILL to every living child of this process except `spared`. Returns how many there were.
int KillChildren(const Spared& spared);

// Repeats both until a pass finds nothing or the time is over: a process may fork while it is being looked for. An
// empty mark is skipped. Reaps dead children that are not spared. True when nothing is left.
bool Sweep(const std::string& mark, const Spared& spared, bool children, std::chrono::milliseconds timeout);

}  // namespace cohort::launcher
