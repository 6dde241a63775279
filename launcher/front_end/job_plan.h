// A job as it was planned, and what the rendezvous gets to know of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/machine/mpi_program.h"
#include "cohort/launcher/machine/placement.h"
#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/options/options.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

struct Job {
  std::string id;  // NewJobId
  Options options;
  JobNodes nodes;
  Placement placement;
  std::vector<MpiLibrary> mpi;        // what each of the options' programs looks as if it used
  std::vector<v1::SpareNode> spares;  // of the last of `nodes`, after those that have ranks
  std::string working_directory;
  std::string log_directory;  // absolute, exists; empty: no files
};

// Whether the job may go on after the loss of some node: another takes its place, it does without, or another agent
// takes over the rendezvous.
bool NodesAreReplaceable(const Job& job);

// The programs of the job. Those that are to be shown have their arguments as they were typed, and no environments.
void AddPrograms(const Job& job, bool to_show, google::protobuf::RepeatedPtrField<v1::RankProgram>* programs);

// How the ranks are served that are MPI programs.
struct ServedMpi {
  bool pmi1 = false;
  v1::JobSpec::Pmix pmix = v1::JobSpec::PMIX_NONE;
};
ServedMpi ServedMpiOf(const Job& job);

// Everything that the rendezvous decides from. On other hosts the ranks' environment begins with what of ours means the
// same there; --env comes after it. Reads this process' environment: call before other threads exist.
v1::JobPlan MakeJobPlan(const Job& job, const std::string& secret, std::chrono::milliseconds join_timeout);

// Tells the agent of node `index` all but the plan and where the rendezvous is. Node 0 hosts it.
v1::NodeStart MakeNodeStart(const Job& job, size_t index, const TlsIdentity& identity);

}  // namespace cohort::launcher
