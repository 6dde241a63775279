// The words after a subcommand's name: options and an operand, in any order. One description of them serves the parser,
// `--help`, the manual page and completion.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/runtime/manual/command.h"

namespace cohort::launcher {

struct SubcommandLine {
  struct Flag {
    std::string name;  // "--now"
    std::string help;
    bool* value = nullptr;
  };
  struct Value {
    std::string name;  // "--interval"
    std::string type;  // "TIME"; see runtime/manual/README.md
    std::string help;
    std::string* value = nullptr;
  };
  struct Operand {
    std::string name;  // "JOB"; empty: there is none
    std::string help;
    std::string* value = nullptr;
    bool required = false;
  };
  std::string name;     // "kill"
  std::string summary;  // sentences
  std::string notes;    // examples; see runtime/manual/notes.h
  std::string hint;     // what errors end with besides the usage
  Operand operand = {};
  std::vector<Flag> flags = {};
  std::vector<Value> values = {};
};

// Writes what `words` give to where `line` says; the rest stays as it was. kInvalidArgument names what is wrong and how
// the command is used, but no operand, which may be a secret. Pure.
absl::Status ReadSubcommandLine(std::vector<std::string> words, const SubcommandLine& line);

// "dlaunch kill [--now] JOB; dlaunch status lists the jobs of this machine"
std::string UseOf(const SubcommandLine& line);

runtime::ManualCommand ManualOf(const SubcommandLine& line);

// The output of `dlaunch kill --help`.
std::string HelpText(const runtime::ManualCommand& command);

}  // namespace cohort::launcher
