#include "cohort/launcher/nodes/kubernetes.h"

#include <netdb.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/base/net/host_name.h"
#include "cohort/launcher/base/printable.h"
#include "cohort/launcher/base/whole_number.h"
#include "cohort/launcher/nodes/members.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMaxName = 253;  // of DNS

// The number of a pod, from 0, or of pods, from 1.
absl::StatusOr<int> ReadNumber(const char* name, const std::string& text, int min) {
  if (const auto value = ReadWholeNumber(text, min, kMaxNodes)) return *value;
  return InvalidArgumentError(Remedy::kPodNumber,
                              std::string(name) + " is '" + text + "', which is no " +
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

absl::Status ReadCount(const char* name, const VariableLookup& variable, bool needs_count, KubernetesPod* pod) {
  const auto text = variable(name);
  if (!text) return absl::OkStatus();
  const absl::StatusOr<int> count = ReadNumber(name, *text, 1);
  if (!count.ok()) return needs_count ? count.status() : absl::OkStatus();
  pod->count = *count;
  pod->counted_by = name;
  return absl::OkStatus();
}

// The number of pods: as typed, or as the variables tell it.
absl::StatusOr<int> CountPods(const Options& options, const KubernetesPod& pod) {
  if (!options.nodes && !pod.count) {
    return InvalidArgumentError(
        Remedy::kLocalInstead,
        "a pod can't tell how many there are: give --nnodes N, the Job's completions, or --launcher local for a job of "
        "this pod alone");
  }
  if (options.nodes && pod.count) {
    COHORT_RETURN_IF_ERROR(CheckNodesTyped(options, *pod.count, pod.counted_by + "=" + std::to_string(*pod.count)));
  }
  return options.nodes.value_or(pod.count.value_or(0));
}

}  // namespace

absl::StatusOr<KubernetesPod> ReadKubernetesVariables(const VariableLookup& variable, const std::string& full_name,
                                                      bool needs_count) {
  KubernetesPod pod;
  if (const auto leader = variable("LWS_LEADER_ADDRESS")) {
    if (leader->size() > kMaxName) {
      return InvalidArgumentError(Remedy::kPodLeader, "LWS_LEADER_ADDRESS has " + std::to_string(leader->size()) +
                                                          " characters, and no name of a pod has more than " +
                                                          std::to_string(kMaxName) +
                                                          "; it is set by LeaderWorkerSet, or has to be unset");
    }
    pod.first = *leader;
    COHORT_ASSIGN_OR_RETURN(pod.index, ReadNumber("LWS_WORKER_INDEX", variable("LWS_WORKER_INDEX").value_or(""), 0));
    COHORT_RETURN_IF_ERROR(ReadCount("LWS_GROUP_SIZE", variable, needs_count, &pod));
    return pod;
  }
  // Kubeflow's trainer tells torchrun so; a range is not the number of pods.
  if (variable("PET_NNODES").value_or("").find(':') == std::string::npos) {
    COHORT_RETURN_IF_ERROR(ReadCount("PET_NNODES", variable, needs_count, &pod));
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
    pod.first = variable("PET_MASTER_ADDR").value_or("");
    if (!pod.first.empty() && pod.first.size() <= kMaxName) return pod;
    return InvalidArgumentError(Remedy::kPodName,
                                "this pod is called " + full_name +
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
  COHORT_ASSIGN_OR_RETURN(const KubernetesPod pod, ReadKubernetesVariables(GetVariable, FullName(), !options.nodes));
  COHORT_ASSIGN_OR_RETURN(const int count, CountPods(options, pod));
  return GatherMembers(options,
                       {.index = pod.index, .count = count, .first = pod.first, .noun = "pod", .source = pod.first});
}

}  // namespace cohort::launcher
