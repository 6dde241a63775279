#include "launcher/environment/ssh_hosts.h"

#include <string>
#include <vector>

#include "launcher/environment/host_list.h"
#include "launcher/environment/remote_hosts.h"
#include "launcher/spawn/ssh_command.h"
#include "runtime/base/status_macros.h"

namespace cohort::launcher {

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
    COHORT_ASSIGN_OR_RETURN(const std::string text, ReadHostFile(options.host_file, "--hostfile"));
    COHORT_ASSIGN_OR_RETURN(hosts, ParseHostFile(text, "--hostfile " + options.host_file));
  }
  COHORT_ASSIGN_OR_RETURN(hosts, FirstHosts(std::move(hosts), options, "the list"));
  return AskHosts(options, hosts, SshWay(options, "by ssh"));
}

RemoteWay SshWay(const Options& options, const std::string& source) {
  return {.spawner = "ssh",
          .command = &SshCommand,
          .source = source,
          .unreachable_status = 255,
          .trial = options.ssh_command + " HOST true"};
}

}  // namespace cohort::launcher
