// Finds the job's nodes. A source is one file and one line in node_sources.def; the first that applies to the
// options or the surroundings is used (--launcher names another), and is printed. Nothing falls back silently to
// another source.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/machine/placement.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/spawn/spawner.h"

namespace cohort::launcher {

struct JobNodes {
  std::string source = {};                    // in words: "this machine", "2 simulated nodes of this machine"
  SpawnerKind spawner = SpawnerKind::kLocal;  // by which agents are started there
  bool share_host = false;                    // all nodes are this machine
  bool across_hosts = false;  // other machines, with environments of their own, must reach the rendezvous
  // Does something instead of running the job, which another process of the same command runs: the others of srun's
  // tasks, pods but the first. Returns the process' exit status.
  std::function<int()> instead = {};
  // Agents that the source has reached itself, by their node's name: they wait for their start. The spawner starts the
  // others.
  std::shared_ptr<std::map<std::string, AgentProcess>> reached = {};
  std::vector<NodeResources> nodes = {};
};

// Whether a source is asked for, and what says so or against it: "SLURM_JOB_ID is 42", "no --hosts".
struct Detection {
  bool applies = false;
  std::string because;
};

class NodeSource {
 public:
  virtual ~NodeSource() = default;
  // Whether the options, or the surroundings, ask for this source. Quick; looks at nothing but both.
  virtual Detection Detect(const Options& options) const = 0;
  // Whether another process of the same command runs the job: JobNodes::instead. As quick, and only where it applies.
  virtual bool RunsElsewhere(const Options&) const { return false; }
  // Whether variables alone ask for it and name the machines themselves, as a scheduler's do.
  virtual bool IsScheduler() const { return false; }
  // Whether its machines all run the same command, and keep strangers out by a secret of theirs (--token-file).
  virtual bool SharesSecret() const { return false; }
  // The nodes and what each has, in the order in which the source has them. Quick (well below a second) unless other
  // hosts must be asked. kInvalidArgument names the option that would work. Called only where the source applies.
  virtual absl::StatusOr<JobNodes> Find(const Options& options) const = 0;
};

// Asks the first source of node_sources.def that applies, or the one that --launcher names; then puts the nodes into
// the order that --rank-order asks for (node_order.h). kInvalidArgument: --launcher names none, or one that does not
// apply here.
absl::StatusOr<JobNodes> FindNodes(const Options& options);

// Whether the source that FindNodes would ask says that another process of the same command runs the job.
bool RunsElsewhere(const Options& options);

// A source, and what speaks for it or against it.
struct ExplainedSource {
  std::string name;
  bool chosen = false;
  std::string because;
};
// All sources in the order in which they are asked.
std::vector<ExplainedSource> ListSources(const Options& options);
// A line for each, the chosen one marked. For people who wonder.
std::string ExplainSources(const std::vector<ExplainedSource>& sources);

// The names that --launcher takes.
std::vector<std::string> SourceNames();

}  // namespace cohort::launcher
