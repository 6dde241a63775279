// Reads the value of --mesh.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cohort::examples {

// Names and sizes of "shard=4" or "replicate=2,shard=2". Throws c10::Error for anything else.
std::pair<std::vector<std::string>, std::vector<int>> ParseMesh(const std::string& text);

}  // namespace cohort::examples
