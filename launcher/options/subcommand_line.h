// The words after a subcommand's name: options and an operand, in any order.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace cohort::launcher {

struct SubcommandLine {
  std::string use;  // "dlaunch kill [--now] JOB", which errors end with
  std::string* operand = nullptr;
  bool operand_required = false;
  std::vector<std::pair<std::string, bool*>> flags = {};
  std::vector<std::pair<std::string, std::string*>> values = {};
};

// Writes what `words` give to where `line` says; the rest stays as it was. kInvalidArgument names what is wrong, but no
// operand, which may be a secret. Pure.
absl::Status ReadSubcommandLine(std::vector<std::string> words, const SubcommandLine& line);

}  // namespace cohort::launcher
