// Files that are there whole or not at all.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace cohort::tools {

// Puts `text` under this name: written beside it under another one first, so that a full disk or a killed program
// leaves what was there before. What is no regular file (a pipe, /dev/stdout) is written to directly. The system's
// error with the name.
absl::Status WriteWholeFile(const std::string& path, std::string_view text);

// Whether WriteWholeFile could write there now, as far as one can tell without the text: to be asked before hours of
// work. Leaves nothing behind. The system's error with the name.
absl::Status CheckWritable(const std::string& path);

}  // namespace cohort::tools
