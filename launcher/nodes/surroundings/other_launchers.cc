#include "cohort/launcher/nodes/surroundings/other_launchers.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/run_commands.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/nodes/surroundings/name_list.h"
#include "cohort/launcher/nodes/surroundings/variables.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::milliseconds kFluxLimit{2000};
constexpr char kAlone[] = ", or give --launcher local for a job of this machine alone";

// Launchers that start several processes, each of which would be a dlaunch with a job of its own.
struct LauncherRow {
  const char*
      size;  // the variable with their number; "": there is none, and a rank above 0 says that there are several
  const char* rank;
  const char* who;
};

constexpr LauncherRow kLaunchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI's mpirun"},
    {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MVAPICH2's mpirun_rsh"},
    {"PMI_SIZE", "PMI_RANK", "mpiexec (MPICH, Intel MPI, Hydra)"},
    {"MPI_LOCALNRANKS", "MPI_LOCALRANKID", "mpiexec (MPICH, Intel MPI, Hydra)"},
    {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "jsrun"},
    {"FLUX_JOB_SIZE", "FLUX_TASK_RANK", "flux run"},
    {"HOROVOD_SIZE", "HOROVOD_RANK", "horovodrun"},
    {"DMLC_NUM_WORKER", "DMLC_TASK_ID", "dmlc-submit"},
    {"PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID", "paddle.distributed.launch"},
    {"_CONDOR_NPROCS", "_CONDOR_PROCNO", "HTCondor's parallel universe"},
    {"", "PALS_RANKID", "mpiexec of PALS"},
    {"", "ALPS_APP_PE", "aprun"},
    {"", "PMIX_RANK", "prterun or another launcher by PMIx"},
    {"", "PBS_NODENUM", "pbsdsh"},
};

absl::Status Copies(const std::string& who, const std::string& says, const std::string& count) {
  return InvalidArgumentError(Remedy::kManyDlaunches,
                              who + " started " + count + " processes (" + says +
                                  "), each of them a dlaunch with a job of its own. dlaunch starts the ranks itself: "
                                  "run it once, without that launcher" +
                                  (count == "several" ? "" : ", with -n " + count) +
                                  "; or give --launcher local for a job of its own in each");
}

// srun sets such variables too (--mpi=pmi2, --mpi=pmix); Slurm's source knows what to do with its tasks.
bool IsTaskOfSrun(const VariableLookup& variable, const LauncherRow& row) {
  if (ValueOf(variable, "SLURM_JOB_ID").empty() && ValueOf(variable, "SLURM_JOBID").empty()) return false;
  const std::optional<int> tasks = NumberOf(variable, "SLURM_STEP_NUM_TASKS");
  if (!tasks || *tasks < 2) return false;
  const std::optional<int> size = NumberOf(variable, row.size);
  return size ? *size == *tasks : NumberOf(variable, row.rank) == NumberOf(variable, "SLURM_PROCID");
}

absl::Status RefuseRow(const VariableLookup& variable, const LauncherRow& row) {
  const std::string size = ValueOf(variable, row.size);
  const std::string rank = ValueOf(variable, row.rank);
  if ((size.empty() && rank.empty()) || IsTaskOfSrun(variable, row)) return absl::OkStatus();
  const char* const name = size.empty() ? row.rank : row.size;
  const std::optional<int> number = NumberOf(variable, name);
  if (!number) {
    return InvalidArgumentError(Remedy::kUnsetCount, Says(variable, name) + " is no number of processes, as " +
                                                         row.who + " sets it; unset it" + kAlone);
  }
  if (*number <= (size.empty() ? 0 : 1)) return absl::OkStatus();
  const std::string says = Says(variable, name) + (size.empty() || rank.empty() ? "" : " " + Says(variable, row.rank));
  return Copies(row.who, says, size.empty() ? "several" : size);
}

// torchrun, accelerate, deepspeed and those that do as they do. A dlaunch's rank that left COHORT_AGENT out means it.
absl::Status RefuseTorchrun(const VariableLookup& variable) {
  const bool of_torchrun = variable("LOCAL_RANK") || variable("LOCAL_WORLD_SIZE") || variable("TORCHELASTIC_RUN_ID");
  if (!of_torchrun || variable("COHORT_JOB_ID")) return absl::OkStatus();
  const std::optional<int> size = NumberOf(variable, "WORLD_SIZE");
  const std::optional<int> local = NumberOf(variable, "LOCAL_WORLD_SIZE");
  const bool many = size.value_or(1) > 1;
  if ((!many && local.value_or(1) <= 1) || !variable("RANK")) return absl::OkStatus();
  if (IsTaskOfSrun(variable, {"WORLD_SIZE", "RANK", ""})) return absl::OkStatus();
  return Copies("torchrun, or a launcher like it,",
                Says(variable, many ? "WORLD_SIZE" : "LOCAL_WORLD_SIZE") + " " + Says(variable, "RANK"),
                std::to_string(many ? *size : *local));
}

absl::Status Unreachable(const std::string& says, size_t count, const std::string& remedy) {
  if (count < 2) return absl::OkStatus();
  return InvalidArgumentError(Remedy::kMachinesOutOfReach, says + " says that there are " + std::to_string(count) +
                                                               " machines, which dlaunch can't reach by that; " +
                                                               remedy + kAlone);
}

constexpr char kByHosts[] =
    "start one dlaunch with --hosts, or one on each with the same PET_NNODES, PET_NODE_RANK and PET_MASTER_ADDR";

// Numbers of machines that services set, most of them beside an index by which the machines join each other
// (members.cc).
constexpr const char* kServiceCounts[] = {"DET_NUM_NODES",      "ACCELERATE_NUM_MACHINES",
                                          "SKYPILOT_NUM_NODES", "AWS_BATCH_JOB_NUM_NODES",
                                          "DSTACK_NODES_NUM",   "NGC_ARRAY_SIZE",
                                          "AZUREML_NODE_COUNT", "JAX_NUM_PROCESSES",
                                          "MLP_WORKER_NUM",     "BEAKER_REPLICA_COUNT",
                                          "ARNOLD_WORKER_NUM",  "LEPTON_JOB_TOTAL_WORKERS",
                                          "MA_NUM_HOSTS",       "PJM_NODE"};

// TF_CONFIG and CLUSTER_SPEC: {"cluster": {"chief": ["a:1"], "worker": [...]}, ...}. What is no such JSON is for the
// program.
size_t MachinesInCluster(const std::string& text) {
  const nlohmann::json parsed = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("cluster") || !parsed["cluster"].is_object()) return 0;
  size_t machines = 0;
  for (const auto& [role, hosts] : parsed["cluster"].items()) {
    if (hosts.is_array() && role != "evaluator") machines += hosts.size();
  }
  return machines;
}

// A Volcano job has variables VC_TASK_NUM and VC_TASK_HOSTS for each of its tasks.
absl::Status RefuseVolcano() {
  std::map<std::string, size_t> machines;  // by task
  std::string says;
  for (const std::string& variable : InheritedEnvironment()) {
    const size_t equals = std::min(variable.find('='), variable.size());
    const std::string name = variable.substr(0, equals);
    const std::string value = variable.substr(std::min(equals + 1, variable.size()));
    const size_t end = name.rfind('_');
    if (!name.starts_with("VC_") || end < 3) continue;
    const std::string kind = name.substr(end);
    if (kind != "_NUM" && kind != "_HOSTS") continue;
    size_t& count = machines[name.substr(0, end)];
    count = std::max(count, kind == "_NUM" ? static_cast<size_t>(ReadWholeNumber(value, 0, kMaxNodes).value_or(0))
                                           : NamesIn(value).size());
    says += (says.empty() ? "" : " ") + Printable(variable, 80);
  }
  size_t all = 0;
  for (const auto& [task, count] : machines) all += count;
  return Unreachable(says, all, kByHosts);
}

// `flux alloc` and `flux batch` start one program on the first of an instance's nodes.
absl::Status RefuseFlux(const VariableLookup& variable) {
  if (ValueOf(variable, "FLUX_URI").empty()) return absl::OkStatus();
  const CommandResult asked = RunCommands({{"flux", "getattr", "size"}}, {.limit = kFluxLimit})[0];
  const std::string text = asked.output.substr(0, asked.output.find('\n'));
  const std::optional<int> size = ReadWholeNumber(text, 1, std::numeric_limits<int>::max());
  if (!size) {
    Say("FLUX_URI is set, but flux getattr size gave no number: taking this machine alone; --hosts names others");
    return absl::OkStatus();
  }
  return Unreachable(Says(variable, "FLUX_URI"), static_cast<size_t>(*size),
                     "where ssh does, give --hosts \"$(flux getattr hostlist)\"");
}

// Slurm's own variables without those of a job: a container or a wrapper passed some of them on.
absl::Status RefusePartOfSlurm(const VariableLookup& variable) {
  if (!ValueOf(variable, "SLURM_JOB_ID").empty() || !ValueOf(variable, "SLURM_JOBID").empty()) return absl::OkStatus();
  for (const char* name : {"SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_STEP_NUM_TASKS"}) {
    const int count = NumberOf(variable, name).value_or(0);
    COHORT_RETURN_IF_ERROR(Unreachable(Says(variable, name), static_cast<size_t>(count),
                                       "SLURM_JOB_ID is not set: pass all of the job's SLURM_ variables on"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefuseCopies(const VariableLookup& variable) {
  for (const LauncherRow& row : kLaunchers) COHORT_RETURN_IF_ERROR(RefuseRow(variable, row));
  return RefuseTorchrun(variable);
}

absl::Status RefuseUnreachableMachines(const VariableLookup& variable) {
  for (const char* name : {"CLUSTER_SPEC", "TF_CONFIG"}) {
    COHORT_RETURN_IF_ERROR(Unreachable(Says(variable, name), MachinesInCluster(ValueOf(variable, name)), kByHosts));
  }
  for (const char* name : kServiceCounts) {
    const int count = NumberOf(variable, name).value_or(0);
    COHORT_RETURN_IF_ERROR(Unreachable(Says(variable, name), static_cast<size_t>(count), kByHosts));
  }
  for (const char* name : {"AZ_BATCH_NODE_LIST", "AZ_BATCH_HOST_LIST", "SM_HOSTS", "TPU_WORKER_HOSTNAMES"}) {
    COHORT_RETURN_IF_ERROR(Unreachable(Says(variable, name), NamesIn(ValueOf(variable, name)).size(), kByHosts));
  }
  COHORT_RETURN_IF_ERROR(RefuseVolcano());
  COHORT_RETURN_IF_ERROR(RefusePartOfSlurm(variable));
  return RefuseFlux(variable);
}

std::string DescribeOtherSize(const VariableLookup& variable, int nodes, int ranks) {
  if (variable("COHORT_JOB_ID")) return "";
  struct Row {
    const char* name;
    int own;
    const char* noun;
    const char* option;
  };
  for (const Row& row : {Row{"WORLD_SIZE", ranks, "rank", "-n "}, Row{"NUM_PROCESSES", ranks, "rank", "-n "},
                         Row{"NNODES", nodes, "node", "--nnodes "}, Row{"NUM_NODES", nodes, "node", "--nnodes "}}) {
    const std::optional<int> size = NumberOf(variable, row.name);
    if (!size || *size < 2 || *size == row.own) continue;
    return Says(variable, row.name) + " is not heeded: this job has " + std::to_string(row.own) + " " + row.noun +
           (row.own == 1 ? "" : "s") + "; " + row.option + std::to_string(*size) + " gives as many";
  }
  return "";
}

std::string DescribeUnknownCopies(const VariableLookup& variable) {
  const LauncherRow* first = nullptr;
  for (const LauncherRow& row : kLaunchers) {
    if (!ValueOf(variable, row.size).empty()) return "";
    const bool tells = std::string_view(row.rank) != "PBS_NODENUM";  // a job of PBS without pbsdsh has it too
    if (*row.size == '\0' && tells && NumberOf(variable, row.rank) == 0 && first == nullptr) first = &row;
  }
  if (first == nullptr || !ValueOf(variable, "SLURM_STEP_NUM_TASKS").empty()) return "";
  return std::string(first->who) + " started this dlaunch (" + Says(variable, first->rank) +
         ") and does not say how many there are: if there are others, they have no part in this job; start one alone";
}

std::string DescribeOtherRanksEach(const VariableLookup& variable, int ranks_each) {
  const std::optional<int> each = NumberOf(variable, "PET_NPROC_PER_NODE");
  if (!each || *each < 2 || *each == ranks_each || variable("COHORT_JOB_ID")) return "";
  return Says(variable, "PET_NPROC_PER_NODE") + " is not heeded: --nproc-per-node " + std::to_string(*each) +
         " gives as many ranks on each node";
}

}  // namespace cohort::launcher
