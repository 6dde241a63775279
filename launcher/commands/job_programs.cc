#include "cohort/launcher/commands/job_programs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>

#include "absl/status/statusor.h"
#include "cohort/launcher/base/text_file.h"
#include "cohort/launcher/machine/program.h"
#include "cohort/launcher/options/multi_prog.h"
#include "cohort/launcher/options/option_hints.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

absl::Status ReadProgramFile(Options* options) {
  COHORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options->program_file, "--multi-prog"));
  COHORT_ASSIGN_OR_RETURN(options->programs, ReadMultiProg(text, options->program_file));
  const bool counted = options->ranks || options->ranks_per_node || options->gpus_per_rank;
  const std::optional<int64_t> named = CountRanks(options->programs);
  if (counted || !named) return absl::OkStatus();
  options->ranks = static_cast<int>(*named);
  options->ranks_of_file = true;
  return absl::OkStatus();
}

// Finds programs by their names, each once: a file may name one for every rank.
class Finder {
 public:
  Finder(const std::string& path, const std::string& working_directory, const std::string& own_folder)
      : path_(path), working_directory_(working_directory), own_folder_(own_folder) {}

  const absl::StatusOr<Program>& Find(const std::string& name) {
    auto found = found_.find(name);
    if (found == found_.end()) {
      found = found_.emplace(name, FindProgram(name, path_, working_directory_, own_folder_)).first;
    }
    return found->second;
  }
  // A folder that Python runs.
  bool IsPythonFolder(const std::string& name) const {
    std::error_code error;
    return std::filesystem::exists(name + "/__main__.py", error);
  }

 private:
  const std::string& path_;
  const std::string& working_directory_;
  const std::string& own_folder_;
  std::map<std::string, absl::StatusOr<Program>> found_;
};

// Advice for a program that is not there. `name` is as it was typed.
std::string Advice(const std::string& name, const RankProgram& program, bool in_file) {
  if (!program.where.empty()) return in_file ? "" : std::string("; ") + kColonOfProgram;
  return MeantCommand(name).empty() ? "" : "; or did you mean dlaunch " + MeantCommand(name) + "?";
}

}  // namespace

absl::Status FindPrograms(const std::string& path, const std::string& working_directory, const std::string& own_folder,
                          Options* options) {
  const bool in_file = !options->program_file.empty();
  if (in_file) COHORT_RETURN_IF_ERROR(ReadProgramFile(options));
  Finder finder(path, working_directory, own_folder);
  for (RankProgram& program : options->programs) {
    const std::string name = program.command[0];
    const absl::StatusOr<Program>* found = &finder.Find(name);
    const std::string before = program.where.empty() ? "" : program.where + ": ";
    if (!found->ok() && finder.IsPythonFolder(name)) {
      program.command.insert(program.command.begin(), {"python3", "-u"});
      found = &finder.Find("python3");
    }
    if (!found->ok()) {
      const bool absent = absl::IsNotFound(found->status());
      const std::string advice = absent ? Advice(name, program, in_file) : "";
      return WithRemedyOf(found->status(),
                          {found->status().code(), before + std::string(found->status().message()) + advice});
    }
    program.command[0] = (*found)->path;
    program.found = (*found)->where;
  }
  return absl::OkStatus();
}

std::string DescribeRanksWanted(const Options& options) {
  if (!options.ranks) return "";
  const std::string ranks = std::to_string(*options.ranks) + (*options.ranks == 1 ? " rank" : " ranks");
  if (options.ranks_of_file) return options.program_file + " names " + ranks;
  if (options.program_file.empty() && options.programs.size() > 1) return "the programs have " + ranks + " together";
  return "-n " + std::to_string(*options.ranks);
}

absl::Status RefuseLaunchers(const Options& options, int world_size) {
  if (world_size < 2 || options.mpi == Mpi::kNone) return absl::OkStatus();
  for (const RankProgram& program : options.programs) {
    if (!StartsRanks(program.command[0])) continue;
    return InvalidArgumentError(Remedy::kProgramIsALauncher,
                                (program.where.empty() ? "the program" : program.where) + " is " + program.command[0] +
                                    ", which starts ranks itself: each of " + std::to_string(world_size) +
                                    " ranks would start a job of its own. Leave it out, as dlaunch starts MPI programs "
                                    "as they are: dlaunch -n " +
                                    std::to_string(world_size) +
                                    " ./program; or give --mpi none for a job of its own in each");
  }
  return absl::OkStatus();
}

std::vector<MpiLibrary> MpiLibrariesOf(const std::vector<RankProgram>& programs) {
  std::map<std::vector<std::string>, MpiLibrary> known;  // a file may name one for every rank
  std::vector<MpiLibrary> libraries;
  for (const RankProgram& program : programs) {
    const auto [found, is_new] = known.try_emplace(program.command, MpiLibrary::kNone);
    if (is_new) found->second = MpiLibraryOf(program.command);
    libraries.push_back(found->second);
  }
  return libraries;
}

absl::Status RefuseMixedMpi(const Options& options, const std::vector<MpiLibrary>& libraries, int world_size) {
  if (world_size < 2) return absl::OkStatus();
  const auto place_of = [&](MpiLibrary library) -> std::optional<std::string> {
    const auto found = std::find(libraries.begin(), libraries.end(), library);
    if (found == libraries.end()) return std::nullopt;
    const std::string& where = options.programs[static_cast<size_t>(found - libraries.begin())].where;
    return where.empty() ? "the program" : where;
  };
  const std::optional<std::string> mpich = place_of(MpiLibrary::kMpich), open_mpi = place_of(MpiLibrary::kOpenMpi);
  if (options.mpi == Mpi::kPmi1 && open_mpi) {
    return InvalidArgumentError(Remedy::kMpiMismatch,
                                "--mpi pmi1: " + *open_mpi +
                                    " is linked with Open MPI, which speaks PMIx: each of its ranks would be alone; "
                                    "leave --mpi out, or give --mpi pmix");
  }
  if (options.mpi == Mpi::kAuto && mpich && open_mpi) {
    return InvalidArgumentError(Remedy::kMpiMixed,
                                *mpich + " is linked with MPICH and " + *open_mpi +
                                    " with Open MPI: the ranks of one would wait in MPI for those of the other; link "
                                    "both with one library, or give "
                                    "--mpi none, which starts each rank alone");
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
