#include "cohort/launcher/control/parts/program_of.h"

#include <cstddef>

namespace cohort::launcher {
namespace {

bool Holds(const v1::RankSpan& span, uint32_t rank) { return span.first() <= rank && rank <= span.last(); }

// How many ranks the program names before this one.
uint32_t PlaceAmong(const v1::RankProgram& program, uint32_t rank) {
  uint32_t before = 0;
  for (const v1::RankSpan& span : program.ranks()) {
    if (Holds(span, rank)) return before + rank - span.first();
    before += span.last() - span.first() + 1;
  }
  return rank;  // none: all ranks run it
}

std::string WithoutMarks(const std::string& word, const v1::RankProgram& program, uint32_t rank) {
  std::string text;
  for (size_t i = 0; i < word.size(); ++i) {
    if (word[i] != '\0') {
      text += word[i];
    } else if (++i < word.size()) {
      text += std::to_string(word[i] == 'o' ? PlaceAmong(program, rank) : rank);
    }
  }
  return text;
}

}  // namespace

int ProgramOf(const RankPrograms& programs, uint32_t rank) {
  for (int i = 0; i < programs.size(); ++i) {
    for (const v1::RankSpan& span : programs[i].ranks()) {
      if (Holds(span, rank)) return i;
    }
  }
  return 0;
}

std::vector<std::string> CommandOf(const RankPrograms& programs, uint32_t rank) {
  std::vector<std::string> command;
  if (programs.empty()) return command;
  const v1::RankProgram& program = programs[ProgramOf(programs, rank)];
  for (const std::string& word : program.command()) command.push_back(WithoutMarks(word, program, rank));
  return command;
}

std::string ProgramName(const RankPrograms& programs, uint32_t rank) {
  if (programs.size() < 2) return "";
  const auto& command = programs[ProgramOf(programs, rank)].command();
  int named = 0;
  if (command.size() > 2 && command[1] == "-u") named = command.size() > 3 && command[2] == "-m" ? 3 : 2;
  if (command.empty()) return "";
  return command[named].substr(command[named].rfind('/') + 1);
}

}  // namespace cohort::launcher
