// Pods that all run the same command: of an Indexed Job, of a JobSet's jobs, or of a LeaderWorkerSet. Pod 0 runs the
// job; the others dial it by the name that DNS gives it. No access to the cluster's API is needed.
#pragma once

#include <optional>
#include <string>

#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/nodes/node_source.h"

namespace cohort::launcher {

struct KubernetesPod {
  int index = 0;
  std::optional<int> count;  // pods of the job, where the variables tell it
  std::string first;         // the name of pod 0; empty in pod 0 itself where nothing tells it
};

// Reads a pod's variables and its own full name. kInvalidArgument: the name has no place for pod 0's (no headless
// Service), or an index or a count that is none; what tells the count is not read unless it is wanted. Pure.
absl::StatusOr<KubernetesPod> ReadKubernetesVariables(const VariableLookup& variable, const std::string& full_name,
                                                      bool wants_count = true);

class Kubernetes : public NodeSource {
 public:
  Detection Detect(const Options& options) const override;
  bool RunsElsewhere(const Options& options) const override;
  // In pod 0: all pods in the order of their indices, once they have come; --wait or ten minutes. In the others:
  // JobNodes::instead joins it. kInvalidArgument without --nnodes, or without --token-file and --insecure.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

}  // namespace cohort::launcher
