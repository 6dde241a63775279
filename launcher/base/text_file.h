// Files that the user names: lists of hosts, tokens.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace cohort::launcher {

// Its content; of a pipe, what comes within 30 s. kInvalidArgument, which begins with `origin` ("--hostfile"): it can't
// be read, or is above 16 MiB.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, const std::string& origin);

}  // namespace cohort::launcher
