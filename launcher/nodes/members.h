// Machines or pods that all run the same command, each started by an operator or a service. Each finds in variables how
// many they are, which of them this is, and the first one's name: pods, PyTorchJob, SkyPilot, AWS Batch, SageMaker,
// JAX. The first runs the job; the others dial it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/nodes/node_source.h"

namespace cohort::launcher {

struct Member {
  int index = 0;       // 0: the first machine
  int count = 0;       // machines of the job
  std::string first;   // the name of machine 0; not read in machine 0 itself
  std::string noun;    // "pod", "machine"
  std::string source;  // in words, what says so: "pod 0's name train-0.train", "WORLD_SIZE=2 RANK=1 MASTER_ADDR=a"
};

// In machine 0: all machines in the order of their indices, once they have come; --wait or ten minutes. In the others:
// JobNodes::instead joins it. kInvalidArgument: an index beyond the count, a dry run, or neither --token-file nor
// --insecure. Call from the main thread.
absl::StatusOr<JobNodes> GatherMembers(const Options& options, const Member& member);

// kInvalidArgument: --nnodes N is another number than `count`, or `count` lies outside of --nnodes MIN:MAX. `says` is
// what tells the count: "PET_NNODES=2".
absl::Status CheckNodesTyped(const Options& options, int count, const std::string& says);

// Reads the variables of the rows in members.cc; nothing where they say that there is one machine, or say nothing.
// kInvalidArgument: a number is none, the first machine is not named, or two rows differ. Pure.
absl::StatusOr<std::optional<Member>> ReadMemberVariables(const VariableLookup& variable);

class Members : public NodeSource {
 public:
  Detection Detect(const Options& options) const override;
  bool RunsElsewhere(const Options& options) const override;
  bool SharesSecret() const override { return true; }
  // See GatherMembers. kInvalidArgument also where --nnodes is another number than the variables tell.
  absl::StatusOr<JobNodes> Find(const Options& options) const override;
};

}  // namespace cohort::launcher
