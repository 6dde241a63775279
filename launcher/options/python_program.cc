#include "cohort/launcher/options/python_program.h"

#include <utility>

namespace cohort::launcher {

namespace {

bool IsPythonsOwn(const std::string& name) {
  for (const char* const suffix : {".py", ".pyc", ".pyz", ".pyzw", ".zip"}) {
    if (name.ends_with(suffix)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> AsPythonProgram(std::vector<std::string> command, bool is_module) {
  if (command.empty() || (!is_module && !IsPythonsOwn(command[0]))) return command;
  std::vector<std::string> started = {"python3", "-u"};
  if (is_module) started.emplace_back("-m");
  for (std::string& word : command) started.push_back(std::move(word));
  return started;
}

}  // namespace cohort::launcher
