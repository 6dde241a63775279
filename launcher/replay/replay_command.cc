#include "cohort/launcher/replay/replay_command.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/machine/program.h"
#include "cohort/launcher/machine/rank_environment.h"
#include "cohort/launcher/options/python_program.h"
#include "cohort/launcher/options/subcommand_line.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/tape/tape_place.h"
#include "cohort/runtime/tape/tape_reader.h"

namespace cohort::launcher {
namespace {

using runtime::TapeHead;
using runtime::TapePlace;

SubcommandLine ReplayLine(std::string* folder, std::string* rank, std::string* epoch) {
  return {
      .name = "replay",
      .summary =
          "Runs one rank of a job alone, with what dlaunch --tape FOLDER recorded that it got from the others. After\n"
          "-- come the program and its arguments, as in the job; gdb, perf and others may stand before them. Without\n"
          "a program it lists the tapes.",
      .notes =
          "Examples:\n"
          "  dlaunch replay tapes                                the tapes in the folder\n"
          "  dlaunch replay tapes --rank 3 -- ./train --lr 1     rank 3 again\n"
          "  dlaunch replay tapes --rank 3 -- gdb --args ./train --lr 1\n",
      .hint = "the program follows --",
      .operand = {"FOLDER", "The folder that dlaunch --tape wrote", folder, true},
      .values = {{"--rank", "N", "Which rank (the only one that was recorded)", rank},
                 {"--epoch", "N", "Which start of the job's ranks (the latest)", epoch}}};
}

std::string PathOf(const std::string& folder, const TapePlace& place) {
  return (std::filesystem::path(folder) / runtime::TapeName(place)).string();
}

absl::StatusOr<std::vector<TapePlace>> FirstTapesIn(const std::string& folder) {
  absl::StatusOr<std::vector<TapePlace>> found = runtime::TapesIn(folder);
  if (!found.ok()) return WithRemedy(Remedy::kNoTape, found.status());
  std::vector<TapePlace>& places = *found;
  std::erase_if(places, [](const TapePlace& place) { return place.runtime != 1; });
  if (!places.empty()) return std::move(places);
  return WithRemedy(Remedy::kNoTape,
                    absl::NotFoundError("there are no tapes in " + folder + "; give the folder of dlaunch --tape"));
}

// Prints a line for each tape. Returns the exit status: kExitUsage where one is damaged.
int ListTapes(const std::string& folder, const std::vector<TapePlace>& places) {
  std::string text;
  bool any_damaged = false;
  for (const TapePlace& place : places) {
    const auto tape = runtime::OpenTape::Open(PathOf(folder, place));
    text += "rank " + std::to_string(place.rank) + ", epoch " + std::to_string(place.epoch) + ": ";
    if (!tape.ok()) {
      any_damaged = any_damaged || absl::IsDataLoss(tape.status());
      text += TextOf(WithRemedy(Remedy::kTapeUnreadable, tape.status())) + "\n";
      continue;
    }
    const runtime::TapeContents& contents = (*tape)->contents();
    text += Plural(contents.calls.size(), "call") + ", " + Plural(contents.bytes, "byte") + " for " +
            std::to_string(contents.received) + " that it received, of " +
            Plural(static_cast<size_t>(contents.head.world_size), "rank") + "; " +
            (contents.ending == runtime::TapeEnding::kInOrder ? "the rank ended in order"
                                                              : "the rank was killed, or its disk was full");
    if (contents.left_out > 0) text += "; " + Plural(contents.left_out, "call") + " left out (--tape-last)";
    text += "\n";
  }
  const int answered = Answer(text);
  return answered == 0 && any_damaged ? kExitUsage : answered;
}

absl::StatusOr<TapePlace> Choose(const std::vector<TapePlace>& places, std::optional<int> rank,
                                 std::optional<int> epoch) {
  std::set<int> ranks;
  for (const TapePlace& place : places) ranks.insert(place.rank);
  std::string list;
  for (const int one : ranks) list += (list.empty() ? "" : ", ") + std::to_string(one);
  if (!rank && ranks.size() > 1) {
    return InvalidArgumentError(Remedy::kTapeRank, "there are tapes of ranks " + list + "; say which by --rank");
  }
  const int chosen = rank.value_or(*ranks.begin());
  std::optional<TapePlace> found;  // the latest epoch
  for (const TapePlace& place : places) {
    if (place.rank == chosen && (!epoch || place.epoch == static_cast<uint64_t>(*epoch))) found = place;
  }
  if (found) return *found;
  return WithRemedy(Remedy::kNoTape, absl::NotFoundError("there is no tape of rank " + std::to_string(chosen) +
                                                         (epoch ? " in epoch " + std::to_string(*epoch) : "") +
                                                         "; there are those of ranks " + list));
}

// This process' variables, with those of the recorded rank in their places.
absl::StatusOr<std::vector<std::string>> EnvironmentOf(const TapeHead& head, const std::string& path) {
  std::map<std::string, std::string> variables;
  const auto set = [&variables](const std::string& text) {
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  };
  for (const std::string& variable : InheritedEnvironment()) {
    if (!BelongsToAnotherLauncher(variable.substr(0, variable.find('=')))) set(variable);
  }
  for (const std::string& variable : head.environment) set(variable);
  for (const char* const name : {"COHORT_TAPE", "COHORT_TAPE_RANKS", "COHORT_TAPE_LAST"}) variables.erase(name);
  variables["COHORT_AGENT"] = "@replay";  // programs look whether dlaunch has started them; nobody listens there
  variables["COHORT_REPLAY"] = path;
  COHORT_ASSIGN_OR_RETURN(const std::string torch, TorchSwitchFolder(head.environment, v1::JobSpec(), OwnPath()));
  if (!torch.empty()) {
    std::string& modules = variables["PYTHONPATH"];
    modules = torch + (modules.empty() ? "" : ":" + modules);
  }
  std::vector<std::string> texts;
  for (const auto& [name, value] : variables) texts.push_back(name + "=" + value);
  return texts;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

int Execute(std::vector<std::string> command, std::vector<std::string> environment) {
  command = AsPythonProgram(std::move(command), /*is_module=*/false);
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  const std::string own_folder = std::filesystem::path(OwnPath()).parent_path().string();
  const auto program =
      FindProgram(command[0], GetVariable("PATH").value_or("/usr/bin:/bin"), here.empty() ? "." : here, own_folder);
  if (!program.ok()) {
    return Refuse(program.status(), absl::IsNotFound(program.status()) ? kExitNotFound : kExitNotExecutable);
  }
  const std::vector<char*> arguments = Pointers(command), variables = Pointers(environment);
  ::execve(program->path.c_str(), arguments.data(), variables.data());
  return Refuse("can't execute " + program->path + ": " + runtime::ErrnoText(errno), kExitNotExecutable);
}

}  // namespace

runtime::ManualCommand ReplayManual() {
  std::string folder, rank, epoch;
  runtime::ManualCommand manual = ManualOf(ReplayLine(&folder, &rank, &epoch));
  manual.runs_program = true;
  return manual;
}

int RunReplayCommand(const std::vector<std::string>& arguments) {
  std::string folder, rank_text, epoch_text;
  const SubcommandLine line = ReplayLine(&folder, &rank_text, &epoch_text);
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  const absl::Status read = ReadSubcommandLine({arguments.begin(), dashes}, line);
  if (!read.ok()) return Refuse(read, kExitUsage);
  std::vector<std::string> command;
  if (dashes != arguments.end()) command.assign(dashes + 1, arguments.end());
  constexpr int kHighest = 1 << 24;
  const std::optional<int> rank = ReadWholeNumber(rank_text, 0, kHighest);
  const std::optional<int> epoch = ReadWholeNumber(epoch_text, 1, kHighest);
  for (const auto& [name, text, number] :
       {std::tuple("--rank", rank_text, rank), std::tuple("--epoch", epoch_text, epoch)}) {
    if (text.empty() || number) continue;
    return Refuse(WithRemedy(Remedy::kWrongValue, std::string(name) + " '" + text + "': give a number"), kExitUsage);
  }
  const absl::StatusOr<std::vector<TapePlace>> places = FirstTapesIn(folder);
  if (!places.ok()) return Refuse(places.status(), kExitUsage);
  if (command.empty()) return ListTapes(folder, *places);
  const absl::StatusOr<TapePlace> place = Choose(*places, rank, epoch);
  if (!place.ok()) return Refuse(place.status(), kExitUsage);
  std::error_code error;
  const std::string path = std::filesystem::absolute(PathOf(folder, *place), error).string();
  if (error) return Refuse("'" + folder + "': " + error.message(), kExitUsage);
  // All of it, so that a damaged tape is refused before the program does anything.
  const auto tape = runtime::OpenTape::Open(path);
  if (!tape.ok()) return Refuse(WithRemedy(Remedy::kTapeUnreadable, tape.status()), kExitUsage);
  const runtime::TapeContents& contents = (*tape)->contents();
  Say("replays rank " + std::to_string(place->rank) + " of " + std::to_string(contents.head.world_size) + ", epoch " +
      std::to_string(place->epoch) + ": " + Plural(contents.calls.size(), "call"));
  absl::StatusOr<std::vector<std::string>> environment = EnvironmentOf(contents.head, path);
  if (!environment.ok()) return Refuse(environment.status(), kExitUsage);
  return Execute(std::move(command), *std::move(environment));
}

}  // namespace cohort::launcher
