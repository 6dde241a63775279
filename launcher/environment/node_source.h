// Where the job's nodes come from. A source is one file and one line in environments.def; the first that applies to the
// options is used, and its name is printed. Nothing falls back silently to another source.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/options.h"
#include "launcher/placement.h"

namespace cohort::launcher {

struct JobNodes {
  std::string source;       // in words: "this machine", "2 simulated nodes of this machine"
  std::string spawner;      // the name in spawners.def by which agents are started there
  bool share_host = false;  // all nodes are this machine
  bool across_hosts =
      false;  // the rendezvous must be reached from other machines, which have environments of their own
  std::vector<NodeResources> nodes;
};

class NodeSource {
 public:
  virtual ~NodeSource() = default;
  // True when the options, or the surroundings, ask for this source.
  virtual bool Applies(const Options& options) const = 0;
  // The nodes and what each has. Quick (well below a second) unless other
  // hosts must be asked. kInvalidArgument names the option that would work.
  virtual absl::StatusOr<JobNodes> Find(const Options& options) const = 0;
};

// Asks the first source of environments.def that applies.
absl::StatusOr<JobNodes> FindNodes(const Options& options);

}  // namespace cohort::launcher
