// Shared by all sources whose nodes are reached by a command here: ssh, srun, blaunch. Each node is asked, 64 at a
// time, what it has.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/nodes/host_list.h"
#include "cohort/launcher/nodes/node_source.h"
#include "cohort/launcher/spawn/remote_command.h"

namespace cohort::launcher {

struct RemoteWay {
  SpawnerKind spawner = SpawnerKind::kSsh;
  RemoteCommand* command = nullptr;  // the same way
  std::string source;                // in words, after "2 hosts ": "by ssh"
  int unreachable_status = -1;       // the command's exit status for a host that it can't reach; -1: it has none
  std::string trial;                 // what to type to see the trouble: "ssh HOST true"
  std::string patience = "";         // the option that gives a slow host longer; empty: there is none
  bool slots_are_tasks = false;      // HostEntry::slots are the allocation's tasks, and limit nothing
};

// The first --nnodes of them, or all. kInvalidArgument: `what` ("the list", "the allocation") has fewer.
absl::StatusOr<std::vector<HostEntry>> FirstHosts(std::vector<HostEntry> hosts, const Options& options,
                                                  const std::string& what);

// Asks each host what it has. Blocks until all have answered, 64 at a time and 20 seconds each at the most. Those that
// can't be used end it, all that are known within 4.5 s, with their names, the command's own words and the remedy;
// those that had not answered by then are named as such. With --nnodes MIN:MAX such hosts are left out, and named on
// standard error, as long as MIN are left. Call from the main thread.
absl::StatusOr<JobNodes> AskHosts(const Options& options, const std::vector<HostEntry>& hosts, const RemoteWay& way);

}  // namespace cohort::launcher
