// Reads the value of --mesh.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cohort/trainer/mesh/mesh_shape.h"

namespace cohort::examples {

// Names and sizes of "shard=4" or "replicate=2,shard=2". Throws c10::Error for anything else.
std::pair<std::vector<std::string>, std::vector<int>> ParseMesh(const std::string& text);
// The same with a pipeline and a tensor axis, in any order: "pipeline=2,shard=2,tensor=2".
trainer::MeshShape ParseModelMesh(const std::string& text);

}  // namespace cohort::examples
