#include "cohort/launcher/spawn/srun_command.h"

namespace cohort::launcher {
namespace {

// Input variables of srun, by which #SBATCH lines become options of every step. Those of memory also exclude one
// another, and what counts GPUs of the whole job (--gpus) would ask for all of them on each node; without a request a
// step gets all that the job has there.
constexpr const char* kDivides[] = {"SLURM_CPUS_PER_GPU",
                                    "SLURM_CPUS_PER_TASK",
                                    "SLURM_CPU_BIND",
                                    "SLURM_DISTRIBUTION",
                                    "SLURM_EXACT",
                                    "SLURM_EXCLUSIVE",
                                    "SLURM_EXPORT_ENV",
                                    "SLURM_GPUS",
                                    "SLURM_GPUS_PER_SOCKET",
                                    "SLURM_GPUS_PER_TASK",
                                    "SLURM_GPU_BIND",
                                    "SLURM_KILL_BAD_EXIT",
                                    "SLURM_LABELIO",
                                    "SLURM_MEM_BIND",
                                    "SLURM_MEM_PER_CPU",
                                    "SLURM_MEM_PER_GPU",
                                    "SLURM_MEM_PER_NODE",
                                    "SLURM_NTASKS_PER_CORE",
                                    "SLURM_NTASKS_PER_GPU",
                                    "SLURM_NTASKS_PER_NODE",
                                    "SLURM_NTASKS_PER_SOCKET",
                                    "SLURM_OVERCOMMIT",
                                    "SLURM_STDERRMODE",
                                    "SLURM_STDINMODE",
                                    "SLURM_STDOUTMODE",
                                    "SLURM_STEP_GRES",
                                    "SLURM_THREADS_PER_CORE",
                                    "SLURM_TRES_PER_TASK",
                                    "SRUN_CPUS_PER_TASK"};

}  // namespace

std::vector<std::string> SrunCommand(const Options& options, const std::string& own_path, const std::string& host,
                                     const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {"env"};
  for (const char* variable : kDivides) command.insert(command.end(), {"-u", variable});
  // --unbuffered: the messages of an agent are no lines of text. --quiet leaves errors.
  for (const char* word : {"srun", "--quiet", "--unbuffered", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0",
                           "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0"}) {
    command.emplace_back(word);
  }
  command.push_back("--nodelist=" + host);
  command.push_back(options.agent_path.empty() ? own_path : options.agent_path);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace cohort::launcher
