#include "cohort/runtime/manual/command.h"

#include <algorithm>
#include <cstddef>

namespace cohort::runtime {
namespace {

bool IsWord(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

std::vector<std::string> Joined(std::vector<std::string> words, const std::vector<std::string>& more) {
  for (const std::string& word : more) {
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  return words;
}

}  // namespace

std::vector<std::string> WordsOf(std::string_view value) {
  std::vector<std::string> words;
  if (value.find('|') == std::string_view::npos) return words;
  while (!value.empty()) {
    const size_t end = std::min(value.find('|'), value.size());
    if (IsWord(value.substr(0, end))) words.emplace_back(value.substr(0, end));
    value.remove_prefix(std::min(end + 1, value.size()));
  }
  return words;
}

Completes CompletesOf(std::string_view value, const std::vector<std::string>& choices) {
  if (!choices.empty()) return Completes::kWords;
  if (value == "FILE" || value == "PATH") return Completes::kFile;
  if (value == "FOLDER") return Completes::kFolder;
  if (value == "HOSTS") return Completes::kHosts;
  if (value == "JOB") return Completes::kJob;
  if (value == "JOB|FILE") return Completes::kJobOrFile;
  return WordsOf(value).empty() ? Completes::kNothing : Completes::kWords;
}

std::vector<std::string> ChoicesOf(const ManualOption& option) { return Joined(WordsOf(option.value), option.choices); }

std::vector<std::string> ChoicesOf(const ManualOperand& operand) {
  return Joined(WordsOf(operand.name), operand.choices);
}

std::string UsageOf(const ManualCommand& command) {
  if (!command.usage.empty()) return command.usage;
  std::string usage;
  const auto add = [&usage](const std::string& text) { usage += (usage.empty() ? "" : " ") + text; };
  if (command.options.size() > 6) {
    add("[options]");
  } else {
    for (const ManualOption& option : command.options) {
      add("[" + option.names.back() + (option.value.empty() ? "" : " " + option.value) + "]");
    }
  }
  if (!command.commands.empty()) add("command");
  for (const ManualOperand& operand : command.operands) {
    add(operand.required ? operand.name : "[" + operand.name + "]");
  }
  return usage;
}

std::string WithUsage(const std::string& name, const ManualCommand& command) {
  const std::string usage = UsageOf(command);
  return usage.empty() ? name : name + " " + usage;
}

std::string HelpOf(const ManualOption& option) {
  std::string values = option.limits;
  if (!option.usual.empty()) values += (values.empty() ? "" : "; ") + option.usual + " unless given";
  if (values.empty()) return option.help;
  return option.help + (option.help.empty() ? "" : " ") + "(" + values + ")";
}

}  // namespace cohort::runtime
