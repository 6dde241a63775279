// The environment variables that ranks obey; the table is in README.md. This is the only place that reads them.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort::runtime {

struct Environment {
  // COHORT_AGENT: '@' and the abstract name of the agent's socket; set by dlaunch. Empty: no agent.
  std::string agent;
  // COHORT_LOCAL_RANK: which of the node's ranks this is, 0 to 1023; set by dlaunch.
  std::optional<int> local_rank;
  // COHORT_JOB_ID: the job; set by dlaunch. Where it is set and COHORT_AGENT is not, something has removed that one.
  std::string job_id;
  // "OMPI_COMM_WORLD_SIZE=4": a variable by which another launcher says to this process that it started several.
  // Empty: none does. Variables that a single process may inherit, such as SLURM_NTASKS in a batch script, don't count.
  std::string other_launcher;
  // COHORT_ALLOW_SINGLE=1: be a world of one whatever other launchers say.
  bool allow_single = false;
  // COHORT_INIT_TIMEOUT_MS: how long Runtime::Init may take, 1 to 86400000. Overrides RuntimeOptions.
  std::optional<std::chrono::milliseconds> init_timeout;
  // COHORT_UCX_LIBRARY, COHORT_NCCL_LIBRARY, COHORT_CUDA_LIBRARY: path or soname of the library to open instead of the
  // usual one (libucp.so.0, libnccl.so.2, libcudart.so). Empty: the usual one.
  std::string ucx_library;
  std::string nccl_library;
  std::string cuda_library;
  // "NCCL_ALGO=Ring NCCL_PROTO=Simple": NCCL's own variables that are set and must be equal on all ranks.
  std::string nccl_settings;
  // COHORT_TUNING: figures and rules for the choice of algorithms, in the grammar of comm/select/tuning.h. Empty:
  // built-in.
  std::string tuning;

  // COHORT_PORT_RANGE: "FIRST-LAST", the TCP ports on which ranks may listen for data of other nodes. Empty: any.
  std::string port_range;
  // COHORT_DATA_ADDRESS: the address of the interface that carries data between nodes, instead of the route's.
  std::string data_address;
  // COHORT_UCX_ANY_VERSION=1: talk to ranks with another release of UCX, too.
  bool ucx_any_version = false;
  // Names of all variables that begin with UCX_ and are set: the user's wishes, which ours do not replace.
  std::vector<std::string> ucx_variables;

  // Reads them all. kInvalidArgument names the variable, its value and what is allowed. An empty value counts as unset.
  static absl::StatusOr<Environment> Read();
};

}  // namespace cohort::runtime
