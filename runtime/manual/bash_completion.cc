#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "cohort/runtime/manual/completion.h"
#include "cohort/runtime/manual/shell_word.h"

namespace cohort::runtime {
namespace {

// "words core numa", "file", "hosts": what the script's complete_kind understands.
std::string BashKind(const std::string& value, const std::vector<std::string>& choices) {
  switch (CompletesOf(value, choices)) {
    case Completes::kWords:
      return "words " + absl::StrJoin(choices, " ");
    case Completes::kFile:
      return "file";
    case Completes::kFolder:
      return "folder";
    case Completes::kHosts:
      return "hosts";
    case Completes::kJob:
      return "jobs";
    case Completes::kJobOrFile:
      return "jobs-and-files";
    case Completes::kNothing:
      break;
  }
  return "nothing";
}

// The cases of one command: what follows each of its options that take a value.
std::string BashValues(const ManualCommand& command, const std::string& name) {
  std::string text;
  for (const ManualOption& option : command.options) {
    if (option.value.empty()) continue;
    std::string patterns;
    for (const std::string& one : option.names) patterns += (patterns.empty() ? "" : "|") + ShellWord(name + ":" + one);
    text += "    " + patterns + ") kind=" + ShellWord(BashKind(option.value, ChoicesOf(option))) + " ;;\n";
  }
  return text;
}

// The words that may stand where no value is wanted.
std::string BashNames(const ManualCommand& command, const std::string& name) {
  std::string names;
  for (const ManualOption& option : command.options) {
    for (const std::string& one : option.names) names += (names.empty() ? "" : " ") + one;
  }
  return "    " + ShellWord(name) + ") names=" + ShellWord(names) + " ;;\n";
}

std::string BashOperands(const ManualCommand& command, const std::string& name) {
  std::string text;
  for (size_t i = 0; i < command.operands.size(); ++i) {
    const ManualOperand& operand = command.operands[i];
    text += "    " + ShellWord(name + ":" + std::to_string(i)) +
            ") kind=" + ShellWord(BashKind(operand.name, ChoicesOf(operand))) + " ;;\n";
  }
  return text;
}

// @ stands for the program's name. Readline splits words at '=' and ':', and bash does not say where blanks were: words
// of the line that touch are joined first, but an option and the '=' behind it. Readline replaces only the piece behind
// the last of these signs, so what is before it goes from the completions.
constexpr char kBashBody[] = R"bash(
_@_add() { # adds what compgen has found, a line each: names may hold blanks
  mapfile -t -O ${#COMPREPLY[*]} COMPREPLY
}
_@_complete() { # what completes a value: $1 is its kind, $2 what is typed of it
  local list=${2%"${2##*,}"}
  case ${1%% *} in
    words) _@_add < <(compgen -W "${1#* }" -- "$2") ;;
    file) _@_add < <(compgen -f -- "$2"); compopt -o filenames 2>/dev/null ;;
    folder) _@_add < <(compgen -d -- "$2"); compopt -o filenames 2>/dev/null ;;
    jobs) _@_add < <(compgen -W "$("$program" completion jobs 2>/dev/null)" -- "$2") ;;
    jobs-and-files)
      _@_add < <(compgen -f -W "$("$program" completion jobs 2>/dev/null)" -- "$2")
      compopt -o filenames 2>/dev/null
      ;;
    hosts) _@_add < <(compgen -P "$list" -W "$("$program" completion hosts 2>/dev/null)" -- "${2##*,}") ;;
  esac
}
_@_join() { # makes words and places, the index in COMP_WORDS of each, up to the cursor
  local line=$COMP_LINE rest piece= before n=-1 i
  for ((i = 0; i <= COMP_CWORD; ++i)); do
    before=$piece piece=${COMP_WORDS[i]}
    rest=${line#"${line%%[![:space:]]*}"}
    if [[ $i -gt 0 && -n $piece && $line == "$rest" ]] &&
      [[ $piece == :* || $before == *: || ($piece == =* && ${words[n]} != -*) || ($before == *= && ${words[n]} != =) ]]; then
      words[n]+=$piece
    else
      words[++n]=$piece places[n]=$i
    fi
    line=${rest#"$piece"}
  done
  last=$n
}
_@() {
  local IFS=$' \t\n' words=() places=() last piece=${COMP_WORDS[COMP_CWORD]} cur i
  _@_join
  cur=${words[last]}
  [[ $cur == = ]] && cur=
  [[ $piece =~ ^[:=]+$ ]] && piece=
  COMPREPLY=()
  _@_look
  piece=${cur%"$piece"}
  for ((i = 0; i < ${#COMPREPLY[*]}; ++i)); do COMPREPLY[i]=${COMPREPLY[i]#"$piece"}; done
}
_@_look() {
  local program=${words[0]} command= kind= names= word operands=0 i
  program=${program/#\~/$HOME}
  for ((i = 1; i < last; ++i)); do
    word=${words[i]}
    case $word in
      --) ((++i)); break ;;
      -?*)
        kind=
        _@_value "$command:$word"
        [[ -z $kind ]] && continue
        ((++i))
        [[ ${words[i]} == = && i -lt last ]] && ((++i))
        if ((i >= last)); then
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
  if [[ -n $_@_runs && -z $command ]] && ((i < last || (i == last && i > 1))) &&
    [[ $i -lt $last || ${words[i-1]} == -- ]]; then
    # A program and its arguments.
    if declare -F _command_offset >/dev/null; then
      _command_offset "${places[i]}"
      piece=$cur
    elif ((i == last)); then
      _@_add < <(compgen -c -f -- "$cur")
      compopt -o filenames 2>/dev/null
    else
      _@_complete file "$cur"
    fi
    return
  fi
  _@_names "$command"
  if [[ $cur == -* ]]; then
    _@_add < <(compgen -W "$names" -- "$cur")
    return
  fi
  kind=
  _@_operand "$command:$operands"
  [[ -n $kind ]] && _@_complete "$kind" "$cur"
  if [[ -z $command ]]; then
    if ((last == 1)) || [[ -z $_@_runs ]]; then _@_add < <(compgen -W "$_@_commands" -- "$cur"); fi
    if [[ -n $_@_runs ]]; then
      _@_add < <(compgen -c -f -- "$cur")
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
  text += function + "_commands=" + ShellWord(commands) + "\n";
  text += function + "_runs=" + (program.runs_program ? "1" : "") + "\n";
  text += function + "_value() { # what follows an option\n  case $1 in\n" + values + "    *) ;;\n  esac\n}\n";
  text += function + "_names() { # the options of a command\n  case $1 in\n" + names + "    *) ;;\n  esac\n}\n";
  text += function + "_operand() { # what stands at a place\n  case $1 in\n" + operands + "    *) ;;\n  esac\n}";
  for (const char c : std::string(kBashBody)) text += c == '@' ? program.name : std::string(1, c);
  return text;
}

}  // namespace cohort::runtime
