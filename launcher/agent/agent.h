// `dlaunch agent`, hidden: the process that stands for one node. Lives exactly as long as the job.
//
//   standard input   v1::ToNode messages from dlaunch; its end means that dlaunch is gone: everything ends at once
//   standard output  v1::FromNode messages to dlaunch
//
//   NodeStart ──► [host the rendezvous] ──► join ──► assignment: segment, socket, ranks ──► relay, watch ──►
//   all ranks gone, swept, reported ──► the rendezvous' report ──► end
#pragma once

#include <csignal>

namespace cohort::launcher {

// The parent-death signal of an agent. It is not SIGKILL: the agent then ends its ranks, and also finds processes that
// have left both their group and their environment behind. Schedulers do not send it either.
inline int LauncherGoneSignal() { return SIGRTMIN + 3; }

// With this argument an agent writes kAgentPreamble before its messages: where a remote shell starts it, whose start-up
// files may print something first.
inline constexpr char kAgentPreambleArgument[] = "--preamble";
inline constexpr char kAgentPreamble[] = "\n<cohort agent speaks>\n";

// With this argument an agent's exit status is the job's; kExitLauncher where it never hears how that ended.
inline constexpr char kExitWithJobArgument[] = "--exit-with-job";

// Runs the agent until the job's end. `argc` and `argv` are main's. Returns the process' exit status: 0 also when ranks
// failed, kExitLauncher when the agent itself could not go on.
int RunAgent(int argc, char** argv);

}  // namespace cohort::launcher
