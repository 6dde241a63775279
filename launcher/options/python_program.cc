#include "cohort/launcher/options/python_program.h"

#include <utility>

namespace cohort::launcher {

std::vector<std::string> AsPythonProgram(std::vector<std::string> command, bool is_module) {
  if (command.empty() || (!is_module && !command[0].ends_with(".py"))) return command;
  std::vector<std::string> started = {"python3", "-u"};
  if (is_module) started.emplace_back("-m");
  for (std::string& word : command) started.push_back(std::move(word));
  return started;
}

}  // namespace cohort::launcher
