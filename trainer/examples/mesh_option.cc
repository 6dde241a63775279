#include "cohort/trainer/examples/mesh_option.h"

#include <algorithm>
#include <set>

#include "c10/util/Exception.h"
#include "cohort/trainer/mesh/axis.h"

namespace cohort::examples {

std::pair<std::vector<std::string>, std::vector<int>> ParseMesh(const std::string& text) {
  const absl::StatusOr<trainer::MeshShape> shape = trainer::ParseMesh(text);
  const std::vector<std::string> shards = {"shard"}, replicas = {"replicate", "shard"};
  TORCH_CHECK(shape.ok() && (shape->names == shards || shape->names == replicas),
              "--mesh wants shard=N, or replicate=M,shard=N, not \"", text, "\"");
  return {shape->names, shape->sizes};
}

trainer::MeshShape ParseModelMesh(const std::string& text) {
  absl::StatusOr<trainer::MeshShape> shape = trainer::ParseMesh(text);
  const std::set<std::string> known = {trainer::kPipelineAxis, trainer::kReplicateAxis, trainer::kShardAxis,
                                       trainer::kTensorAxis};
  const std::string wants =
      "--mesh wants pipeline=P,replicate=M,shard=N,tensor=T, or a part of it (data parallel is "
      "replicate or shard): ";
  TORCH_CHECK(shape.ok(), wants, shape.status().message());
  TORCH_CHECK(std::all_of(shape->names.begin(), shape->names.end(),
                          [&](const std::string& name) { return known.contains(name); }),
              wants, "not \"", text, "\"");
  return *std::move(shape);
}

}  // namespace cohort::examples
