#include "cohort/runtime/manual/manual_page.h"

#include <algorithm>
#include <cctype>
#include <cstddef>

#include "cohort/runtime/manual/notes.h"

namespace cohort::runtime {
namespace {

// A text that roff prints as it is, on lines of its own.
std::string Roff(const std::string& text) {
  std::string written;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) written += "\\&";
    line_begins = c == '\n';
    if (c == '\\') {
      written += "\\e";
    } else if (c == '-') {
      written += "\\-";
    } else if (c == '\'') {
      written += "\\(aq";
    } else if (c == '^') {
      written += "\\(ha";
    } else if (c == '~') {
      written += "\\(ti";
    } else if (c == '`') {
      written += "\\(ga";
    } else {
      written += c;
    }
  }
  return written;
}

std::string Bold(const std::string& text) { return "\\fB" + Roff(text) + "\\fR"; }
std::string Italic(const std::string& text) { return "\\fI" + Roff(text) + "\\fR"; }

std::string Capitals(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string OptionItem(const ManualOption& option) {
  std::string names;
  for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + Bold(name);
  if (!option.value.empty()) names += " " + Italic(option.value);
  std::string help = HelpOf(option);
  if (!option.choices.empty() && help.find(option.choices.front()) == std::string::npos) {
    help += ":";
    for (const std::string& choice : option.choices) help += " " + choice;
  }
  return ".TP\n" + names + "\n" + Roff(help) + "\n";
}

std::string OperandItem(const ManualOperand& operand) {
  std::string help = operand.help;
  if (!operand.choices.empty()) {
    help += ":";
    for (const std::string& choice : operand.choices) help += " " + choice;
  }
  return ".TP\n" + Italic(operand.name) + "\n" + Roff(help) + "\n";
}

// `sections`: headings are sections of the page, not bold lines in one.
std::string RoffNotes(const std::string& notes, bool sections) {
  std::string text;
  for (const NoteBlock& block : ReadNotes(notes)) {
    if (block.kind == NoteBlock::Kind::kHeading) {
      text += sections ? ".SH " + Roff(Capitals(block.text)) + "\n" : ".PP\n" + Bold(block.text) + "\n";
    } else if (block.kind == NoteBlock::Kind::kLines) {
      text += ".PP\n.nf\n.RS 4\n" + Roff(block.text) + "\n.RE\n.fi\n";
    } else {
      text += ".PP\n" + Roff(block.text) + "\n";
    }
  }
  return text;
}

std::string Options(const ManualCommand& command) {
  std::string text;
  for (const ManualOperand& operand : command.operands) {
    if (!operand.help.empty()) text += OperandItem(operand);
  }
  for (const ManualOption& option : command.options) text += OptionItem(option);
  return text;
}

std::string Synopsis(const std::string& name, const ManualCommand& command) {
  const std::string usage = UsageOf(command);
  return Bold(name) + (usage.empty() ? "" : " " + Roff(usage)) + "\n";
}

std::string Command(const ManualCommand& program, const ManualCommand& command) {
  return ".SS " + Roff(WithUsage(program.name + " " + command.name, command)) + "\n" + Roff(command.summary) + "\n" +
         Options(command) + RoffNotes(command.notes, false);
}

// "Lists jobs." as the first line of a page wants it: "lists jobs".
std::string Brief(std::string summary) {
  summary = summary.substr(0, summary.find(".\n"));
  std::replace(summary.begin(), summary.end(), '\n', ' ');
  if (summary.ends_with('.')) summary.pop_back();
  if (summary.size() > 1 && std::islower(static_cast<unsigned char>(summary[1])) != 0) {
    summary[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(summary[0])));
  }
  return summary;
}

}  // namespace

std::string ManualPage(const ManualCommand& program, const std::string& build) {
  std::string page = ".TH " + Roff(Capitals(program.name)) + " 1 \"\" \"" + Roff(build) + "\" \"Cohort\"\n.ad l\n.nh\n";
  page += ".SH NAME\n" + Roff(program.name) + " \\- " + Roff(Brief(program.summary)) + "\n";
  page += ".SH SYNOPSIS\n.nf\n" + Synopsis(program.name, program);
  for (const ManualCommand& command : program.commands) {
    page += Synopsis(program.name + " " + command.name, command);
  }
  page += ".fi\n.SH DESCRIPTION\n" + Roff(program.summary) + "\n";
  page += ".SH OPTIONS\n" + Options(program);
  if (!program.commands.empty()) page += ".SH COMMANDS\n";
  for (const ManualCommand& command : program.commands) page += Command(program, command);
  return page + RoffNotes(program.notes, true);
}

}  // namespace cohort::runtime
