// The commands of dlaunch that start no job of their own, such as `dlaunch status`.
#pragma once

#include <string_view>
#include <vector>

#include "cohort/runtime/manual/command.h"

namespace cohort::launcher {

struct Subcommand {
  std::string_view name;
  // The text of `dlaunch NAME --help`, the manual page and completion.
  runtime::ManualCommand (*manual)();
  // With all of main's arguments. Blocks until the command has ended; its exit status.
  int (*run)(int argc, char** argv);
};

// Null when there is none of this name, which is then a program's.
const Subcommand* FindSubcommand(std::string_view name);

std::vector<runtime::ManualCommand> SubcommandManuals();

}  // namespace cohort::launcher
