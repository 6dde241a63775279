#include "cohort/runtime/manual/notes.h"

#include <cstddef>

#include "absl/strings/str_split.h"

namespace cohort::runtime {
namespace {

// The length of a heading that stands before its paragraph's text, with the colon: "Exit status: 0", "What it draws:
// ...".
size_t HeadingOf(const std::string& line) {
  constexpr size_t kLongest = 50;
  const size_t colon = line.find(": ");
  const bool heading = line.starts_with("Exit status") || line.starts_with("What ");
  return heading && colon != std::string::npos && colon < kLongest ? colon + 1 : 0;
}

}  // namespace

std::vector<NoteBlock> ReadNotes(const std::string& notes) {
  using Kind = NoteBlock::Kind;
  std::vector<NoteBlock> blocks;
  const std::vector<std::string> lines = absl::StrSplit(notes, '\n');
  bool fresh = true;  // the next line begins a block
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (line.empty()) {
      fresh = true;
    } else if (line.starts_with("  ")) {
      if (fresh || blocks.empty() || blocks.back().kind != Kind::kLines) {
        blocks.push_back({Kind::kLines, line.substr(2)});
      } else {
        blocks.back().text += "\n" + line.substr(2);
      }
      fresh = false;
    } else if (line.ends_with(':') && i + 1 < lines.size() && lines[i + 1].starts_with("  ") && line.size() < 40) {
      blocks.push_back({Kind::kHeading, line.substr(0, line.size() - 1)});
      fresh = true;
    } else if (const size_t heading = HeadingOf(line); heading > 0) {
      blocks.push_back({Kind::kHeading, line.substr(0, heading - 1)});
      blocks.push_back({Kind::kParagraph, line.substr(heading + 1)});
      fresh = false;
    } else if (fresh || blocks.empty() || blocks.back().kind != Kind::kParagraph) {
      // Text after examples is no part of them.
      if (!blocks.empty() && blocks.back().kind == Kind::kLines && !fresh) blocks.push_back({Kind::kHeading, "Notes"});
      blocks.push_back({Kind::kParagraph, line});
      fresh = false;
    } else {
      blocks.back().text += " " + line;
    }
  }
  return blocks;
}

}  // namespace cohort::runtime
