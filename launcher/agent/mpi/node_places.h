// The nodes of a job that have ranks, as MPI libraries count them.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

struct NodePlace {
  std::string name;
  int first_rank = 0;
  int ranks = 0;
};

struct NodePlaces {
  std::vector<NodePlace> nodes;
  size_t own = 0;  // the place of the assignment's node

  // The places of the nodes that have these ranks, ascending.
  std::vector<size_t> Of(const std::vector<int>& ranks) const;
};

NodePlaces PlacesOf(const v1::Assignment& assignment);

// MPI_UNIVERSE_SIZE: as many processes as there are CPUs, `cpus` on each host, and no fewer than ranks.
int UniverseOf(const v1::Assignment& assignment, int cpus);

// The words for a wait of the own node for those places, "node b" or "nodes b, c and 5 more"; empty where a node before
// this one waits for them too, which says it for all.
std::string NodesWaitedFor(const NodePlaces& places, const std::set<size_t>& missing);

// "rank 3", or "ranks 1, 2 and 5 more".
std::string NamesOfRanks(const std::vector<int>& ranks);

}  // namespace cohort::launcher
