// Exit statuses of dlaunch.
#pragma once

namespace cohort::launcher {

// Exit statuses of dlaunch itself. Otherwise it is the failed rank's, or 128 + n after signal n.
inline constexpr int kExitNoSuchJob = 1;        // of commands about running jobs
inline constexpr int kExitUsage = 2;            // the command line can't work; nothing was started
inline constexpr int kExitPreempted = 75;       // EX_TEMPFAIL of sysexits.h: run it again
inline constexpr int kExitLauncher = 125;       // dlaunch or an agent failed; the message says how
inline constexpr int kExitNotExecutable = 126;  // as in a shell
inline constexpr int kExitNotFound = 127;       // as in a shell

}  // namespace cohort::launcher
