#include "cohort/trainer/examples/mesh_option.h"

#include "c10/util/Exception.h"
#include "cohort/trainer/mesh/mesh_shape.h"

namespace cohort::examples {

std::pair<std::vector<std::string>, std::vector<int>> ParseMesh(const std::string& text) {
  const absl::StatusOr<trainer::MeshShape> shape = trainer::ParseMesh(text);
  const std::vector<std::string> shards = {"shard"}, replicas = {"replicate", "shard"};
  TORCH_CHECK(shape.ok() && (shape->names == shards || shape->names == replicas),
              "--mesh wants shard=N, or replicate=M,shard=N, not \"", text, "\"");
  return {shape->names, shape->sizes};
}

}  // namespace cohort::examples
