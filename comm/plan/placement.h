// Which ranks of a group share a host ("node"): what plans of two levels are made for. Equal on all members.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace cohort::comm {

// How many nodes there are, and the ranks on the smallest and the largest of them. No nodes: not known.
struct NodeShape {
  int nodes = 0;
  int smallest = 0;
  int largest = 0;

  // Some ranks share a node, and others don't.
  bool two_levels() const { return nodes > 1 && largest > 1; }
  bool equal() const { return smallest == largest; }
};

// Immutable, and made once for a group.
class Placement {
 public:
  // The node of each rank, by any names: equal ones share a host. Nodes are numbered in the order of their lowest
  // ranks.
  explicit Placement(const std::vector<int>& node_names);
  // All on one node.
  static Placement OneNode(int size) { return Placement(std::vector<int>(static_cast<size_t>(size), 0)); }

  int size() const { return static_cast<int>(places_.size()); }
  int nodes() const { return static_cast<int>(first_.size()) - 1; }
  int node_of(int rank) const { return places_[static_cast<size_t>(rank)].node; }
  // The rank's place among those of its node.
  int local_of(int rank) const { return places_[static_cast<size_t>(rank)].local; }
  // The ranks on a node, in rising order.
  std::span<const int> ranks_on(int node) const;
  const NodeShape& shape() const { return shape_; }
  // Each node has a range of ranks.
  bool contiguous() const { return contiguous_; }

 private:
  struct Place {
    int node;
    int local;
  };
  std::vector<Place> places_;
  std::vector<int> ranks_;  // by node, then rising
  std::vector<int> first_;  // of each node in ranks_; the end
  NodeShape shape_;
  bool contiguous_ = true;
};

}  // namespace cohort::comm
