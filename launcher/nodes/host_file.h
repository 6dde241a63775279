// Files that list hosts, in the forms of several launchers and schedulers. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/nodes/host_list.h"

namespace cohort::launcher {

struct HostFile {
  std::vector<HostEntry> hosts;
  std::vector<std::string> idle_keys;  // keys that the file has and that change nothing here, such as "binding"
};

// Reads a host a line, in one of these forms; # begins a comment, and a host on several lines has their slots together:
//
//   a                       PBS, LSF, Slurm, Open MPI: a host, or a slot of it where it stands on several lines
//   a:4, n[1-3]:4, a*4      MPICH, Intel MPI, Slurm
//   a slots=4 max_slots=8   Open MPI, DeepSpeed; also count, cpu and cpus for slots, and blanks around '='
//   a:4 user=u binding=...  MPICH
//   a 4 queue UNDEFINED     Grid Engine's PE_HOSTFILE
//
// Errors are those of HostCollection, and begin with `origin` and the line: also a key that none of these has.
absl::StatusOr<HostFile> ParseHostFile(std::string_view text, const std::string& origin);

}  // namespace cohort::launcher
