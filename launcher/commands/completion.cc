#include "cohort/launcher/commands/completion.h"

#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/commands/subcommands.h"
#include "cohort/launcher/jobs/recent_hosts.h"
#include "cohort/launcher/jobs/running_jobs.h"
#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/options/command_parser.h"
#include "cohort/launcher/options/option_values.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/build_info.h"
#include "cohort/runtime/manual/forms.h"

namespace cohort::launcher {
namespace {

SubcommandLine CompletionLine(std::string* shell) {
  return {.name = "completion",
          .summary = "Prints a script that completes dlaunch's options, their values, jobs and hosts in a shell.",
          .notes =
              "Examples:\n"
              "  source <(dlaunch completion bash)   in ~/.bashrc\n"
              "  source <(dlaunch completion zsh)    in ~/.zshrc, after compinit\n"
              "  dlaunch completion fish | source    in ~/.config/fish/config.fish\n",
          .hint = "",
          .operand = {"bash|zsh|fish", "The shell", shell, true}};
}

std::string OnLines(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + "\n";
  return text;
}

}  // namespace

runtime::ManualCommand CompletionManual() {
  std::string shell;
  return ManualOf(CompletionLine(&shell));
}

runtime::ManualCommand DlaunchManual() {
  runtime::ManualCommand manual = CommandParser().Manual();
  for (runtime::ManualOption& option : manual.options) {
    if (option.names.back() == "--launcher") option.choices = SourceNames();
  }
  manual.commands = SubcommandManuals();
  return manual;
}

int PrintForm(const std::string& form) {
  const auto text = runtime::Form(DlaunchManual(), form, std::string("cohort ") + COHORT_VERSION);
  if (text) return Answer(*text);
  return Refuse(WrongValue(runtime::kDescribeOption, form, std::string("give one of ") + runtime::kFormNames),
                kExitUsage);
}

int RunCompletionCommand(const std::vector<std::string>& arguments) {
  std::string shell;
  const SubcommandLine line = CompletionLine(&shell);
  if (const absl::Status read = ReadSubcommandLine(arguments, line); !read.ok()) return Refuse(read, kExitUsage);
  if (shell == "jobs") return Answer(OnLines(RunningJobIds()));
  if (shell == "hosts") return Answer(OnLines(RecentHosts()));
  if (shell == "bash" || shell == "zsh" || shell == "fish") return PrintForm(shell);
  return Refuse(WithRemedy(Remedy::kUsage, "completion '" + shell +
                                               "': there is completion for bash, zsh and fish; use: " + UseOf(line)),
                kExitUsage);
}

}  // namespace cohort::launcher
