#include "cohort/launcher/nodes/members.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/base/text_file.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/join/join_job.h"
#include "cohort/launcher/join/token.h"
#include "cohort/launcher/nodes/joined_nodes.h"
#include "cohort/launcher/nodes/surroundings/name_list.h"
#include "cohort/launcher/nodes/surroundings/variables.h"
#include "cohort/launcher/nodes/this_machine.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

// Three variables. A count may be a list of names, whose number counts. An index may be one of these names. A first one
// may be a list, whose first name counts. Rows that share a count stand for services that name the first machine in
// different ways.
struct MemberRow {
  const char* count;
  const char* index;
  const char* first;
};

constexpr MemberRow kMemberRows[] = {
    {"PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR"},
    {"PET_NNODES", "PET_NODE_RANK", "MASTER_ADDR"},
    {"WORLD_SIZE", "RANK", "MASTER_ADDR"},
    {"WORLD_SIZE", "NODE_RANK", "MASTER_ADDR"},
    {"NNODES", "NODE_RANK", "MASTER_ADDR"},
    {"NUM_NODES", "NODE_RANK", "MASTER_ADDR"},
    {"AZUREML_NODE_COUNT", "NODE_RANK", "MASTER_ADDR"},
    {"SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS"},
    {"AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"},
    {"DSTACK_NODES_NUM", "DSTACK_NODE_RANK", "DSTACK_MASTER_NODE_IP"},
    {"NGC_ARRAY_SIZE", "NGC_ARRAY_INDEX", "NGC_MASTER_ADDR"},
    {"ACCELERATE_NUM_MACHINES", "ACCELERATE_MACHINE_RANK", "ACCELERATE_MAIN_PROCESS_IP"},
    {"BEAKER_REPLICA_COUNT", "BEAKER_REPLICA_RANK", "BEAKER_LEADER_REPLICA_HOSTNAME"},
    {"MLP_WORKER_NUM", "MLP_ROLE_INDEX", "MLP_WORKER_0_HOST"},
    {"ARNOLD_WORKER_NUM", "ARNOLD_ID", "ARNOLD_WORKER_0_HOST"},
    {"LEPTON_JOB_TOTAL_WORKERS", "LEPTON_JOB_WORKER_INDEX", "MASTER_ADDR"},
    {"MA_NUM_HOSTS", "VC_TASK_INDEX", "VC_WORKER_HOSTS"},
    {"SM_HOSTS", "SM_CURRENT_HOST", "SM_HOSTS"},
    {"NUM_PROCESSES", "PROCESS_ID", "COORDINATOR_ADDRESS"},
    {"JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"},
    {"TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"},
};

bool IsListOfMachines(std::string_view name) { return name == "SM_HOSTS" || name == "TPU_WORKER_HOSTNAMES"; }

absl::Status NoMemberNumber(const VariableLookup& variable, const char* name) {
  return InvalidArgumentError(Remedy::kUnsetCount,
                              Says(variable, name) +
                                  " is no number of machines, nor of one of them; unset it, or give --launcher local "
                                  "for a job of this machine alone");
}

// WORLD_SIZE counts machines beside RANK, which an operator sets for each; beside NODE_RANK it counts processes, of
// which LOCAL_WORLD_SIZE are a machine. Processes of torchrun have LOCAL_RANK: RefuseCopies refuses those.
bool CountsMachines(const VariableLookup& variable, std::string_view index) {
  if (variable("LOCAL_RANK") || variable("COHORT_JOB_ID")) return false;
  const bool has_local_size = variable("LOCAL_WORLD_SIZE").has_value();
  return index == "RANK" ? !has_local_size : has_local_size && !variable("RANK");
}

// The machines that a row tells; nothing where a list is empty. WORLD_SIZE may count processes, several a machine.
absl::StatusOr<std::optional<int>> CountMembers(const VariableLookup& variable, const MemberRow& row) {
  const std::string text = ValueOf(variable, row.count);
  if (IsListOfMachines(row.count)) {
    const size_t names = NamesIn(text).size();
    return names == 0 ? std::optional<int>() : std::optional<int>(static_cast<int>(std::min<size_t>(names, kMaxNodes)));
  }
  std::optional<int> count = ReadWholeNumber(text, 1, std::numeric_limits<int>::max());
  const std::string_view name = row.count;
  if (const size_t colon = text.find(':'); name == "PET_NNODES" && colon != std::string::npos) {
    const std::string most = text.substr(colon + 1);
    if (most == text.substr(0, colon)) count = ReadWholeNumber(most, 1, kMaxNodes);
    if (!count) {
      return InvalidArgumentError(Remedy::kLocalInstead,
                                  Says(variable, row.count) +
                                      " is a range, and does not tell how many machines run this command; give each "
                                      "the same number (a PyTorchJob without elasticPolicy), or --launcher local for "
                                      "a job of this machine alone");
    }
  }
  if (!count) return NoMemberNumber(variable, row.count);
  if (name == "WORLD_SIZE") {
    const bool by_node = std::string_view(row.index) == "NODE_RANK";
    const std::string each = ValueOf(variable, by_node ? "LOCAL_WORLD_SIZE" : "PET_NPROC_PER_NODE");
    const int ranks = ReadWholeNumber(each, 1, kMaxRanksPerNode).value_or(1);  // 1 also for "auto"
    if (*count % ranks == 0) *count /= ranks;
  }
  if (*count > kMaxNodes) return NoMemberNumber(variable, row.count);
  return count;
}

absl::StatusOr<int> IndexOfMember(const VariableLookup& variable, const MemberRow& row) {
  const std::string text = ValueOf(variable, row.index);
  if (const auto index = ReadWholeNumber(text, 0, kMaxNodes)) return *index;
  if (IsListOfMachines(row.count)) {
    const std::vector<std::string> names = NamesIn(ValueOf(variable, row.count));
    const auto at = std::find(names.begin(), names.end(), text);
    if (at != names.end()) return static_cast<int>(at - names.begin());
  }
  return NoMemberNumber(variable, row.index);
}

// Reads one row; nothing where it does not apply, or stands for one machine.
absl::StatusOr<std::optional<Member>> ReadMemberRow(const VariableLookup& variable, const MemberRow& row) {
  const bool unfit = std::string_view(row.count) == "WORLD_SIZE" && !CountsMachines(variable, row.index);
  if (ValueOf(variable, row.count).empty() || unfit) return std::nullopt;
  const bool typed_by_hand = std::string_view(row.count) != "PET_NNODES";
  const bool has_index = !ValueOf(variable, row.index).empty();
  if (!has_index && typed_by_hand) return std::nullopt;  // a number alone is for the program
  if (!has_index && variable("RANK") && variable("WORLD_SIZE")) return std::nullopt;  // the row of those tells it
  COHORT_ASSIGN_OR_RETURN(const std::optional<int> count, CountMembers(variable, row));
  if (!count || (*count == 1 && !has_index)) return std::nullopt;
  if (!has_index) {
    return InvalidArgumentError(Remedy::kLocalInstead,
                                Says(variable, row.count) + ", but " + row.index +
                                    " is not set, which says which of them this machine is; set it, or give "
                                    "--launcher local for a job of this machine alone");
  }
  Member member;
  member.count = *count;
  COHORT_ASSIGN_OR_RETURN(member.index, IndexOfMember(variable, row));
  if (member.count == 1 && member.index == 0) return std::nullopt;
  const std::vector<std::string> names = NamesIn(ValueOf(variable, row.first));
  if (!names.empty()) member.first = names[0];
  member.source = Says(variable, row.count) + " " + Says(variable, row.index);
  if (member.index >= member.count) {
    return InvalidArgumentError(Remedy::kContradictingOptions,
                                member.source +
                                    " contradict each other: machines are counted from 0; unset "
                                    "both, or give --launcher local for a job of this machine alone");
  }
  if (!names.empty() && row.first != std::string_view(row.count)) member.source += " " + Says(variable, row.first);
  return member;
}

constexpr int kGatePort = 29400;  // of a pod's own network
constexpr size_t kMinSecret = 16;

std::string NeedsSecret(const Member& member) {
  std::string text = "the " + member.noun + "s of " + member.source +
                     " need a secret that they share: give --token-file /etc/cohort/token, and ";
  if (member.noun == "pod") {
    text +=
        "add to the pod's template\n"
        "  volumes: [{name: cohort, secret: {secretName: cohort-token}}]\n"
        "  containers: [{..., volumeMounts: [{name: cohort, mountPath: /etc/cohort, readOnly: true}]}]\n"
        "after: kubectl create secret generic cohort-token --from-literal=token=$(openssl rand -hex 32)";
  } else {
    text += "put the same file there on each (openssl rand -hex 32 makes one)";
  }
  return text + "; or give --insecure where the network is your own; or --launcher local for a job of this " +
         member.noun + " alone";
}

absl::StatusOr<JoinKey> ReadKey(const Options& options, const Member& member) {
  if (options.token_file.empty() && options.insecure) {
    Say("--insecure: every program that reaches port " +
        std::to_string(options.ports.value_or(PortRange{kGatePort, 0}).first) + " of " + member.noun +
        " 0 can take part in this job");
    return MakeJoinKey("insecure");
  }
  if (options.token_file.empty()) return InvalidArgumentError(Remedy::kLocalInstead, NeedsSecret(member));
  COHORT_ASSIGN_OR_RETURN(std::string secret, ReadTextFile(options.token_file, "--token-file"));
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() < kMinSecret) {
    return InvalidArgumentError(Remedy::kShortSecret, "--token-file " + options.token_file + ": it must hold " +
                                                          std::to_string(kMinSecret) +
                                                          " characters at least; openssl rand -hex 32 makes some");
  }
  return MakeJoinKey(secret);
}

std::string CountOf(size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace

absl::StatusOr<JobNodes> GatherMembers(const Options& options, const Member& member) {
  const std::string count = std::to_string(member.count);
  const std::string own_name = member.noun + " " + std::to_string(member.index);
  if (member.index >= member.count) {
    return InvalidArgumentError(Remedy::kPodCount, "this is " + own_name + ", but --nnodes is " + count +
                                                       "; both must come from the same number");
  }
  if (member.count == 1) return ThisMachine().Find(options);
  if (options.dry_run) {
    return InvalidArgumentError(Remedy::kDryRunOfJoiners,
                                "this is " + own_name + " of " + count + ", and nothing is known of " + member.noun +
                                    "s that have yet to join; leave --dry-run and --explain out, or " +
                                    "use --simulate-nodes " + count);
  }
  COHORT_ASSIGN_OR_RETURN(const JoinKey key, ReadKey(options, member));
  const PortRange ports = options.ports.value_or(PortRange{kGatePort, kGatePort});
  if (member.index > 0) {
    const bool six = member.first.find(':') != std::string::npos && member.first.front() != '[';
    const JoinTarget target{
        .addresses = (six ? "[" + member.first + "]" : member.first) + ":" + std::to_string(ports.first),
        .key = key,
        .index = member.index,
        .wait = options.wait.value_or(kJoinWait)};
    return JobNodes{.source = CountOf(static_cast<size_t>(member.count), member.noun),
                    .instead = [target] { return JoinJob(target); }};
  }
  COHORT_ASSIGN_OR_RETURN(NodeResources own, OwnResources(options));
  COHORT_ASSIGN_OR_RETURN(JoinGate gate, JoinGate::Open({ports.first, ports.first}));  // where the others look
  Say(own_name + " of " + count + " waits for the others on port " + std::to_string(gate.port()));
  COHORT_ASSIGN_OR_RETURN(JobNodes found,
                          AwaitJoined(options, std::move(own), &gate, key,
                                      {.count = member.count - 1,
                                       .indexed = true,
                                       .deadline = runtime::Deadline::After(options.wait.value_or(kJoinWait))}));
  found.source = CountOf(found.nodes.size(), member.noun);
  return found;
}

absl::Status CheckNodesTyped(const Options& options, int count, const std::string& says) {
  if (!options.nodes) return absl::OkStatus();
  const int least = options.min_nodes.value_or(*options.nodes);
  if (least <= count && count <= *options.nodes) return absl::OkStatus();
  const std::string most = options.min_nodes ? ":" + std::to_string(*options.nodes) : "";
  return InvalidArgumentError(Remedy::kLocalInstead,
                              "--nnodes " + std::to_string(least) + most + ", but " + says + " says that " +
                                  std::to_string(count) +
                                  " run this command; leave --nnodes out, or give --launcher local for a job of "
                                  "this machine alone");
}

absl::StatusOr<std::optional<Member>> ReadMemberVariables(const VariableLookup& variable) {
  std::optional<Member> found;
  const char* lacks = "";
  for (const MemberRow& row : kMemberRows) {
    COHORT_ASSIGN_OR_RETURN(std::optional<Member> member, ReadMemberRow(variable, row));
    if (!member) continue;
    if (!found) {
      lacks = row.first;
      found = std::move(member);
      continue;
    }
    if (member->count != found->count || member->index != found->index) {
      return InvalidArgumentError(Remedy::kContradictingOptions,
                                  found->source + " and " + member->source +
                                      " contradict each other; unset those that are wrong, or give --launcher local "
                                      "for a job of this machine alone");
    }
    if (found->first.empty()) found = std::move(member);
  }
  if (!found) return found;
  if (found->first.empty() && found->index > 0) {
    return InvalidArgumentError(Remedy::kLocalInstead,
                                found->source + ", but " + lacks +
                                    " is not set, which names the first machine; set it on each, or give --launcher "
                                    "local for a job of this machine alone");
  }
  found->noun = variable("KUBERNETES_SERVICE_HOST") ? "pod" : "machine";
  return found;
}

Detection Members::Detect(const Options&) const {
  const absl::StatusOr<std::optional<Member>> member = ReadMemberVariables(GetVariable);
  if (!member.ok()) return {true, std::string(member.status().message())};
  if (!member->has_value()) return {false, "no variables name machines that run the same command"};
  return {true, (*member)->source};
}

bool Members::RunsElsewhere(const Options&) const {
  const absl::StatusOr<std::optional<Member>> member = ReadMemberVariables(GetVariable);
  return member.ok() && member->has_value() && (*member)->index > 0;
}

absl::StatusOr<JobNodes> Members::Find(const Options& options) const {
  COHORT_ASSIGN_OR_RETURN(std::optional<Member> member, ReadMemberVariables(GetVariable));
  if (!member) return absl::InternalError("the variables that named other machines are gone");
  COHORT_RETURN_IF_ERROR(CheckNodesTyped(options, member->count, member->source));
  if (options.nodes) member->count = *options.nodes;  // the most of a range, which is waited for
  return GatherMembers(options, *member);
}

}  // namespace cohort::launcher
