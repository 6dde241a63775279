// A program's command line as values, from which its manual page, its reference and its completion are made.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cohort::runtime {

struct ManualOption {
  std::vector<std::string> names;         // "-n", "--np"
  std::string value;                      // "FILE", "core|numa|none"; empty: a flag
  std::string help;                       // may be empty
  std::string limits;                     // "1 to 1000"; empty: said by `help`
  std::string usual;                      // the value where it is not given; empty: said by `help`
  std::vector<std::string> choices = {};  // words that complete the value, beside those in `value`
};

struct ManualOperand {
  std::string name;  // "JOB"
  std::string help;
  bool required = false;
  std::vector<std::string> choices = {};
};

struct ManualCommand {
  std::string name;     // "dlaunch", or "status" of a program's commands
  std::string summary;  // one sentence
  std::string usage;    // what follows the name; empty: made of options and operands
  std::vector<ManualOption> options = {};
  std::vector<ManualOperand> operands = {};
  std::string notes = {};  // paragraphs and examples; see notes.h
  std::vector<ManualCommand> commands = {};
  bool runs_program = false;  // the first operand is a program, and all that follows belongs to it
};

// The kind of words that complete a value or an operand.
enum class Completes { kNothing, kWords, kFile, kFolder, kHosts, kJob, kJobOrFile };
// `choices`: words that complete the value beside those of its name.
Completes CompletesOf(std::string_view value, const std::vector<std::string>& choices = {});
// The words of "core|numa|none"; none of "N|MIN:MAX", whose parts stand for values.
std::vector<std::string> WordsOf(std::string_view value);
// All words that complete the option's value.
std::vector<std::string> ChoicesOf(const ManualOption& option);
std::vector<std::string> ChoicesOf(const ManualOperand& operand);

// "[--now] JOB", or the command's own.
std::string UsageOf(const ManualCommand& command);
// The same behind the command's name, which ends the text where nothing follows: "dlaunch kill [--now] JOB".
std::string WithUsage(const std::string& name, const ManualCommand& command);
// The help with its limits and the usual value: "Ranks on each node (1 to 8; 4 unless given)".
std::string HelpOf(const ManualOption& option);

}  // namespace cohort::runtime
