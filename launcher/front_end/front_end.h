// dlaunch itself, once it is known what to run where: starts the agents, prints what the ranks print, passes the user's
// signals on, tells in the end what happened.
#pragma once

#include "cohort/launcher/front_end/job_plan.h"

namespace cohort::launcher {

// Runs the job to its end and returns dlaunch's exit status (see options.h). Call from the main thread, once: agents
// end with it. SIGINT, SIGTERM and SIGHUP end the job in order, a second one at once; SIGUSR1 and SIGUSR2 are passed on
// to the ranks.
int RunJob(const Job& job);

}  // namespace cohort::launcher
