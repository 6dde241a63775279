#include "cohort/launcher/commands/subcommands.h"

#include <string>
#include <vector>

#include "cohort/launcher/commands/doctor.h"
#include "cohort/launcher/commands/job_commands.h"
#include "cohort/launcher/commands/job_stacks.h"
#include "cohort/launcher/commands/job_top.h"
#include "cohort/launcher/join/join_job.h"

namespace cohort::launcher {
namespace {

template <int (*Run)(const std::vector<std::string>&)>
int RunWithArguments(int argc, char** argv) {
  return Run({argv + 2, argv + argc});
}

constexpr Subcommand kSubcommands[] = {
    {"join",
     "dlaunch join - [--wait TIME] <<< TOKEN, or dlaunch join TOKEN [--wait TIME]\n"
     "  Makes this machine a node of the job whose dlaunch has printed this line; blocks until the job has ended,\n"
     "  with its exit status. - reads the token, a secret, from the standard input; as an argument other users of\n"
     "  this machine may see it until dlaunch has begun and overwritten it. --wait: how long that dlaunch may take\n"
     "  to answer (600).\n"
     "Examples:\n"
     "  dlaunch join - <<< cohort1.MTkyLjAu...   the line that dlaunch --nnodes 2 train has printed, in bash\n"
     "  dlaunch join - --wait 1h < token.txt     a job that is started later\n",
     RunJoinCommand},  // with main's own arguments, of which it wipes the token
    {"status",
     "dlaunch status [JOB]\n"
     "  Lists the running jobs that were started on this machine; with JOB that one, its command, and its\n"
     "  nodes with their ranks and the pid of each one's agent. JOB: the beginning of its digits is enough, as in\n"
     "  job-4e or 4e.\n"
     "  What the ranks do: dlaunch top.\n"
     "Examples:\n"
     "  dlaunch status       all jobs, a line each\n"
     "  dlaunch status 4e    the nodes of job-4e0c53a1f2b98d67\n",
     RunWithArguments<RunStatusCommand>},
    {"top",
     "dlaunch top [--interval TIME] [JOB]\n"
     "  A live view of a job: what every rank does, for how long, its CPU and memory. --interval: between two\n"
     "  looks, 0.2 or more. JOB: the beginning of its digits is enough, and none where one job runs. q leaves it; the\n"
     "  job goes on.\n"
     "Examples:\n"
     "  dlaunch top                     the only job that runs\n"
     "  dlaunch top --interval 5 4e     job-4e0c53a1f2b98d67, every five seconds\n",
     RunWithArguments<RunTopCommand>},
    {"stacks",
     "dlaunch stacks [--rank LIST] [JOB]\n"
     "  Where every rank is: the stacks of its Python threads, the most recent call first, the system calls in which\n"
     "  its threads sleep, and, where libdw is installed, their C and C++ frames. Ranks at the same place are shown\n"
     "  together. The ranks go on. --rank: only these, as in 0,8-11. JOB: the beginning of its digits is enough, and\n"
     "  none where one job runs.\n"
     "Examples:\n"
     "  dlaunch stacks              the only job that runs\n"
     "  dlaunch stacks --rank 3 4e  rank 3 of job-4e0c53a1f2b98d67\n",
     RunWithArguments<RunStacksCommand>},
    {"kill",
     "dlaunch kill [--now] JOB\n"
     "  Ends a job of this machine in order, within its grace. --now: kills its ranks at once.\n"
     "Examples:\n"
     "  dlaunch kill 4e          SIGTERM to the ranks of job-4e0c53a1f2b98d67, SIGKILL after its --grace\n"
     "  dlaunch kill --now 4e    if it does not end\n",
     RunWithArguments<RunKillCommand>},
    {"doctor",
     "dlaunch doctor\n"
     "  Looks what of this machine works, and what would be missing for which kind of job.\n"
     "Examples:\n"
     "  dlaunch doctor             this machine; exit status 1 if jobs cannot run here\n"
     "  ssh node7 dlaunch doctor   another one\n",
     RunWithArguments<RunDoctorCommand>},
};

}  // namespace

const Subcommand* FindSubcommand(std::string_view name) {
  for (const Subcommand& subcommand : kSubcommands) {
    if (subcommand.name == name) return &subcommand;
  }
  return nullptr;
}

}  // namespace cohort::launcher
