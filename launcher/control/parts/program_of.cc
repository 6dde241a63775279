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

std::string BaseName(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

// The place of the word that names the program: behind `env NAME=VALUE`, and what Python runs.
size_t NamingWord(const std::vector<std::string>& command) {
  size_t i = 0;
  if (BaseName(command[0]) == "env") {
    do ++i;
    while (i < command.size() && command[i].find('=') != std::string::npos);
  }
  if (i >= command.size()) return 0;
  if (!BaseName(command[i]).starts_with("python")) return i;
  for (size_t next = i + 1; next < command.size(); ++next) {
    if (command[next] == "-c") return i;
    if (!command[next].starts_with('-')) return next;
  }
  return i;
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
  const std::vector<std::string> command = CommandOf(programs, rank);
  return command.empty() ? "" : BaseName(command[NamingWord(command)]);
}

}  // namespace cohort::launcher
