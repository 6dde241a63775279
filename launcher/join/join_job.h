// The other side of join/gate.h: this machine becomes a node of a job that runs elsewhere.
#pragma once

#include <chrono>
#include <string>

#include "cohort/launcher/join/token.h"
#include "cohort/runtime/manual/command.h"

namespace cohort::launcher {

// How long machines that come by themselves are waited for, or wait, unless --wait says it.
inline constexpr std::chrono::minutes kJoinWait{10};

struct JoinTarget {
  std::string addresses = {};  // "10.0.0.1:4711,[fd00::1]:4711", or "name:4711"
  JoinKey key{};
  int index = -1;                    // the place that this node has; -1: any
  std::chrono::milliseconds wait{};  // for the first machine to be there
};

// Dials until it answers or the time is over, offers this machine, and then runs an agent of the job to its end.
// Returns the process' exit status: the job's, or kExitLauncher where the job was not reached, or was lost. Prints what
// happens to standard error. Call from the main thread, once, with no other in the process.
int JoinJob(const JoinTarget& target);

runtime::ManualCommand JoinManual();
// `dlaunch join TOKEN [--wait TIME]`; "-" reads the token from standard input. `argv` is main's: the token is
// overwritten, so that it does not stay in lists of processes; those who look before that see it.
int RunJoinCommand(int argc, char** argv);

}  // namespace cohort::launcher
