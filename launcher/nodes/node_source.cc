#include "cohort/launcher/nodes/node_source.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/nodes/joined_nodes.h"
#include "cohort/launcher/nodes/kubernetes.h"
#include "cohort/launcher/nodes/members.h"
#include "cohort/launcher/nodes/node_files.h"
#include "cohort/launcher/nodes/node_order.h"
#include "cohort/launcher/nodes/simulated_nodes.h"
#include "cohort/launcher/nodes/slurm.h"
#include "cohort/launcher/nodes/ssh_hosts.h"
#include "cohort/launcher/nodes/surroundings/other_launchers.h"
#include "cohort/launcher/nodes/this_machine.h"
#include "cohort/launcher/options/option_values.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

struct NamedSource {
  std::string name;
  std::unique_ptr<NodeSource> source;
};

std::vector<NamedSource> AllSources() {
  std::vector<NamedSource> sources;
#define COHORT_NODE_SOURCE(name, Source) sources.push_back({name, std::make_unique<Source>()});
#include "cohort/launcher/nodes/node_sources.def"
#undef COHORT_NODE_SOURCE
  return sources;
}

// Its place in the list.
absl::StatusOr<size_t> Choose(const std::vector<NamedSource>& sources, const Options& options) {
  std::string names;
  for (size_t i = 0; i < sources.size(); ++i) {
    names += (i > 0 ? ", " : "") + sources[i].name;
    const Detection detection = sources[i].source->Detect(options);
    if (options.launcher.empty()) {
      if (detection.applies) return i;
    } else if (options.launcher == sources[i].name) {
      if (detection.applies) return i;
      return InvalidArgumentError(Remedy::kLauncherDoesNotFit, "--launcher " + options.launcher +
                                                                   " can't be used here: " + detection.because +
                                                                   "; leave it out, or see --explain");
    }
  }
  if (options.launcher.empty()) {
    return InvalidArgumentError(Remedy::kNoNodes, "there are no nodes to run on; use --nnodes 1 or --simulate-nodes");
  }
  return WrongValue("--launcher", options.launcher, "give one of " + names);
}

// Variables beside those of the chosen scheduler. A second scheduler is named. Where the first one has one machine and
// nobody asked for one, variables that name more are refused: the job would be smaller than was meant.
absl::Status HeedOtherVariables(const std::vector<NamedSource>& sources, size_t chosen, const Options& options,
                                const JobNodes& found) {
  const bool alone = found.nodes.size() == 1 && !options.nodes;
  for (size_t i = chosen + 1; i < sources.size(); ++i) {
    const Detection other = sources[i].source->Detect(options);
    if (!other.applies) continue;
    if (sources[i].source->IsScheduler()) {
      Say(other.because + ", but the nodes are those of " + found.source + "; --launcher " + sources[i].name +
          " takes the others");
    } else if (sources[i].name == "members" && alone) {
      COHORT_ASSIGN_OR_RETURN(const std::optional<Member> member, ReadMemberVariables(GetVariable));
      const std::string name = sources[chosen].name;
      return InvalidArgumentError(Remedy::kMoreMachinesNamed,
                                  (member ? member->source : other.because) +
                                      " says that there are more machines, and " + name +
                                      " that there is one; give --launcher " + name +
                                      " or --launcher local for this one, or --launcher members for them");
    }
  }
  return alone ? RefuseUnreachableMachines(GetVariable) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobNodes> FindNodes(const Options& options) {
  const std::vector<NamedSource> sources = AllSources();
  const bool by_itself = options.launcher.empty();
  if (by_itself) COHORT_RETURN_IF_ERROR(RefuseCopies(GetVariable));
  COHORT_ASSIGN_OR_RETURN(const size_t chosen, Choose(sources, options));
  if (by_itself && sources[chosen].name == "local") COHORT_RETURN_IF_ERROR(RefuseUnreachableMachines(GetVariable));
  // A user who gives them expects that they keep strangers out.
  if (!sources[chosen].source->SharesSecret() && (options.insecure || !options.token_file.empty())) {
    return InvalidArgumentError(Remedy::kSecretWithoutPods,
                                (options.insecure ? "--insecure" : "--token-file " + options.token_file) +
                                    " is for pods and machines that run the same command, and the nodes come from: " +
                                    sources[chosen].name + " (see --explain); leave it out");
  }
  COHORT_ASSIGN_OR_RETURN(JobNodes found, sources[chosen].source->Find(options));
  if (by_itself && sources[chosen].source->IsScheduler() && !found.instead) {
    COHORT_RETURN_IF_ERROR(HeedOtherVariables(sources, chosen, options, found));
  }
  COHORT_RETURN_IF_ERROR(OrderNodes(options, &found.nodes));
  return found;
}

bool RunsElsewhere(const Options& options) {
  const std::vector<NamedSource> sources = AllSources();
  const absl::StatusOr<size_t> chosen = Choose(sources, options);
  return chosen.ok() && sources[*chosen].source->RunsElsewhere(options);
}

std::vector<ExplainedSource> ListSources(const Options& options) {
  const std::vector<NamedSource> sources = AllSources();
  const absl::StatusOr<size_t> chosen = Choose(sources, options);
  std::vector<ExplainedSource> explained;
  for (size_t i = 0; i < sources.size(); ++i) {
    explained.push_back({sources[i].name, chosen.ok() && *chosen == i, sources[i].source->Detect(options).because});
  }
  return explained;
}

std::string ExplainSources(const std::vector<ExplainedSource>& sources) {
  std::string text;
  for (const ExplainedSource& source : sources) {
    std::string line = (source.chosen ? "* " : "  ") + source.name;
    line.append(14 - std::min<size_t>(13, line.size()), ' ');
    text += line + source.because + "\n";
  }
  return text;
}

std::vector<std::string> SourceNames() {
  std::vector<std::string> names = {"auto"};
  for (const NamedSource& source : AllSources()) names.push_back(source.name);
  return names;
}

}  // namespace cohort::launcher
