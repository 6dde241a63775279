#include "cohort/launcher/options/subcommand_line.h"

#include <algorithm>
#include <cstddef>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {

namespace {

// A word that is no number to us, as it is to CLI11: "-9" in "dlaunch kill -9 JOB".
bool LooksLikeSignal(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word[1] >= '0' && word[1] <= '9';
}

}  // namespace

absl::Status ReadSubcommandLine(std::vector<std::string> words, const SubcommandLine& line) {
  const auto invalid = [&](const std::string& why, Remedy remedy = Remedy::kUsage) {
    return InvalidArgumentError(remedy, why + "; use: " + UseOf(line));
  };
  if (std::find(words.begin(), words.end(), "") != words.end()) return invalid("an argument is empty");
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  if (line.operand.value != nullptr) app.add_option("OPERAND", *line.operand.value);
  for (const SubcommandLine::Flag& flag : line.flags) app.add_flag(flag.name, *flag.value);
  for (const SubcommandLine::Value& value : line.values) app.add_option(value.name, *value.value);
  std::erase(words, "--");  // no operand begins with a dash
  for (size_t i = 0; i < words.size(); ++i) {
    const bool is_value = i > 0 && std::any_of(line.values.begin(), line.values.end(),
                                               [&](const auto& value) { return value.name == words[i - 1]; });
    if (!is_value && LooksLikeSignal(words[i]))
      return invalid("unknown option '" + words[i] + "'", Remedy::kOptionUnknown);
  }
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    const std::string what = error.what();
    const std::string name = what.substr(0, what.find(':'));
    if (what.starts_with("Could not convert: ")) return invalid("one of its options takes no value");
    if (what.ends_with(" missing")) return invalid(name + " has no value");
    if (what.find("required but received") == std::string::npos) return invalid(what);
    return invalid(name + " is given twice", Remedy::kOptionGivenTwice);
  }
  if (const std::vector<std::string> rest = app.remaining(); !rest.empty()) {
    if (rest[0].size() < 2 || rest[0][0] != '-') return invalid("one argument too many");
    return invalid("unknown option '" + rest[0].substr(0, rest[0].find('=')) + "'", Remedy::kOptionUnknown);
  }
  if (line.operand.required && line.operand.value->empty()) return invalid("an argument is missing");
  return absl::OkStatus();
}

runtime::ManualCommand ManualOf(const SubcommandLine& line) {
  runtime::ManualCommand command{.name = line.name, .summary = line.summary, .usage = ""};
  for (const SubcommandLine::Flag& flag : line.flags) {
    command.options.push_back({{flag.name}, "", flag.help, "", ""});
  }
  for (const SubcommandLine::Value& value : line.values) {
    command.options.push_back({{value.name}, value.type, value.help, "", ""});
  }
  if (!line.operand.name.empty()) {
    command.operands.push_back({line.operand.name, line.operand.help, line.operand.required});
  }
  command.notes = line.notes;
  return command;
}

std::string UseOf(const SubcommandLine& line) {
  return "dlaunch " + line.name + " " + UsageOf(ManualOf(line)) + (line.hint.empty() ? "" : "; " + line.hint);
}

std::string HelpText(const runtime::ManualCommand& command) {
  std::string text = "Usage: dlaunch " + command.name + " " + UsageOf(command) + "\n" + command.summary + "\n";
  const auto add = [&text](std::string name, const std::string& help) {
    constexpr size_t kColumn = 18;
    name = "  " + name;
    name.append(name.size() < kColumn ? kColumn - name.size() : 2, ' ');
    text += name + help + "\n";
  };
  for (const runtime::ManualOperand& operand : command.operands) add(operand.name, operand.help);
  for (const runtime::ManualOption& option : command.options) {
    add(option.names.front() + (option.value.empty() ? "" : " " + option.value), option.help);
  }
  return text + command.notes;
}

}  // namespace cohort::launcher
