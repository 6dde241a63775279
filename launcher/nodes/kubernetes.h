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
  std::string counted_by;    // the variable that tells it
  std::string first;         // the name of pod 0; empty in pod 0 itself where nothing tells it
};

// Reads a pod's variables and its own full name. kInvalidArgument: the name has no place for pod 0's (no headless
// Service), an index that is none, or such a count where it is needed, and not left out. Pure.
absl::StatusOr<KubernetesPod> ReadKubernetesVariables(const VariableLookup& variable, const std::string& full_name,
                                                      bool needs_count = true);

class Kubernetes : public NodeSource {
 public:
  Detection Detect(const Options& options) const override;
  bool RunsElsewhere(const Options& options) const override;
  bool SharesSecret() const override { return true; }
  // See GatherMembers. kInvalidArgument also where neither --nnodes nor a variable tells the number of pods, or both do
  // and differ.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

}  // namespace cohort::launcher
