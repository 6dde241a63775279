#include "cohort/trainer/examples/mesh_option.h"

#include "CLI/CLI.hpp"
#include "c10/util/Exception.h"

namespace cohort::examples {

std::pair<std::vector<std::string>, std::vector<int>> ParseMesh(const std::string& text) {
  std::vector<std::string> names;
  std::vector<int> sizes;
  for (const std::string& part : CLI::detail::split(text, ',')) {
    const size_t equals = part.find('=');
    int size = 0;
    TORCH_CHECK(equals != std::string::npos && CLI::detail::lexical_cast(part.substr(equals + 1), size) && size > 0,
                "--mesh wants dimensions and their sizes, as in replicate=2,shard=2, not \"", part, "\"");
    names.push_back(part.substr(0, equals));
    sizes.push_back(size);
  }
  // FSDP takes the dimensions by their places: another order would shard over the replicas.
  const std::vector<std::string> shards = {"shard"}, replicas = {"replicate", "shard"};
  TORCH_CHECK(names == shards || names == replicas,
              "--mesh wants shard=N, or replicate=M,shard=N in this order, not \"", text, "\"");
  return {names, sizes};
}

}  // namespace cohort::examples
