#include "cohort/launcher/nodes/joined_nodes.h"

#include <unistd.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/base/net/address_list.h"
#include "cohort/launcher/base/net/host_name.h"
#include "cohort/launcher/base/net/own_addresses.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/join/join_job.h"
#include "cohort/launcher/join/token.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
Detection JoinedNodes::Detect(const Options& options) const {
  if (options.wait && !options.nodes) return {true, "--wait"};
  if (options.nodes.value_or(1) == 1) return {false, "no --nnodes above 1"};
  const std::string nodes = "--nnodes " + std::to_string(*options.nodes);
  if (options.wait) return {true, nodes + " and --wait"};
  if (::isatty(STDERR_FILENO) == 1) return {true, nodes + " on a terminal"};
  return {false, nodes + ", but neither --wait nor a terminal where somebody could read the line to paste"};
}

absl::StatusOr<JobNodes> JoinedNodes::Find(const Options& options) const {
  const int count = options.nodes.value_or(1);
  if (count < 2) return absl::InvalidArgumentError("--wait is for other machines to join; say how many with --nnodes");
  if (options.dry_run) {
    return InvalidArgumentError(Remedy::kDryRunOfJoiners,
                                std::string("nothing is known of machines that have yet to join; leave ") +
                                    (options.explain ? "--explain" : "--dry-run") + " out, or use --simulate-nodes " +
                                    std::to_string(count));
  }
  COHORT_ASSIGN_OR_RETURN(NodeResources own, OwnResources(options));
  JoinToken token;
  COHORT_ASSIGN_OR_RETURN(const std::string random, NewJobSecret());
  token.secret = absl::WebSafeBase64Escape(random);
  const std::vector<std::string> addresses = OwnAddresses(options.interface);
  if (addresses.empty()) {
    return InvalidArgumentError(Remedy::kNoAddress,
                                "this machine has no address that others may reach; bring its network up");
  }
  const bool on_all = options.interface.empty();
  COHORT_ASSIGN_OR_RETURN(JoinGate gate, JoinGate::Open(options.ports.value_or(PortRange{0, 0}),
                                                        on_all ? std::vector<std::string>() : addresses));
  token.addresses = FormatAddresses(addresses, gate.port());
  const std::chrono::milliseconds wait = options.wait.value_or(kJoinWait);
  Say("1 of " + std::to_string(count) + " nodes is here; on " + (count == 2 ? "the other" : "each of the others") +
      ", run:\n\n  dlaunch join - <<< " + FormatToken(token) + "\n");
  Say("everybody with the token may join; dlaunch join TOKEN works in any shell, but other users may see it for a "
      "moment");
  if (options.min_nodes) {
    Say("with " + std::to_string(*options.min_nodes) +
        (*options.min_nodes == 1 ? " node the job can start; in " : " nodes the job can start; in ") +
        std::to_string(wait.count() / 1000) + " s it starts with those that came");
  }
  COHORT_ASSIGN_OR_RETURN(JobNodes found,
                          AwaitJoined(options, std::move(own), &gate, MakeJoinKey(token.secret),
                                      {.count = count - 1, .deadline = runtime::Deadline::After(wait)}));
  const size_t machines = found.nodes.size();
  found.source =
      machines == 1 ? "this machine, which no other has joined" : std::to_string(machines) + " machines that joined";
  return found;
}

absl::StatusOr<NodeResources> OwnResources(const Options& options) {
  absl::StatusOr<NodeResources> own = ResourcesOf(TakeInventory(), options, HostName());
  if (own.ok()) return own;
  return Prefixed("this machine ", own.status());
}

absl::StatusOr<JobNodes> AwaitJoined(const Options& options, NodeResources own, JoinGate* gate, const JoinKey& key,
                                     JoinGate::AwaitOptions wait) {
  if (options.min_nodes) wait.least = *options.min_nodes - 1;
  wait.check = [&](const v1::NodeInventory& inventory) { return ResourcesOf(inventory, options, "").status(); };
  wait.say = &Say;
  absl::StatusOr<std::vector<JoinedNode>> joined = gate->Await(key, wait);
  if (absl::IsDeadlineExceeded(joined.status())) {
    const char* const remedy = wait.indexed ? "; do all of them run, and reach this one? --wait gives them longer"
                                            : "; run the line above on the others, or give --wait more time";
    return absl::DeadlineExceededError(absl::StrCat(joined.status().message(), remedy));
  }
  COHORT_RETURN_IF_ERROR(joined.status());
  JobNodes found{.spawner = SpawnerKind::kLocal, .across_hosts = true};
  found.reached = std::make_shared<std::map<std::string, AgentProcess>>();
  std::set<std::string> names = {own.name};
  found.nodes.push_back(std::move(own));
  for (JoinedNode& node : *joined) {
    const std::string host = node.hello.inventory.host();
    std::string name = host;
    for (int i = 2; !names.insert(name).second; ++i) name = host + "#" + std::to_string(i);
    COHORT_ASSIGN_OR_RETURN(NodeResources resources, ResourcesOf(node.hello.inventory, options, name));
    found.nodes.push_back(std::move(resources));
    found.reached->emplace(name, std::move(node.agent));
  }
  return found;
}

}  // namespace cohort::launcher
