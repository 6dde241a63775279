// Describes the job that this dlaunch runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "cohort/launcher/front_end/agent_processes.h"
#include "cohort/launcher/front_end/job_plan.h"
#include "cohort/launcher/jobs/live_view.h"
#include "cohort/v1/job.pb.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

struct RunningJob {
  const Job* job = nullptr;
  std::string id;
  std::chrono::system_clock::time_point started;
  bool ending = false;
  std::string cause;  // of its end, or of its latest restart; empty: nothing has failed
  size_t restarts = 0;
  JobMembers members;
  std::vector<std::string> spares;  // nodes held idle
  const AgentProcesses* agents = nullptr;
};

// Everything but nodes, ranks, stacks and the end.
v1::JobSnapshot TakeSnapshot(const RunningJob& running);
// The nodes from `first_node` on, `most` of them; with the first the names of some spares.
void AddNodes(const RunningJob& running, size_t first_node, size_t most, v1::JobSnapshot* snapshot);
v1::JobNode DescribeNode(const v1::NodePlacement& node);
// Shortens names and the cause, and drops a long command, so that the snapshot of a job, its nodes, and a page of ranks
// fits into a packet.
void FitIntoPacket(v1::JobSnapshot* snapshot);

}  // namespace cohort::launcher
