#include "cohort/launcher/machine/numa_nodes.h"

#include <hwloc.h>

#include <algorithm>
#include <set>
#include <utility>

namespace cohort::launcher {
namespace {

// Nothing where hwloc can't look.
std::vector<std::vector<int>> ReadNumaNodes(const std::vector<int>& cpus) {
  std::vector<std::vector<int>> nodes;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return nodes;
  if (hwloc_topology_load(topology) == 0) {
    std::set<int> taken;  // memory of another kind may be near the same CPUs
    for (hwloc_obj_t node = nullptr;
         (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
      std::vector<int> own;
      for (const int cpu : cpus) {
        if (hwloc_bitmap_isset(node->cpuset, static_cast<unsigned>(cpu)) && taken.insert(cpu).second)
          own.push_back(cpu);
      }
      if (!own.empty()) nodes.push_back(std::move(own));
    }
  }
  hwloc_topology_destroy(topology);
  return nodes;
}

}  // namespace

std::vector<std::vector<int>> FindNumaNodes(const std::vector<int>& cpus) {
  std::vector<std::vector<int>> nodes = ReadNumaNodes(cpus);
  size_t found = 0;
  for (const std::vector<int>& node : nodes) found += node.size();
  if (found == cpus.size()) return nodes;
  return {cpus};
}

}  // namespace cohort::launcher
