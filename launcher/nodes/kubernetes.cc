#include "cohort/launcher/nodes/kubernetes.h"

#include <netdb.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/base/net/host_name.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/base/text_file.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/join/join_job.h"
#include "cohort/launcher/join/token.h"
#include "cohort/launcher/nodes/joined_nodes.h"
#include "cohort/launcher/nodes/remote_hosts.h"
#include "cohort/launcher/nodes/this_machine.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr int kDefaultPort = 29400;  // of a pod's own network
constexpr size_t kMinSecret = 16;
constexpr size_t kMaxName = 253;  // of DNS

// The number of a pod, from 0, or of pods, from 1.
absl::StatusOr<int> ReadNumber(const char* name, const std::string& text, int min) {
  if (const auto value = ReadWholeNumber(text, min, kMaxNodes)) return *value;
  return absl::InvalidArgumentError(std::string(name) + " is '" + text + "', which is no " +
                                    (min == 0 ? "number of a pod" : "number of pods; give --nnodes N"));
}

// "train-0.train.default.svc.cluster.local", as the pod's /etc/hosts has it.
std::string FullName() {
  addrinfo hints{};
  hints.ai_flags = AI_CANONNAME;
  addrinfo* found = nullptr;
  if (::getaddrinfo(HostName().c_str(), nullptr, &hints, &found) != 0) return HostName();
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
  return found->ai_canonname != nullptr ? found->ai_canonname : HostName();
}

absl::StatusOr<JoinKey> ReadKey(const Options& options, const std::string& first) {
  if (options.token_file.empty() && options.insecure) {
    Say("--insecure: whoever reaches port " + std::to_string(options.ports.value_or(PortRange{kDefaultPort, 0}).first) +
        " of pod 0 can take part in this job");
    return MakeJoinKey("insecure");
  }
  if (options.token_file.empty()) {
    return absl::InvalidArgumentError(
        "the pods of " + first +
        " need a secret that they share: give --token-file /etc/cohort/token, and add to the pod's template\n"
        "  volumes: [{name: cohort, secret: {secretName: cohort-token}}]\n"
        "  containers: [{..., volumeMounts: [{name: cohort, mountPath: /etc/cohort, readOnly: true}]}]\n"
        "after: kubectl create secret generic cohort-token --from-literal=token=$(openssl rand -hex 32); or give "
        "--insecure where the network is your own");
  }
  COHORT_ASSIGN_OR_RETURN(std::string secret, ReadTextFile(options.token_file, "--token-file"));
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() < kMinSecret) {
    return absl::InvalidArgumentError("--token-file " + options.token_file + ": it must hold " +
                                      std::to_string(kMinSecret) +
                                      " characters at least; openssl rand -hex 32 makes some");
  }
  return MakeJoinKey(secret);
}

}  // namespace

absl::StatusOr<KubernetesPod> ReadKubernetesVariables(const VariableLookup& variable, const std::string& full_name,
                                                      bool wants_count) {
  KubernetesPod pod;
  if (const auto leader = variable("LWS_LEADER_ADDRESS")) {
    if (leader->size() > kMaxName) {
      return absl::InvalidArgumentError("LWS_LEADER_ADDRESS has " + std::to_string(leader->size()) +
                                        " characters, and no name of a pod has more than " + std::to_string(kMaxName) +
                                        "; it is set by LeaderWorkerSet, or has to be unset");
    }
    pod.first = *leader;
    COHORT_ASSIGN_OR_RETURN(pod.index, ReadNumber("LWS_WORKER_INDEX", variable("LWS_WORKER_INDEX").value_or(""), 0));
    if (const auto size = variable("LWS_GROUP_SIZE"); size && wants_count) {
      COHORT_ASSIGN_OR_RETURN(pod.count, ReadNumber("LWS_GROUP_SIZE", *size, 1));
    }
    return pod;
  }
  // Kubeflow's trainer tells torchrun so; a range is not the number of pods.
  if (const auto nodes = variable("PET_NNODES"); wants_count && nodes && nodes->find(':') == std::string::npos) {
    COHORT_ASSIGN_OR_RETURN(pod.count, ReadNumber("PET_NNODES", *nodes, 1));
  }
  COHORT_ASSIGN_OR_RETURN(pod.index,
                          ReadNumber("JOB_COMPLETION_INDEX", variable("JOB_COMPLETION_INDEX").value_or(""), 0));
  const size_t dot = std::min(full_name.find('.'), full_name.size());
  const std::string own = full_name.substr(0, dot);
  const std::string end = "-" + std::to_string(pod.index);
  if (pod.index == 0) {
    pod.first = full_name;
    return pod;
  }
  if (!own.ends_with(end) || dot == full_name.size()) {
    return absl::InvalidArgumentError("this pod is called " + full_name +
                                      ", from which pod 0's name can't be told; make a headless Service and set "
                                      "spec.template.spec.subdomain to its name");
  }
  pod.first = own.substr(0, own.size() - end.size()) + "-0" + full_name.substr(dot);
  return pod;
}

Detection Kubernetes::Detect(const Options&) const {
  if (const auto leader = GetVariable("LWS_LEADER_ADDRESS"))
    return {true, "LWS_LEADER_ADDRESS is " + Printable(*leader, kMaxName)};
  if (!GetVariable("KUBERNETES_SERVICE_HOST")) return {false, "KUBERNETES_SERVICE_HOST is not set"};
  const auto index = GetVariable("JOB_COMPLETION_INDEX");
  if (!index) return {false, "a pod, but neither JOB_COMPLETION_INDEX nor LWS_LEADER_ADDRESS is set"};
  return {true, "a pod whose JOB_COMPLETION_INDEX is " + *index};
}

bool Kubernetes::RunsElsewhere(const Options&) const {
  const char* const name = GetVariable("LWS_LEADER_ADDRESS") ? "LWS_WORKER_INDEX" : "JOB_COMPLETION_INDEX";
  const absl::StatusOr<int> index = ReadNumber(name, GetVariable(name).value_or(""), 0);
  return index.ok() && *index > 0;
}

absl::StatusOr<JobNodes> Kubernetes::Find(const Options& options) const {
  COHORT_ASSIGN_OR_RETURN(const KubernetesPod pod,
                          ReadKubernetesVariables(GetVariable, FullName(), /*wants_count=*/!options.nodes));
  const int count = options.nodes.value_or(pod.count.value_or(0));
  if (count == 0) {
    return absl::InvalidArgumentError(
        "a pod can't tell how many there are: give --nnodes N, the Job's completions, or --nnodes 1 for this pod "
        "alone");
  }
  if (pod.index >= count) {
    return absl::InvalidArgumentError("this is pod " + std::to_string(pod.index) + ", but --nnodes is " +
                                      std::to_string(count) + "; both must come from the same number");
  }
  if (count == 1) return ThisMachine().Find(options);
  if (options.dry_run) {
    return absl::InvalidArgumentError("this is pod " + std::to_string(pod.index) + " of " + std::to_string(count) +
                                      ", and nothing is known of pods that have yet to join; leave --dry-run and "
                                      "--explain out, or use --simulate-nodes " +
                                      std::to_string(count));
  }
  COHORT_ASSIGN_OR_RETURN(const JoinKey key, ReadKey(options, pod.first));
  const PortRange ports = options.ports.value_or(PortRange{kDefaultPort, kDefaultPort});
  const auto pods = [](size_t number) { return std::to_string(number) + (number == 1 ? " pod" : " pods"); };
  if (pod.index > 0) {
    const JoinTarget target{.addresses = pod.first + ":" + std::to_string(ports.first),
                            .key = key,
                            .index = pod.index,
                            .wait = options.wait.value_or(kJoinWait)};
    return JobNodes{.source = pods(count), .instead = [target] { return JoinJob(target); }};
  }
  COHORT_ASSIGN_OR_RETURN(NodeResources own, OwnResources(options));
  COHORT_ASSIGN_OR_RETURN(JoinGate gate, JoinGate::Open({ports.first, ports.first}));  // where the others look
  Say("pod 0 of " + std::to_string(count) + " waits for the others on port " + std::to_string(gate.port()));
  COHORT_ASSIGN_OR_RETURN(JobNodes found,
                          AwaitJoined(options, std::move(own), &gate, key,
                                      {.count = count - 1,
                                       .indexed = true,
                                       .deadline = runtime::Deadline::After(options.wait.value_or(kJoinWait))}));
  found.source = pods(found.nodes.size());
  return found;
}

}  // namespace cohort::launcher
