// dlaunch itself, once it is known what to run where: starts the agents, prints what the ranks print, passes the user's
// signals on, tells in the end what happened.
#pragma once

#include <string>

#include "launcher/environment/node_source.h"
#include "launcher/options.h"
#include "launcher/placement.h"
#include "launcher/program.h"

namespace cohort::launcher {

struct Job {
  Options options;
  JobNodes nodes;
  Placement placement;
  Program program;
  std::string working_directory;
  std::string log_directory;  // absolute, exists; empty: no files
};

// Runs the job to its end and returns dlaunch's exit status (see options.h). Call from the main thread, once: agents
// end with it. SIGINT, SIGTERM and SIGHUP end the job in order, a second one at once.
int RunJob(const Job& job);

}  // namespace cohort::launcher
