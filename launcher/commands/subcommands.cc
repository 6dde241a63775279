#include "cohort/launcher/commands/subcommands.h"

#include <string>
#include <vector>

#include "cohort/launcher/commands/doctor.h"
#include "cohort/launcher/commands/job_commands.h"
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
     "  to answer (600).\n",
     RunJoinCommand},  // with main's own arguments, of which it wipes the token
    {"status",
     "dlaunch status [JOB]\n"
     "  Lists the running jobs that were started on this machine; with JOB that one, its command, and its nodes with "
     "their ranks and "
     "the\n"
     "  pid of each one's agent. JOB: the beginning of its digits is enough, as in job-4e or 4e. What the ranks do: "
     "dlaunch top.\n",
     RunWithArguments<RunStatusCommand>},
    {"top",
     "dlaunch top [--interval TIME] [JOB]\n"
     "  A live view of a job: what every rank does, for how long, its CPU and memory. --interval: between two\n"
     "  looks, 0.2 or more. JOB: the beginning of its digits is enough, and none where one job runs. q leaves it; the\n"
     "  job goes on.\n",
     RunWithArguments<RunTopCommand>},
    {"kill",
     "dlaunch kill [--now] JOB\n"
     "  Ends a job of this machine in order, within its grace. --now: kills its ranks at once.\n",
     RunWithArguments<RunKillCommand>},
    {"doctor",
     "dlaunch doctor\n"
     "  Looks what of this machine works, and what would be missing for which kind of job.\n",
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
