// Text from elsewhere, made safe for a terminal or a log.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cohort::launcher {

// Returns the text with everything that could steer a terminal, or pass for a line of dlaunch's own, shown as "\x1b".
// These are control characters, bytes that are no UTF-8, and characters that turn the direction of writing. A tab
// becomes two blanks. Text longer than `most` bytes is cut and ends in " ...".
std::string Printable(std::string_view text, size_t most = std::string_view::npos);

// As above, but lines stay lines: for messages of dlaunch's own with such text in them.
std::string PrintableLines(std::string_view text);

}  // namespace cohort::launcher
