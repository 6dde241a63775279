// Finding the program that a user named.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace cohort::launcher {

struct Program {
  std::string path;   // absolute
  std::string where;  // "in PATH", "in the working directory", "beside dlaunch"; empty where the name had a slash
};

// The path of the running executable; empty where /proc does not tell.
std::string OwnPath();

// A name without a slash is looked up in `path` (colon-separated folders), then in the working directory, then in
// `own_folder`. kNotFound names the places; kPermissionDenied: there is something, but it can't be executed (no
// permission, a folder, a script whose first line ends as Windows ends lines).
absl::StatusOr<Program> FindProgram(const std::string& name, const std::string& path,
                                    const std::string& working_directory, const std::string& own_folder);

}  // namespace cohort::launcher
