#include "launcher/environment/ssh_hosts.h"

#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "launcher/base/run_commands.h"
#include "launcher/environment/host_list.h"
#include "launcher/environment/inventory.h"
#include "launcher/environment/this_machine.h"
#include "launcher/program.h"
#include "launcher/spawn/ssh_command.h"
#include "runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr std::streamsize kMaxHostFile = 16 << 20;

absl::StatusOr<std::string> ReadHostFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError("--hostfile " + path + ": " + std::strerror(errno));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad() || text.size() > kMaxHostFile) {
    return absl::InvalidArgumentError("--hostfile " + path + ": can't be read, or has more than 16 MiB");
  }
  return text;
}

absl::StatusOr<std::vector<HostEntry>> ListedHosts(const Options& options) {
  std::vector<HostEntry> hosts;
  if (!options.hosts.empty()) {
    COHORT_ASSIGN_OR_RETURN(hosts, ParseHostList(options.hosts, "--hosts"));
  } else {
    COHORT_ASSIGN_OR_RETURN(const std::string text, ReadHostFile(options.host_file));
    COHORT_ASSIGN_OR_RETURN(hosts, ParseHostFile(text, "--hostfile " + options.host_file));
  }
  if (!options.nodes) return hosts;
  if (static_cast<size_t>(*options.nodes) > hosts.size()) {
    return absl::InvalidArgumentError("--nnodes " + std::to_string(*options.nodes) + ": the list has " +
                                      std::to_string(hosts.size()) + (hosts.size() == 1 ? " host" : " hosts") +
                                      "; name more, or leave --nnodes out");
  }
  hosts.resize(*options.nodes);
  return hosts;
}

std::string LastLine(const std::string& text) {
  const size_t end = text.find_last_not_of("\r\n");
  if (end == std::string::npos) return "";
  const size_t begin = text.find_last_of('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? -1 : begin));
}

// Why this host's answer is none.
std::string DescribeFailure(const Options& options, const CommandResult& result) {
  const std::string said = LastLine(result.error);
  const std::string words = said.empty() ? "" : ": " + said;
  if (!result.ended) return "gave no answer" + (said.empty() ? " within 20 s" : words);
  const int code = WIFEXITED(result.wait_status) ? WEXITSTATUS(result.wait_status) : 0;
  const std::string path = options.agent_path.empty() ? OwnPath() : options.agent_path;
  if (code == 255) return "can't be reached" + words + "; try: " + options.ssh_command + " HOST true";
  if (code == 127 || code == 126) {
    return "has no dlaunch at " + path + words + "; install it there, or say where it is with --agent-path";
  }
  return "could not start " + path + " (status " + std::to_string(code) + ")" + words;
}

absl::StatusOr<NodeResources> ReadAnswer(const Options& options, const HostEntry& entry, const CommandResult& result) {
  const auto blame = [&](const std::string& what) {
    return absl::InvalidArgumentError("host " + entry.host + " " + what);
  };
  absl::StatusOr<v1::NodeInventory> inventory = ParseInventory(result.output);
  if (!inventory.ok()) {
    const bool fine = result.ended && result.wait_status == 0;
    return blame(fine ? std::string(inventory.status().message()) : DescribeFailure(options, result));
  }
  if (inventory->version() != COHORT_VERSION) {
    return blame("has dlaunch " + inventory->version() +
                 ", here it is " COHORT_VERSION "; install the same, or name another with --agent-path");
  }
  if (!inventory->error().empty()) return blame("can't take part: " + inventory->error());
  const absl::StatusOr<std::vector<int>> cpus = ParseCpuList(inventory->cpus());
  if (!cpus.ok()) return blame("tells its CPUs wrongly: " + std::string(cpus.status().message()));
  NodeResources node{.name = entry.host, .devices = {}, .cpus = *cpus, .slots = entry.slots};
  if (options.simulate_gpus) {
    node.devices = SimulatedDevices(*options.simulate_gpus);
  } else {
    node.devices = {inventory->devices().begin(), inventory->devices().end()};
  }
  return node;
}

}  // namespace

absl::StatusOr<JobNodes> SshHosts::Find(const Options& options) const {
  COHORT_ASSIGN_OR_RETURN(const std::vector<HostEntry> hosts, ListedHosts(options));
  std::vector<std::vector<std::string>> commands;
  for (const HostEntry& entry : hosts) {
    commands.push_back(SshCommand(options, OwnPath(), entry.host, {"agent", "--inventory"}));
  }
  JobNodes found{.source = std::to_string(hosts.size()) + (hosts.size() == 1 ? " host" : " hosts") + " by ssh",
                 .spawner = "ssh",
                 .across_hosts = true,
                 .nodes = std::vector<NodeResources>(hosts.size())};
  absl::Status failed;
  RunCommands(commands, {.on_end = [&](size_t index, const CommandResult& result) {
                absl::StatusOr<NodeResources> node = ReadAnswer(options, hosts[index], result);
                if (node.ok()) {
                  found.nodes[index] = *std::move(node);
                } else {
                  failed = node.status();
                }
                return failed.ok();
              }});
  COHORT_RETURN_IF_ERROR(failed);
  return found;
}

}  // namespace cohort::launcher
