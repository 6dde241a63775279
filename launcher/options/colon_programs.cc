#include "cohort/launcher/options/colon_programs.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/options/option_values.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/options/python_program.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

std::string Form() { return std::string("dlaunch -n 1 ./server : -n 3 ./client (") + kColonOfProgram + ")"; }

// For an error in the part of a line that begins behind a ':'.
absl::Status InPlace(const std::string& where, const absl::Status& status) {
  return where.empty() ? status : Prefixed(where + ": ", status);
}

// The words of one program, and those behind the ':' after it.
struct Words {
  std::vector<std::string> program;
  std::optional<std::vector<std::string>> rest;
};

// The ':' after the first program. One at the end is a slip of somebody who has given -n, or the program itself.
std::optional<size_t> FirstColon(const std::vector<std::string>& words, bool counted) {
  if (words.size() > 1 && words[0] == ":") return 0;
  if (FindColon(words, /*sure=*/false)) return FindColon(words, /*sure=*/true);
  const bool at_end = counted && !words.empty() && words.back() == ":";
  const bool is_value = words.size() > 1 && words[words.size() - 2].starts_with("-");
  return at_end && !is_value ? std::optional(words.size() - 1) : std::nullopt;
}

absl::StatusOr<Words> SplitWords(const CommandParser& parser, bool is_first) {
  Words words{.program = parser.Rest(), .rest = {}};
  std::vector<std::string>& program = words.program;
  if (!program.empty() && program[0] == "--") {
    program.erase(program.begin());
    return words;
  }
  if (!program.empty() && program[0].size() > 1 && program[0][0] == '-') return parser.UnknownOption(program[0]);
  const std::optional<size_t> colon = is_first ? FirstColon(program, parser.Has("--np")) : FindColon(program, true);
  if (!colon) return words;
  const auto at = program.begin() + static_cast<std::ptrdiff_t>(*colon);
  words.rest.emplace(at + 1, program.end());
  program.erase(at, program.end());
  return words;
}

absl::Status CheckCommand(const std::vector<std::string>& command, const std::string& where) {
  if (command.empty() && !where.empty()) {
    return absl::InvalidArgumentError(where + " is missing: one stands before and behind each ':', as in " + Form());
  }
  if (command.empty()) {
    return InvalidArgumentError(
        Remedy::kNoProgram,
        "no program given; use: dlaunch [options] [--] program [arguments] (dlaunch --help has examples)");
  }
  if (!command[0].empty()) return absl::OkStatus();
  const std::string name = where.empty() ? "the program's name" : "the name of " + where;
  return InvalidArgumentError(Remedy::kEmptyProgram,
                              name + " is empty; use: dlaunch [options] [--] program [arguments]");
}

// The options behind a ':'.
absl::Status ReadPart(const CommandParser& parser, RankProgram* program) {
  static constexpr const char* kOwn[] = {"--np", "--env", "--module"};
  for (const std::string& option : parser.Given()) {
    if (std::find(std::begin(kOwn), std::end(kOwn), option) != std::end(kOwn)) continue;
    return InvalidArgumentError(Remedy::kWholeJobOption,
                                option +
                                    " is for the whole job: give it before the first program; behind a ':' stand -n, "
                                    "--env and -m alone");
  }
  if (parser.Has("--np")) {
    COHORT_RETURN_IF_ERROR(ReadCount("np", parser.raw().ranks, kMaxNodes * kMaxRanksPerNode, &program->count));
  }
  COHORT_RETURN_IF_ERROR(ReadEnvironment(parser.raw().environment, &program->environment));
  for (const auto& [name, value] : program->environment) {
    if (!IsJobVariable(name)) continue;
    return InvalidArgumentError(Remedy::kWholeJobOption,
                                "--env " + name +
                                    " is for the whole job: give it before the first program, since all ranks must "
                                    "have the same");
  }
  return absl::OkStatus();
}

absl::Status OnePartMayLackItsCount(const CommandParser& first, const std::vector<RankProgram>& programs) {
  const RankProgram* without = first.Has("--np") ? nullptr : &programs[0];
  for (size_t i = 1; i < programs.size(); ++i) {
    if (programs[i].count) continue;
    if (without != nullptr) {
      return absl::InvalidArgumentError(
          without->where + " (" + without->command[0] + ") and " + programs[i].where + " (" + programs[i].command[0] +
          ") have no -n: one program may leave it out, and gets the ranks that the others "
          "leave, as in " +
          Form());
    }
    without = &programs[i];
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<RankProgram>> ReadColonPrograms(const CommandParser& first,
                                                           std::optional<std::string>* print) {
  std::vector<RankProgram> programs;
  std::unique_ptr<CommandParser> later;
  const CommandParser* parser = &first;
  while (true) {
    const bool is_first = programs.empty();
    RankProgram& program = programs.emplace_back();
    const std::string place = "program " + std::to_string(programs.size());
    absl::StatusOr<Words> words = SplitWords(*parser, is_first);
    if (!words.ok()) return InPlace(is_first ? "" : place, words.status());
    if (!is_first || words->rest) program.where = place;
    COHORT_RETURN_IF_ERROR(CheckCommand(words->program, program.where));
    if (!is_first) COHORT_RETURN_IF_ERROR(InPlace(place, ReadPart(*parser, &program)));
    program.command = AsPythonProgram(std::move(words->program), parser->raw().module);
    if (!words->rest) break;
    later = std::make_unique<CommandParser>();
    const absl::StatusOr<std::optional<std::string>> text = later->Parse(*std::move(words->rest));
    if (!text.ok()) return InPlace("program " + std::to_string(programs.size() + 1), text.status());
    *print = *text;
    if (*print) return programs;
    parser = later.get();
  }
  if (programs.size() > 1) COHORT_RETURN_IF_ERROR(OnePartMayLackItsCount(first, programs));
  return programs;
}

}  // namespace cohort::launcher
