// Processes that a rank asks for while it runs (MPI_Comm_spawn).
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace cohort::launcher {

struct SpawnedProgram {
  std::vector<std::string> argv;         // argv[0] is the program: a path, or a name that is looked up in PATH
  std::string directory;                 // to run in; empty: the asking rank's job's
  std::string path;                      // folders to look in before those of PATH; empty: none
  std::vector<std::string> environment;  // NAME=VALUE, beside the asking rank's
  int count = 1;                         // of processes
};

// All of them are one MPI world of their own, in the order of the programs.
struct SpawnRequest {
  std::vector<SpawnedProgram> programs;
  std::vector<std::pair<std::string, std::string>> values;  // that the new world finds stored by PMI-1
};

// The new world's name, when all of it runs; or why none does.
using SpawnDone = std::function<void(const absl::StatusOr<std::string>& world)>;

}  // namespace cohort::launcher
