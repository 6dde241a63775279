// Tells the nodes of a job that a rank of one of them is gone, for which MPI on the others may wait for ever.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "cohort/launcher/agent/mpi/stored_values.h"

namespace cohort::launcher {

// "rank 3 of host"; `node` may be empty.
inline std::string RankOfNode(int rank, const std::string& node) {
  return "rank " + std::to_string(rank) + (node.empty() ? "" : " of " + node);
}

// "rank 3 of host, which has ended without MPI_Finalize". `finalized`: it has ended with it.
inline std::string RankThatLeft(int rank, const std::string& node, bool finalized = false) {
  return RankOfNode(rank, node) + ", which has ended " + (finalized ? "after" : "without") + " MPI_Finalize";
}

// "rank 3 of host has ended without MPI_Finalize".
inline std::string RankHasLeft(int rank, const std::string& node) {
  return RankOfNode(rank, node) + " has ended without MPI_Finalize";
}

// On the agent's event loop.
class LeftNews {
 public:
  // `way`: how the ranks are served, "pmi1" or "pmix". The store outlives this object.
  LeftNews(StoredValues* store, const std::string& way) : store_(store), name_("left/" + way) {}

  // Calls `on_left` once, as soon as another node has told anything. Once.
  void Listen(std::function<void(const std::string& what)> on_left) {
    store_->Get(name_, [this, on_left = std::move(on_left)](const std::string& what) {
      if (!told_) on_left(what);
    });
  }
  // Tells the other nodes what MPI can't go on without. The first call counts.
  void Tell(const std::string& what) {
    if (!std::exchange(told_, true)) store_->Put(name_, what);
  }

 private:
  StoredValues* const store_;
  const std::string name_;
  bool told_ = false;
};

}  // namespace cohort::launcher
