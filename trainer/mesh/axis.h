// Axis: one axis of the mesh as this rank sees it. Axes are known by name, never by their place in a mesh.
//
// The names in canonical order, outermost first:
//
//   pipeline   stages of the model; the traffic is smallest, so ranks may be far apart
//   replicate  equal copies of parameters (DDP; the outer part of HSDP)
//   shard      parameters cut among ranks (FSDP)
//   context    reserved: parts of a sequence
//   expert     reserved: experts of a mixture
//   tensor     matrices cut among ranks (Megatron); neighbours, because every layer communicates
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace cohort::comm {
class Communicator;
}

namespace cohort::trainer {

inline constexpr const char* kPipelineAxis = "pipeline";
inline constexpr const char* kReplicateAxis = "replicate";
inline constexpr const char* kShardAxis = "shard";
inline constexpr const char* kContextAxis = "context";
inline constexpr const char* kExpertAxis = "expert";
inline constexpr const char* kTensorAxis = "tensor";

struct Axis {
  std::string name;
  int size = 1;  // ranks along it
  int rank = 0;  // this rank's place along it
  // The ranks along it. Null where nothing is sent, such as in a dry run. It must outlive what uses the axis.
  comm::Communicator* group = nullptr;
};

// The place of a rank along each axis, by the axis's name.
using Coordinate = std::map<std::string, int>;

// The place of an axis in the canonical order. Other names come after all of these.
int CanonicalOrder(std::string_view name);

}  // namespace cohort::trainer
