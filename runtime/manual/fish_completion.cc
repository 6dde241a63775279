#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "cohort/runtime/manual/completion.h"

namespace cohort::runtime {
namespace {

std::string FishWord(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + "'";
}

// The words that complete a value, as arguments of `complete`.
std::string FishValue(const std::string& value, const std::vector<std::string>& choices, const std::string& program) {
  switch (CompletesOf(value, choices)) {
    case Completes::kWords:
      return " -x -a " + FishWord(absl::StrJoin(choices, " "));
    case Completes::kFile:
      return " -r -F";
    case Completes::kFolder:
      return " -x -a '(__fish_complete_directories)'";
    case Completes::kHosts:
      return " -x -a '(__" + program + "_hosts)'";
    case Completes::kJob:
      return " -x -a '(" + program + " completion jobs 2>/dev/null)'";
    case Completes::kJobOrFile:
      return " -F -a '(" + program + " completion jobs 2>/dev/null)'";
    case Completes::kNothing:
      break;
  }
  return " -x";
}

std::string FishOptions(const ManualCommand& command, const std::string& program, const std::string& condition) {
  std::string text;
  for (const ManualOption& option : command.options) {
    std::string line = "complete -c " + program + " -n " + FishWord(condition);
    for (const std::string& name : option.names) {
      line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    if (!option.value.empty()) line += FishValue(option.value, ChoicesOf(option), program);
    text += line + " -d " + FishWord(HelpOf(option)) + "\n";
  }
  return text;
}

std::string FishOperands(const ManualCommand& command, const std::string& program, const std::string& condition) {
  std::string text;
  for (const ManualOperand& operand : command.operands) {
    text += "complete -c " + program + " -n " + FishWord(condition) +
            FishValue(operand.name, ChoicesOf(operand), program) + "\n";
  }
  return text;
}

// Prints the command that the line has: its name, "program" behind a program, or nothing yet.
std::string FishState(const ManualCommand& program) {
  std::string values;
  for (const ManualOption& option : program.options) {
    if (option.value.empty()) continue;
    for (const std::string& name : option.names) values += " " + name;
  }
  std::string commands;
  for (const ManualCommand& command : program.commands) commands += " " + command.name;
  return "function __" + program.name + "_command\n  set -l words (commandline -opc)\n  set -l skip 0\n" +
         "  for word in $words[2..-1]\n    if test $skip = 1\n      set skip 0\n    else if contains -- $word" +
         values +
         "\n      set skip 1\n    else if string match -q -- '-*' $word\n      continue\n    else if contains -- "
         "$word" +
         commands +
         "\n      echo $word\n      return\n    else\n      echo program\n      return\n    end\n  end\nend\n";
}

}  // namespace

std::string FishCompletion(const ManualCommand& program) {
  const std::string& name = program.name;
  std::string text = "# Completion of " + name + " for fish, made by `" + name + " --describe fish`.\n";
  text += FishState(program);
  text += "function __" + name +
          "_hosts\n  set -l list (string match -r '^(?:--[a-z-]+=)?(.*,)?' -- (commandline -ct))[2]\n  " + name +
          " completion hosts 2>/dev/null | string replace -r '^' -- \"$list\"\nend\n";
  text += "function __" + name + "_is\n  set -l command (__" + name + "_command)\n" +
          "  test \"$command\" = \"$argv[1]\"\nend\n";
  const std::string none = "__" + name + "_is \"\"";
  text += FishOptions(program, name, none);
  for (const ManualCommand& command : program.commands) {
    text += "complete -c " + name + " -n " + FishWord(none) + (program.runs_program ? "" : " -f") + " -a " +
            FishWord(command.name) + " -d " + FishWord(command.summary.substr(0, command.summary.find('.'))) + "\n";
    const std::string here = "__" + name + "_is " + command.name;
    text += "complete -c " + name + " -n " + FishWord(here) + " -f\n";
    text += FishOptions(command, name, here) + FishOperands(command, name, here);
  }
  if (program.runs_program) {
    text += "complete -c " + name + " -n " + FishWord(none) + " -a '(complete -C \" \"(commandline -ct))'\n";
  } else {
    text += FishOperands(program, name, none);
  }
  return text;
}

}  // namespace cohort::runtime
