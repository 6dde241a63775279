#include "cohort/runtime/manual/describe.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"

namespace cohort::runtime {
namespace {

// CLI11's name of a value, in parts: "INT:1 to 64", "TEXT:{ring,tree}", "INT:SIZE [b, kb(=1024b), ...]:0 to 9".
struct ValueType {
  std::string name;
  std::string limits;
  std::vector<std::string> choices;
};

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == separator && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

ValueType ReadType(const std::string& type) {
  const std::vector<std::string> parts = Split(type, ':');
  const bool foreign = parts[0] == "TEXT" || parts[0] == "INT" || parts[0] == "UINT" || parts[0] == "FLOAT";
  if (!foreign) return {type, "", {}};  // a name of our own, which may hold colons
  ValueType read{parts[0] == "TEXT" ? "TEXT" : "N", "", {}};
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::string& part = parts[i];
    if (part.starts_with("SIZE ")) {
      read.name = "BYTES";
    } else if (part.size() > 2 && part.front() == '{' && part.back() == '}') {
      read.choices = Split(part.substr(1, part.size() - 2), ',');
    } else if (const size_t in = part.find(" in ["); in != std::string::npos) {
      const std::vector<std::string> ends = Split(part.substr(in + 5, part.size() - in - 6), ' ');
      if (ends.size() == 3) read.limits = ends[0] + " to " + ends[2];
    } else {
      read.limits = part;
    }
  }
  return read;
}

ManualOption DescribeOption(const CLI::App& app, const CLI::Option& option) {
  ManualOption described;
  for (const std::string& name : option.get_snames()) described.names.push_back("-" + name);
  if (!option.get_lnames().empty()) described.names.push_back("--" + option.get_lnames().front());
  described.help = &option == app.get_help_ptr() ? "Print the options and exit" : option.get_description();
  if (option.get_items_expected_max() == 0) return described;
  const ValueType type = ReadType(option.get_type_name());
  described.value = type.name;
  described.limits = type.limits;
  described.choices = type.choices;
  described.usual = option.get_default_str();
  return described;
}

ManualOperand DescribeOperand(const CLI::Option& option) {
  const ValueType type = ReadType(option.get_type_name());
  return {option.get_single_name(), option.get_description(), option.get_required(), type.choices};
}

}  // namespace

ManualCommand Describe(const CLI::App& app, const std::string& name) {
  ManualCommand command{.name = name, .summary = app.get_description(), .usage = ""};
  for (const CLI::Option* const option : app.get_options()) {
    if (option->get_positional() && !option->nonpositional()) {
      command.operands.push_back(DescribeOperand(*option));
    } else if (!option->get_description().empty()) {
      command.options.push_back(DescribeOption(app, *option));
    }
  }
  command.notes = app.get_footer();
  for (const CLI::App* const inner : app.get_subcommands([](const CLI::App*) { return true; })) {
    ManualCommand described = Describe(*inner, inner->get_name());
    std::erase_if(described.options, [](const ManualOption& one) { return one.names.back() == "--help"; });
    // A part of the program's notes is told once.
    if (command.notes.find(described.notes) != std::string::npos) described.notes.clear();
    command.commands.push_back(std::move(described));
  }
  return command;
}

}  // namespace cohort::runtime
