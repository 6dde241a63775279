// Cuts the text below a program's options into what the forms print.
#pragma once

#include <string>
#include <vector>

namespace cohort::runtime {

struct NoteBlock {
  enum class Kind {
    kHeading,    // "Examples:", "Exit status:"
    kParagraph,  // lines that flow
    kLines,      // lines that stay as they are: indented ones
  };
  Kind kind = Kind::kParagraph;
  std::string text;  // without indentation; of kLines with newlines between
};

// Indented lines stay as they are. A line that ends in a colon before such lines is a heading, and so are the words
// before the colon of a line that begins with "Exit status" or "What". An empty line ends a paragraph. Pure.
std::vector<NoteBlock> ReadNotes(const std::string& notes);

}  // namespace cohort::runtime
