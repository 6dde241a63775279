#include "cohort/launcher/commands/job_programs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "cohort/launcher/base/text_file.h"
#include "cohort/launcher/machine/program.h"
#include "cohort/launcher/options/multi_prog.h"
#include "cohort/launcher/options/option_hints.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

absl::Status ReadProgramFile(Options* options) {
  COHORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options->program_file, "--multi-prog"));
  COHORT_ASSIGN_OR_RETURN(options->programs, ReadMultiProg(text, options->program_file));
  const bool counted = options->ranks || options->ranks_per_node || options->gpus_per_rank;
  const std::optional<int64_t> named = CountRanks(options->programs);
  if (!counted && named) options->ranks = static_cast<int>(*named);
  return absl::OkStatus();
}

}  // namespace

absl::Status FindPrograms(const std::string& path, const std::string& working_directory, const std::string& own_folder,
                          Options* options) {
  if (!options->program_file.empty()) COHORT_RETURN_IF_ERROR(ReadProgramFile(options));
  for (RankProgram& program : options->programs) {
    const std::string name = program.command[0];
    absl::StatusOr<Program> found = FindProgram(name, path, working_directory, own_folder);
    const std::string before = program.where.empty() ? "" : program.where + ": ";
    if (absl::IsNotFound(found.status()) && before.empty() && !MeantCommand(name).empty()) {
      return absl::NotFoundError(std::string(found.status().message()) + "; or did you mean dlaunch " +
                                 MeantCommand(name) + "?");
    }
    std::error_code error;
    if (!found.ok() && std::filesystem::exists(name + "/__main__.py", error)) {  // a folder that Python runs
      program.command.insert(program.command.begin(), {"python3", "-u"});
      found = FindProgram("python3", path, working_directory, own_folder);
    }
    if (!found.ok()) return {found.status().code(), before + std::string(found.status().message())};
    program.command[0] = std::move(found->path);
    program.found = std::move(found->where);
  }
  return absl::OkStatus();
}

std::string DescribePrograms(const std::vector<RankProgram>& programs) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(programs.size(), kMost); ++i) {
    const RankProgram& program = programs[i];
    if (i > 0) text += "; ";
    if (programs.size() > 1) text += NameSpans(program.ranks) + ": ";
    text += program.command[0];
    if (!program.found.empty()) text += " (" + program.found + ")";
  }
  return text + (programs.size() > kMost ? "; and " + std::to_string(programs.size() - kMost) + " more" : "");
}

}  // namespace cohort::launcher
