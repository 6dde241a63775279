#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "cohort/runtime/manual/completion.h"
#include "cohort/runtime/manual/shell_word.h"

namespace cohort::runtime {
namespace {

// A text in a specification of _arguments: brackets and colons mean something there.
std::string Specified(const std::string& text) {
  std::string written;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') written += '\\';
    written += c == '\n' ? ' ' : c;
  }
  return written;
}

// The action of _arguments that completes a value.
std::string Action(const std::string& function, const std::string& value, const std::vector<std::string>& choices) {
  switch (CompletesOf(value, choices)) {
    case Completes::kWords:
      return "(" + absl::StrJoin(choices, " ") + ")";
    case Completes::kFile:
      return "_files";
    case Completes::kFolder:
      return "_files -/";
    case Completes::kHosts:
      return function + "_hosts";
    case Completes::kJob:
      return function + "_jobs";
    case Completes::kJobOrFile:
      return function + "_jobs_and_files";
    case Completes::kNothing:
      break;
  }
  return " ";
}

std::string ZshOptions(const ManualCommand& command, const std::string& function) {
  std::string text;
  for (const ManualOption& option : command.options) {
    std::string all;
    for (const std::string& name : option.names) all += (all.empty() ? "" : " ") + name;
    for (const std::string& name : option.names) {
      std::string spec = "(" + all + ")" + name;
      if (!option.value.empty() && name.starts_with("--")) spec += "=";
      spec += "[" + Specified(HelpOf(option)) + "]";
      if (!option.value.empty()) {
        spec += ":" + Specified(option.value) + ":" + Action(function, option.value, ChoicesOf(option));
      }
      text += " \\\n    " + ShellWord(spec);
    }
  }
  return text;
}

std::string ZshOperands(const ManualCommand& command, const std::string& function) {
  std::string text;
  for (const ManualOperand& operand : command.operands) {
    std::string action = Action(function, operand.name, ChoicesOf(operand));
    if (action == " ") action = "( )";  // zsh would show the operand's name, and insert no option in its place
    text +=
        " \\\n    " + ShellWord(std::string(operand.required ? ":" : "::") + Specified(operand.name) + ":" + action);
  }
  return text;
}

std::string ZshCommands(const ManualCommand& program, const std::string& function) {
  std::string text = function + "_commands() {\n  local -a commands=(";
  for (const ManualCommand& command : program.commands) {
    const std::string first = command.summary.substr(0, command.summary.find('.'));
    text += "\n    " + ShellWord(command.name + ":" + Specified(first));
  }
  return text + "\n  )\n  _describe -t commands 'command' commands\n}\n";
}

}  // namespace

std::string ZshCompletion(const ManualCommand& program) {
  const std::string function = "_" + program.name;
  std::string text = "#compdef " + program.name + "\n# Completion of " + program.name + " for zsh, made by `" +
                     program.name + " --describe zsh`.\n";
  text += function + "_jobs() {\n  local -a jobs=(${(f)\"$(${~program} completion jobs 2>/dev/null)\"})\n" +
          "  compadd -a jobs\n}\n";
  text += function + "_jobs_and_files() {\n  _alternative 'jobs:job:" + function + "_jobs' 'files:file:_files'\n}\n";
  text += function + "_hosts() {\n  local -a hosts=(${(f)\"$(${~program} completion hosts 2>/dev/null)\"})\n" +
          "  compset -P '*,'\n  compadd -q -S , -a hosts\n}\n";
  text += ZshCommands(program, function);
  if (program.runs_program) {
    text += function + "_program() {\n  if ((CURRENT == 1)); then\n    _alternative 'commands:command:" + function +
            "_commands' 'programs:program:_command_names -e' 'files:file:_files'\n  else\n    _normal\n  fi\n}\n";
  }
  text += function + "() {\n  local program=$words[1]\n";
  if (!program.commands.empty()) {
    text += "  if ((CURRENT > 2)); then\n    case $words[2] in\n";
    for (const ManualCommand& command : program.commands) {
      text += "    " + command.name + ") shift words; ((CURRENT--)); _arguments -s" + ZshOptions(command, function) +
              ZshOperands(command, function) + "\n      return ;;\n";
    }
    text += "    esac\n  fi\n";
  }
  text += "  _arguments -s" + std::string(program.runs_program ? " -S" : "") + ZshOptions(program, function);
  if (program.runs_program) {
    text += " \\\n    '(-)*:: :" + function + "_program'";
  } else if (!program.commands.empty()) {
    text += " \\\n    '1:command:" + function + "_commands'";
  } else {
    text += ZshOperands(program, function);
  }
  // Sourced by a start-up file it is registered; as a file in fpath it is the function.
  return text + "\n}\nif [[ ${funcstack[1]} == " + function + " ]]; then\n  " + function + " \"$@\"\nelse\n  compdef " +
         function + " " + program.name + "\nfi\n";
}

}  // namespace cohort::runtime
