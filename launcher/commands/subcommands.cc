#include "cohort/launcher/commands/subcommands.h"

#include <string>
#include <vector>

#include "cohort/launcher/commands/completion.h"
#include "cohort/launcher/commands/doctor.h"
#include "cohort/launcher/commands/job_commands.h"
#include "cohort/launcher/commands/job_stacks.h"
#include "cohort/launcher/commands/job_top.h"
#include "cohort/launcher/commands/trace/trace_command.h"
#include "cohort/launcher/commands/trace/why_command.h"
#include "cohort/launcher/join/join_job.h"
#include "cohort/launcher/replay/replay_command.h"

namespace cohort::launcher {
namespace {

template <int (*Run)(const std::vector<std::string>&)>
int RunWithArguments(int argc, char** argv) {
  return Run({argv + 2, argv + argc});
}

constexpr Subcommand kSubcommands[] = {
    {"join", JoinManual, RunJoinCommand},  // with main's own arguments, of which it wipes the token
    {"status", StatusManual, RunWithArguments<RunStatusCommand>},
    {"top", TopManual, RunWithArguments<RunTopCommand>},
    {"stacks", StacksManual, RunWithArguments<RunStacksCommand>},
    {"trace", TraceManual, RunWithArguments<RunTraceCommand>},
    {"why", WhyManual, RunWithArguments<RunWhyCommand>},
    {"replay", ReplayManual, RunWithArguments<RunReplayCommand>},
    {"kill", KillManual, RunWithArguments<RunKillCommand>},
    {"doctor", DoctorManual, RunWithArguments<RunDoctorCommand>},
    {"completion", CompletionManual, RunWithArguments<RunCompletionCommand>},
};

}  // namespace

const Subcommand* FindSubcommand(std::string_view name) {
  for (const Subcommand& subcommand : kSubcommands) {
    if (subcommand.name == name) return &subcommand;
  }
  return nullptr;
}

std::vector<runtime::ManualCommand> SubcommandManuals() {
  std::vector<runtime::ManualCommand> manuals;
  for (const Subcommand& subcommand : kSubcommands) manuals.push_back(subcommand.manual());
  return manuals;
}

}  // namespace cohort::launcher
