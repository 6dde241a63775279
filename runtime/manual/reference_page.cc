#include "cohort/runtime/manual/reference_page.h"

#include <cstddef>

#include "cohort/runtime/manual/notes.h"

namespace cohort::runtime {
namespace {

// Text outside of code, in a table's cell.
std::string Markdown(const std::string& text) {
  std::string written;
  bool code = false;
  for (const char c : text) {
    if (c == '`') code = !code;
    if (c == '<' && !code) {
      written += "&lt;";  // the site's Markdown knows no backslash before it
      continue;
    }
    if (c == '|' || (!code && (c == '*' || c == '_' || c == '['))) written += '\\';
    written += c == '\n' ? ' ' : c;
  }
  return written;
}

// Code in a table's cell: only the bar needs an escape.
std::string Code(const std::string& text) {
  std::string written = "`";
  for (const char c : text) written += c == '|' ? "\\|" : std::string(1, c);
  return written + "`";
}

std::string Listed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + Code(word);
  return text;
}

std::string OptionRow(const ManualOption& option) {
  std::string names;
  for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + name;
  if (!option.value.empty()) names += " " + option.value;
  std::string help = Markdown(HelpOf(option));
  if (!option.choices.empty()) help += ": " + Listed(option.choices);
  return "| " + Code(names) + " | " + help + " |\n";
}

std::string Table(const ManualCommand& command) {
  if (command.options.empty() && command.operands.empty()) return "";
  std::string rows;
  for (const ManualOperand& operand : command.operands) {
    if (operand.help.empty()) continue;
    rows += "| " + Code(operand.name) + " | " + Markdown(operand.help) +
            (operand.choices.empty() ? "" : ": " + Listed(operand.choices)) + " |\n";
  }
  for (const ManualOption& option : command.options) rows += OptionRow(option);
  return "\n| option | meaning |\n|---|---|\n" + rows;
}

// `level`: of headings; empty: without them.
std::string MarkdownNotes(const std::string& notes, const std::string& level) {
  std::string text;
  for (const NoteBlock& block : ReadNotes(notes)) {
    if (block.kind == NoteBlock::Kind::kHeading) {
      if (level.empty()) continue;
      text += "\n" + level + " " + block.text + "\n";
    } else if (block.kind == NoteBlock::Kind::kLines) {
      text += "\n```\n" + block.text + "\n```\n";
    } else {
      text += "\n" + Markdown(block.text) + "\n";
    }
  }
  return text;
}

}  // namespace

std::string ReferencePage(const ManualCommand& program) {
  std::string page =
      "# " + program.name + ": options\n\n`" + program.name + " --describe markdown` prints this page.\n";
  page += "\n" + Markdown(program.summary) + "\n\n```\n" + WithUsage(program.name, program) + "\n```\n";
  page += Table(program);
  for (const ManualCommand& command : program.commands) {
    page += "\n## `" + WithUsage(program.name + " " + command.name, command) + "`\n\n" + Markdown(command.summary) +
            "\n" + Table(command) + MarkdownNotes(command.notes, "");
  }
  return page + MarkdownNotes(program.notes, "##");
}

}  // namespace cohort::runtime
