// Other launchers that started this dlaunch several times, and services with more machines than dlaunch can find by
// itself: a smaller world than was meant is refused, never started.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cohort/launcher/base/process_environment.h"

namespace cohort::launcher {

// kInvalidArgument: a launcher of other_launchers.cc, or torchrun, started several processes, each a dlaunch. The
// message names the variables and the remedy. srun's own tasks are not refused here: Slurm's source knows them. Pure.
absl::Status RefuseCopies(const VariableLookup& variable);

// kInvalidArgument: variables say that there are more machines, which no source of nodes can reach (Vertex AI, Volcano,
// Azure Batch, Flux, Slurm without a job's number, a service's number of machines without an index). Asks flux, for two
// seconds at most, where FLUX_URI is set.
absl::Status RefuseUnreachableMachines(const VariableLookup& variable);

// One line where WORLD_SIZE, which ranks get from dlaunch, or NUM_PROCESSES was another number of ranks, or NNODES or
// NUM_NODES another number of nodes; empty otherwise. Pure.
std::string DescribeOtherSize(const VariableLookup& variable, int nodes, int ranks);

// One line where a launcher that tells each process its number, and not how many there are, started this one as the
// first; empty otherwise. RefuseCopies refuses the others. Pure.
std::string DescribeUnknownCopies(const VariableLookup& variable);

// One line where PET_NPROC_PER_NODE, which torchrun takes, is another number than a node's ranks; empty otherwise.
// Pure.
std::string DescribeOtherRanksEach(const VariableLookup& variable, int ranks_each);

}  // namespace cohort::launcher
