// The one line by which a program says why it ends.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cohort::launcher {

// `text` without escape sequences of terminals, without other control characters, and without blanks around it. Empty
// where nothing is left that says something: of blanks, of a ruler, of a bare bracket. Pure.
std::string Meaning(std::string_view text);

// The same, for a line that was drawn over itself: empty for a progress bar, or what stands behind the bar. Pure.
std::string MeaningOfDrawn(std::string_view text);

// "std::runtime_error: no tensor", where the lines hold the words of the C++ runtime for an exception that nobody has
// caught, or empty. Pure.
std::string UncaughtException(const std::vector<std::string>& lines);

// Whether the line is a remark, as programs make them on their standard error while all goes well. Pure.
bool IsRemark(std::string_view text);

}  // namespace cohort::launcher
