// Which ranks share a node, in the words of PMI-1's key PMI_process_mapping: "(vector,(0,2,4))" means 4 ranks on each
// of the nodes 0 and 1. Source: MPICH's src/mpid/common/shm and Hydra's HYD_pmcd_pmi_process_mapping.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cohort::launcher {

// `ranks`: of each node in the order of the nodes, whose ranks ascend. Nodes without ranks are left out, and the others
// keep their numbers. Empty where that takes more than `most` bytes; an MPI library then takes each rank for a node.
std::string ProcessMapping(const std::vector<size_t>& ranks, size_t most);

}  // namespace cohort::launcher
