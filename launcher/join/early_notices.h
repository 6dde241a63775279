// A scheduler's notices of a preemption (SIGUSR1, SIGUSR2) that come before a job has started: there is nobody to tell,
// and they must not end the wait for other machines.
#pragma once

namespace cohort::launcher {

// Keeps them from ending this process, from now on: dlaunch, or the agent, takes them once it runs.
void HoldNotices();
// Takes those that have come so far, and says that nobody was told.
void DropNotices();

// "SIGUSR1".
const char* NameOfNotice(int signal);

}  // namespace cohort::launcher
