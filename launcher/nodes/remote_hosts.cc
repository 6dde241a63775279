#include "cohort/launcher/nodes/remote_hosts.h"

#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/run_commands.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/launcher/machine/program.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMaxWords = 2000;  // of what ssh says
constexpr size_t kMaxReasons = 10;
// One host that can't be used is refused with all others that are known to be so by then: those that can't be reached
// as well, which takes ssh four seconds to see. The whole is promised within five, where ssh can report one at all.
constexpr auto kHearsOthers = std::chrono::milliseconds(4500);

std::string LastLine(const std::string& text) {
  const size_t end = text.find_last_not_of("\r\n");
  if (end == std::string::npos) return "";
  const size_t begin = text.find_last_of('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? -1 : begin));
}

// Why this host's answer is none: "can't be reached ...".
absl::Status FailureOf(const Options& options, const RemoteWay& way, const std::string& host,
                       const CommandResult& result) {
  const std::string trial = absl::StrReplaceAll(way.trial, {{"HOST", host}});
  const std::string said = Printable(LastLine(result.error), kMaxWords);
  const std::string words = said.empty() ? "" : ": " + said;
  if (!result.ended) return absl::InvalidArgumentError("gave no answer" + (said.empty() ? " within 20 s" : words));
  if (WIFSIGNALED(result.wait_status)) {
    return InvalidArgumentError(Remedy::kHostNotAsked,
                                "could not be asked: " + SpawnerName(way.spawner) + " was killed by " +
                                    SignalName(WTERMSIG(result.wait_status)) + words + "; try: " + trial);
  }
  const int code = WEXITSTATUS(result.wait_status);
  const std::string path = options.agent_path.empty() ? OwnPath() : options.agent_path;
  if (code == way.unreachable_status) {
    const bool slow = !way.patience.empty() && said.find("timed out") != std::string::npos;
    return InvalidArgumentError(
        Remedy::kHostNotReached,
        "can't be reached" + words + "; try: " + trial + (slow ? ", or where it is only slow: " + way.patience : ""));
  }
  // slurmstepd's words for a program that its node lacks; the status is srun's own.
  const bool not_there = result.error.find("execve()") != std::string::npos;
  if (code == 127 || code == 126 || not_there) {
    return InvalidArgumentError(
        Remedy::kNoDlaunchOnHost,
        "has no dlaunch at " + path + words + "; install it there, or say where it is with --agent-path");
  }
  return absl::InvalidArgumentError("could not start " + path + " (status " + std::to_string(code) + ")" + words +
                                    "; try: " + trial);
}

// The command by which hosts are reached.
absl::Status CheckIsHere(const std::string& command, const RemoteWay& way) {
  const bool by_path = command.find('/') != std::string::npos;
  std::error_code gone;
  const std::string here = by_path ? std::filesystem::current_path(gone).string() : "/nonexistent";
  const absl::StatusOr<Program> found =
      FindProgram(command, GetVariable("PATH").value_or("/usr/bin:/bin"), here, "/nonexistent");
  if (found.ok()) return absl::OkStatus();
  if (absl::IsPermissionDenied(found.status()))
    return WithRemedyOf(found.status(), absl::InvalidArgumentError(found.status().message()));
  return InvalidArgumentError(Remedy::kNoRemoteShell,
                              "there is no " + command + (by_path ? "" : " in PATH") +
                                  " on this machine, by which hosts are reached; " +
                                  (way.spawner == SpawnerKind::kSsh ? "install it, or name another with --ssh"
                                                                    : "add the folder where it lies to PATH"));
}

absl::StatusOr<NodeResources> ReadAnswer(const Options& options, const RemoteWay& way, const HostEntry& entry,
                                         const CommandResult& result) {
  const auto blame = [&](const absl::Status& what) { return Prefixed("host " + entry.host + " ", what); };
  absl::StatusOr<v1::NodeInventory> inventory = ParseInventory(result.output);
  if (!inventory.ok()) {
    const bool fine = result.ended && result.wait_status == 0;
    if (!fine) return blame(FailureOf(options, way, entry.host, result));
    const std::string path = options.agent_path.empty() ? OwnPath() : options.agent_path;
    return blame(absl::InvalidArgumentError(std::string(inventory.status().message()) + "; is " + path +
                                            " a dlaunch there? Another is named with --agent-path"));
  }
  absl::StatusOr<NodeResources> node = ResourcesOf(*inventory, options, entry.host);
  if (!node.ok()) return blame(node.status());
  (way.slots_are_tasks ? node->tasks : node->slots) = entry.slots;
  return node;
}

// All of them by name, and the first of them with their reasons.
std::string DescribeUnusable(const std::vector<HostEntry>& hosts, const std::map<size_t, absl::Status>& unusable) {
  std::string names, reasons;
  size_t told = 0;
  for (const auto& [index, why] : unusable) {
    names += (names.empty() ? "" : ", ") + hosts[index].host;
    if (++told <= kMaxReasons) reasons += "\n    " + TextOf(why);
  }
  if (told > kMaxReasons) reasons += "\n    and " + std::to_string(told - kMaxReasons) + " more";
  return std::to_string(told) + " of " + std::to_string(hosts.size()) + " hosts can't be used: " + names + reasons;
}

// Names the hosts that had said neither at the end, or none: "host c has not answered within 4.5 s".
std::string DescribeUnanswered(const std::vector<HostEntry>& hosts, const std::vector<CommandResult>& results) {
  std::string names;
  size_t count = 0;
  std::optional<std::chrono::milliseconds> least;  // holds for all
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& waited = results[i].cancelled_after;
    if (!waited) continue;
    if (++count <= kMaxReasons) names += (names.empty() ? "" : ", ") + hosts[i].host;
    least = std::min(least.value_or(*waited), *waited);
  }
  if (count == 0) return "";
  if (count > kMaxReasons) names += " and " + std::to_string(count - kMaxReasons) + " more";
  return (count == 1 ? "host " + names + " has" : "hosts " + names + " have") + " not answered within " +
         DescribeDuration(static_cast<uint64_t>(least->count()));
}

}  // namespace

absl::StatusOr<std::vector<HostEntry>> FirstHosts(std::vector<HostEntry> hosts, const Options& options,
                                                  const std::string& what) {
  if (!options.nodes) return hosts;
  const int least = options.min_nodes.value_or(*options.nodes);
  if (static_cast<size_t>(least) > hosts.size()) {
    return InvalidArgumentError(Remedy::kTooFewNodes, "--nnodes " + std::to_string(least) + ": " + what + " has " +
                                                          std::to_string(hosts.size()) +
                                                          (hosts.size() == 1 ? " host" : " hosts") +
                                                          "; get more, or leave --nnodes out");
  }
  if (hosts.size() > static_cast<size_t>(*options.nodes)) hosts.resize(*options.nodes);
  return hosts;
}

absl::StatusOr<JobNodes> AskHosts(const Options& options, const std::vector<HostEntry>& hosts, const RemoteWay& way) {
  std::vector<std::vector<std::string>> commands;
  for (const HostEntry& entry : hosts) {
    commands.push_back(way.command(options, OwnPath(), entry.host, {"agent", "--inventory"}));
  }
  // A shell's status for that is the same as a host's.
  if (!commands.empty()) COHORT_RETURN_IF_ERROR(CheckIsHere(commands[0][0], way));
  const size_t least = options.min_nodes ? static_cast<size_t>(*options.min_nodes) : hosts.size();
  std::vector<std::optional<NodeResources>> answers(hosts.size());
  std::map<size_t, absl::Status> unusable;  // by their place in the list, and why
  const auto results = RunCommands(commands, {.on_end =
                                                  [&](size_t index, const CommandResult& result) {
                                                    absl::StatusOr<NodeResources> node =
                                                        ReadAnswer(options, way, hosts[index], result);
                                                    if (node.ok()) {
                                                      answers[index] = *std::move(node);
                                                    } else {
                                                      unusable[index] = node.status();
                                                    }
                                                    return hosts.size() - unusable.size() >= least;
                                                  },
                                              .cancels_after = kHearsOthers});
  const size_t left = hosts.size() - unusable.size();
  if (left < least) {
    const std::string unanswered = DescribeUnanswered(hosts, results);
    if (unusable.size() == 1 && unanswered.empty()) return unusable.begin()->second;
    const std::string reasons =
        unusable.size() == 1 ? TextOf(unusable.begin()->second) : DescribeUnusable(hosts, unusable);
    return absl::InvalidArgumentError(reasons + (unanswered.empty() ? "" : "\n    ") + unanswered);
  }
  for (const auto& [index, why] : unusable) Say("left out: " + TextOf(why));
  JobNodes found{.source = std::to_string(left) + (left == 1 ? " host " : " hosts ") + way.source,
                 .spawner = way.spawner,
                 .across_hosts = true};
  for (std::optional<NodeResources>& node : answers) {
    if (node) found.nodes.push_back(*std::move(node));
  }
  return found;
}

}  // namespace cohort::launcher
