#include "cohort/launcher/nodes/allocation.h"

#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "cohort/launcher/base/net/host_name.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/machine/program.h"
#include "cohort/launcher/nodes/this_machine.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

// Words of a scheduler's command where its daemon, its key or its configuration are not there. Another refusal, such
// as that of a job which has ended, is none of these.
constexpr std::string_view kCantWork[] = {"munge",    "authentication",     "configuration source", "slurm.conf",
                                          "lsf.conf", "resolve controller", "shared libraries"};

std::string_view WithoutDomain(std::string_view name) { return name.substr(0, name.find('.')); }

bool IsOwnName(const std::string& host, const std::string& own_name) {
  if (!own_name.empty() && host == own_name) return true;
  return host == "localhost" || WithoutDomain(host) == WithoutDomain(HostName());
}

bool IsInPath(const std::string& program) {
  return FindProgram(program, GetVariable("PATH").value_or("/usr/bin:/bin"), "/nonexistent", "/nonexistent").ok();
}

// This machine, with the allocation's tasks.
absl::StatusOr<JobNodes> StartHere(const Options& options, const Allocation& allocation) {
  COHORT_ASSIGN_OR_RETURN(JobNodes found, ThisMachine().Find(options));
  found.source = "this machine, the only one of " + allocation.name;
  found.nodes[0].name = allocation.hosts[0].host;
  found.nodes[0].tasks = allocation.hosts[0].slots;
  return found;
}

absl::Status CantReach(const Allocation& allocation) {
  std::string names;
  for (size_t i = 0; i < allocation.hosts.size() && i < 4; ++i) names += (i > 0 ? ", " : "") + allocation.hosts[i].host;
  if (allocation.hosts.size() > 4) names += ", ...";
  const std::string count = std::to_string(allocation.hosts.size());
  return InvalidArgumentError(
      Remedy::kNoSrun,
      allocation.name + " has " + count + (allocation.hosts.size() == 1 ? " node" : " nodes") + " (" + names +
          "), and there is no " + allocation.program +
          " in PATH on this machine, by which they are reached; in a container, start dlaunch outside of it with the "
          "container's command as the program, or add " +
          allocation.program + " to it; for a job of this machine alone: --launcher local");
}

}  // namespace

void CountLines(const std::string& text, std::vector<HostEntry>* hosts) {
  std::map<std::string, int, std::less<>> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++lines[std::string(absl::StripAsciiWhitespace(line))];
  }
  for (HostEntry& entry : *hosts) {
    const int count = lines[entry.host];
    entry.slots = count >= 1 && count <= kMaxRanksPerNode ? std::optional<int>(count) : std::nullopt;
  }
}

absl::StatusOr<JobNodes> AskAllocation(const Options& options, Allocation allocation, const RemoteWay& way) {
  COHORT_ASSIGN_OR_RETURN(allocation.hosts, FirstHosts(std::move(allocation.hosts), options, allocation.name));
  const bool alone = allocation.hosts.size() == 1 && IsOwnName(allocation.hosts[0].host, allocation.own_name);
  if (allocation.program.empty() && alone) return StartHere(options, allocation);
  if (!allocation.program.empty() && !IsInPath(allocation.program)) {
    if (!alone) return CantReach(allocation);
    Say("there is no " + allocation.program + " in PATH, and " + allocation.name +
        " has this machine alone: starting the ranks here without it");
    return StartHere(options, allocation);
  }
  absl::StatusOr<JobNodes> found = AskHosts(options, allocation.hosts, way);
  if (!found.ok() && alone) {
    const std::string said = absl::AsciiStrToLower(found.status().message());
    for (const std::string_view words : kCantWork) {
      if (said.find(words) == std::string::npos) continue;
      Say(allocation.program + " does not work here, and " + allocation.name +
          " has this machine alone: starting the ranks here without it (" + TextOf(found.status()) + ")");
      return StartHere(options, allocation);
    }
  }
  return found;
}

}  // namespace cohort::launcher
