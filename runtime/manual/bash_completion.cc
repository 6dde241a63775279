#include <string>
#include <vector>

#include "cohort/runtime/manual/completion.h"

namespace cohort::runtime {
namespace {

std::string BashWord(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// "words core numa", "file", "hosts": what the script's complete_kind understands.
std::string BashKind(const std::string& value, const std::vector<std::string>& choices) {
  if (!choices.empty()) {
    std::string kind = "words";
    for (const std::string& choice : choices) kind += " " + choice;
    return kind;
  }
  switch (CompletesOf(value)) {
    case Completes::kFile:
      return "file";
    case Completes::kFolder:
      return "folder";
    case Completes::kHosts:
      return "hosts";
    case Completes::kJob:
      return "jobs";
    default:
      return "nothing";
  }
}

// The cases of one command: what follows each of its options that take a value.
std::string BashValues(const ManualCommand& command, const std::string& name) {
  std::string text;
  for (const ManualOption& option : command.options) {
    if (option.value.empty()) continue;
    std::string patterns;
    for (const std::string& one : option.names) patterns += (patterns.empty() ? "" : "|") + BashWord(name + ":" + one);
    text += "    " + patterns + ") kind=" + BashWord(BashKind(option.value, ChoicesOf(option))) + " ;;\n";
  }
  return text;
}

// The words that may stand where no value is wanted.
std::string BashNames(const ManualCommand& command, const std::string& name) {
  std::string names;
  for (const ManualOption& option : command.options) {
    for (const std::string& one : option.names) names += (names.empty() ? "" : " ") + one;
  }
  return "    " + BashWord(name) + ") names=" + BashWord(names) + " ;;\n";
}

std::string BashOperands(const ManualCommand& command, const std::string& name) {
  std::string text;
  for (size_t i = 0; i < command.operands.size(); ++i) {
    const ManualOperand& operand = command.operands[i];
    text += "    " + BashWord(name + ":" + std::to_string(i)) +
            ") kind=" + BashWord(BashKind(operand.name, ChoicesOf(operand))) + " ;;\n";
  }
  return text;
}

// @ stands for the program's name. Words split at '=' and ':' by readline are joined first.
constexpr char kBashBody[] = R"bash(
_@_complete() { # what completes a value: $1 is its kind, $2 what is typed of it
  local IFS=$' \t\n' list=${2%"${2##*,}"}
  case ${1%% *} in
    words) COMPREPLY=($(compgen -W "${1#* }" -- "$2")) ;;
    file) COMPREPLY=($(IFS=$'\n'; compgen -f -- "$2")); compopt -o filenames 2>/dev/null ;;
    folder) COMPREPLY=($(IFS=$'\n'; compgen -d -- "$2")); compopt -o filenames 2>/dev/null ;;
    jobs) COMPREPLY=($(compgen -W "$("$program" completion jobs 2>/dev/null)" -- "$2")) ;;
    hosts) COMPREPLY=($(compgen -P "$list" -W "$("$program" completion hosts 2>/dev/null)" -- "${2##*,}")) ;;
  esac
}
_@() {
  local program=${COMP_WORDS[0]} cur=${COMP_WORDS[COMP_CWORD]} command= kind= names= word operands=0 i
  program=${program/#\~/$HOME}
  COMPREPLY=()
  [[ $cur == = ]] && cur=
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    case $word in
      --) ((++i)); break ;;
      -?*)
        kind=
        _@_value "$command:$word"
        [[ -z $kind ]] && continue
        ((++i))
        [[ ${COMP_WORDS[i]} == = && i -lt COMP_CWORD ]] && ((++i))
        if ((i >= COMP_CWORD)); then
          _@_complete "$kind" "$cur"
          return
        fi
        ;;
      *)
        if [[ -z $command && $operands -eq 0 && " $_@_commands " == *" $word "* ]]; then
          command=$word
        elif [[ -z $command && -n $_@_runs ]]; then
          break
        else
          ((++operands))
        fi
        ;;
    esac
  done
  if [[ -n $_@_runs && -z $command ]] && ((i < COMP_CWORD || (i == COMP_CWORD && i > 1))) &&
    [[ $i -lt $COMP_CWORD || ${COMP_WORDS[i-1]} == -- ]]; then
    # A program and its arguments.
    if declare -F _command_offset >/dev/null; then
      _command_offset "$i"
    elif ((i == COMP_CWORD)); then
      COMPREPLY=($(IFS=$'\n'; compgen -c -f -- "$cur"))
      compopt -o filenames 2>/dev/null
    else
      _@_complete file "$cur"
    fi
    return
  fi
  _@_names "$command"
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$names" -- "$cur"))
    return
  fi
  kind=
  _@_operand "$command:$operands"
  [[ -n $kind ]] && _@_complete "$kind" "$cur"
  if [[ -z $command ]]; then
    if ((COMP_CWORD == 1)) || [[ -z $_@_runs ]]; then COMPREPLY+=($(compgen -W "$_@_commands" -- "$cur")); fi
    if [[ -n $_@_runs ]]; then
      COMPREPLY+=($(IFS=$'\n'; compgen -c -f -- "$cur"))
      compopt -o filenames 2>/dev/null
    fi
  fi
}
complete -F _@ @
)bash";

}  // namespace

std::string BashCompletion(const ManualCommand& program) {
  std::string commands;
  std::string values = BashValues(program, "");
  std::string names = BashNames(program, "");
  std::string operands = program.runs_program ? "" : BashOperands(program, "");
  for (const ManualCommand& command : program.commands) {
    commands += (commands.empty() ? "" : " ") + command.name;
    values += BashValues(command, command.name);
    names += BashNames(command, command.name);
    operands += BashOperands(command, command.name);
  }
  const std::string function = "_" + program.name;
  std::string text = "# Completion of " + program.name + " for bash, made by `" + program.name + " --describe bash`.\n";
  text += function + "_commands=" + BashWord(commands) + "\n";
  text += function + "_runs=" + (program.runs_program ? "1" : "") + "\n";
  text += function + "_value() { # what follows an option\n  case $1 in\n" + values + "    *) ;;\n  esac\n}\n";
  text += function + "_names() { # the options of a command\n  case $1 in\n" + names + "    *) ;;\n  esac\n}\n";
  text += function + "_operand() { # what stands at a place\n  case $1 in\n" + operands + "    *) ;;\n  esac\n}";
  for (const char c : std::string(kBashBody)) text += c == '@' ? program.name : std::string(1, c);
  return text;
}

}  // namespace cohort::runtime
