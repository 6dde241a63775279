#include "cohort/launcher/nodes/ssh_hosts.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "cohort/launcher/base/net/host_name.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/base/text_file.h"
#include "cohort/launcher/nodes/host_file.h"
#include "cohort/launcher/nodes/host_list.h"
#include "cohort/launcher/nodes/remote_hosts.h"
#include "cohort/launcher/nodes/this_machine.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/launcher/spawn/ssh_command.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

// By one of the names that it always has; "user@" may stand before it.
bool IsThisMachine(const std::string& host) {
  const std::string name = host.substr(host.find('@') + 1);
  return name == "localhost" || name == "::1" || name.starts_with("127.") || name == HostName();
}

// The list has this machine alone. Its ranks need no ssh, as with mpirun, unless another user or --ssh is asked for.
bool NeedsNoSsh(const Options& options, const std::vector<HostEntry>& hosts) {
  return hosts.size() == 1 && IsThisMachine(hosts[0].host) && hosts[0].host.find('@') == std::string::npos &&
         options.ssh_command == Options().ssh_command;
}

absl::StatusOr<JobNodes> StartHere(const Options& options, const HostEntry& host) {
  COHORT_ASSIGN_OR_RETURN(JobNodes found, ThisMachine().Find(options));
  found.nodes[0].slots = host.slots;
  return found;
}

}  // namespace

Detection SshHosts::Detect(const Options& options) const {
  if (!options.hosts.empty()) return {true, "--hosts " + options.hosts};
  if (!options.host_file.empty()) return {true, "--hostfile " + options.host_file};
  return {false, "neither --hosts nor --hostfile"};
}

absl::StatusOr<JobNodes> SshHosts::Find(const Options& options) const {
  std::vector<HostEntry> hosts;
  if (!options.hosts.empty()) {
    COHORT_ASSIGN_OR_RETURN(hosts, ParseHostList(options.hosts, "--hosts"));
  } else {
    COHORT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.host_file, "--hostfile"));
    COHORT_ASSIGN_OR_RETURN(HostFile file, ParseHostFile(text, "--hostfile " + options.host_file));
    if (!file.idle_keys.empty()) {
      Say("--hostfile " + options.host_file + ": " + absl::StrJoin(file.idle_keys, "=, ") +
          "= changes nothing here; see --bind and --iface");
    }
    hosts = std::move(file.hosts);
  }
  COHORT_ASSIGN_OR_RETURN(hosts, FirstHosts(std::move(hosts), options, "the list"));
  if (NeedsNoSsh(options, hosts)) return StartHere(options, hosts[0]);
  absl::StatusOr<JobNodes> found = AskHosts(options, hosts, SshWay(options, "by ssh"));
  if (found.ok() || hosts.size() != 1 || !IsThisMachine(hosts[0].host)) return found;
  return WithRemedyOf(
      found.status(),
      absl::Status(found.status().code(), std::string(found.status().message()) + "; for this machine alone leave " +
                                              (options.hosts.empty() ? "--hostfile" : "--hosts") + " out"));
}

RemoteWay SshWay(const Options& options, const std::string& source) {
  const bool has_patience = options.ssh_command.find("ConnectTimeout") != std::string::npos;  // ssh heeds the first
  return {.spawner = SpawnerKind::kSsh,
          .command = &SshCommand,
          .source = source,
          .unreachable_status = 255,
          .trial = options.ssh_command + " HOST true",
          .patience = has_patience ? "" : "--ssh \"" + options.ssh_command + " -o ConnectTimeout=15\""};
}

}  // namespace cohort::launcher
