// Files that the user names: lists of hosts, tokens.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace cohort::launcher {

// Returns the file's content; from a pipe, the data of the first 30 s. Blocks. kInvalidArgument, which begins with
// `origin` ("--hostfile"): the file cannot be read, or is above 16 MiB.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, const std::string& origin);

}  // namespace cohort::launcher
