// The environment variables that ranks obey. README.md has the table. Only this file's implementation reads them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::runtime {

struct Environment {
  // COHORT_AGENT: '@' and the abstract name of the agent's socket. dlaunch sets it. Empty: there is no agent.
  std::string agent;
  // COHORT_LOCAL_RANK: the number of this rank on its node, 0 to 1023. dlaunch sets it.
  std::optional<int> local_rank;
  // COHORT_JOB_ID: the name of the job. dlaunch sets it. If it is set and COHORT_AGENT is not, something has removed
  // COHORT_AGENT.
  std::string job_id;
  // Another launcher's variable, such as "OMPI_COMM_WORLD_SIZE=4", that says it started several processes. Empty: there
  // is none. Variables that a single process may inherit, such as SLURM_NTASKS in a batch script, do not count.
  std::string other_launcher;
  // COHORT_ALLOW_SINGLE=1: this process is a world of one whatever other launchers say.
  bool allow_single = false;
  // COHORT_INIT_TIMEOUT_MS: how many milliseconds Runtime::Init may take, 1 to 86400000. It overrides RuntimeOptions.
  std::optional<std::chrono::milliseconds> init_timeout;
  // COHORT_DETECT_DEADLOCKS: overrides RuntimeOptions::detect_deadlocks.
  std::optional<bool> detect_deadlocks;
  // COHORT_CHECK: "nan", "results", or both with a comma: overrides RuntimeOptions::checks. dlaunch --check sets it.
  // Must be equal on all ranks.
  std::optional<Checks> checks;
  // COHORT_TAPE: the folder that this job's tapes are written to. dlaunch --tape sets it. Empty: none are.
  std::string tape_folder;
  // COHORT_TAPE_RANKS: the world ranks whose tapes are written, such as "0,4-7". Empty: all.
  std::vector<int> tape_ranks;
  // COHORT_TAPE_LAST: the number of latest steps that a tape keeps. 0: all.
  uint64_t tape_last = 0;
  // COHORT_REPLAY: the tape that this process replays. dlaunch replay sets it. Empty: none.
  std::string replay;
  // The variables by which dlaunch tells a rank its place, as "NAME=VALUE", for the head of a tape. Empty where no tape
  // is written.
  std::vector<std::string> place_variables;
  // COHORT_UCX_LIBRARY, COHORT_NCCL_LIBRARY, COHORT_CUDA_LIBRARY: path or soname of the library to open. Empty: the
  // usual one (libucp.so.0, libnccl.so.2, libcudart.so).
  std::string ucx_library;
  std::string nccl_library;
  std::string cuda_library;
  // NCCL's own variables that are set and must be equal on all ranks, such as "NCCL_ALGO=Ring NCCL_PROTO=Simple".
  std::string nccl_settings;
  // COHORT_TUNING: figures and rules for the choice of algorithms. comm/select/tuning.h has the grammar. Empty: the
  // built-in ones.
  std::string tuning;

  // COHORT_PORT_RANGE: "FIRST-LAST", the TCP ports on which ranks may listen for data of other nodes. Empty: any port.
  std::string port_range;
  // COHORT_DATA_ADDRESS: the addresses of the interfaces that carry data between nodes. Empty: the route's interface.
  // Several: our own TCP uses all of them together, everything else the first.
  std::vector<std::string> data_addresses;
  // COHORT_TRANSPORTS: the transports that may carry data between nodes, such as "tcp" or "ucx,tcp". Empty: all.
  std::string transports;
  // COHORT_ENCRYPT_DATA=1: data between nodes is encrypted. dlaunch --encrypt-data sets it.
  bool encrypt_data = false;
  // COHORT_UCX_ANY_VERSION=1: this rank also talks to ranks with another release of UCX.
  bool ucx_any_version = false;
  // Names of all set variables that begin with UCX_. They are the user's wishes: our own settings do not replace them.
  std::vector<std::string> ucx_variables;

  // Reads all of them. kInvalidArgument names the variable, its value and what is allowed. An empty value counts as
  // unset.
  static absl::StatusOr<Environment> Read();
};

}  // namespace cohort::runtime
