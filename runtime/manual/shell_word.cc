#include "cohort/runtime/manual/shell_word.h"

namespace cohort::runtime {

std::string ShellWord(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

}  // namespace cohort::runtime
