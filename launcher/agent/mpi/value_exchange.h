// Gives each node what all others have for it: an all-gather over the job's store, one round after another.
//
// Bytes, with N nodes that publish B each: N B to the rendezvous, N (N - 1) B from it. On the agent's event loop.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cohort/launcher/agent/mpi/stored_values.h"

namespace cohort::launcher {

class ValueExchange {
 public:
  // The values of all other members in their order.
  using Then = std::function<void(const std::vector<std::string>& values)>;

  // The store outlives it, and is one of this node's.
  explicit ValueExchange(StoredValues* store) : store_(store) {}

  // This node's values of a round, whose name is the same on all nodes; once a round.
  void Publish(const std::string& round, size_t own, const std::string& values) {
    store_->Put(KeyOf(round, own), values);
  }
  // Waits for the values of those of `members` that are not `own`, for however long.
  void Fetch(const std::string& round, const std::vector<size_t>& members, size_t own, const Then& then);

 private:
  static std::string KeyOf(const std::string& round, size_t node) { return round + "/" + std::to_string(node); }

  StoredValues* const store_;
};

}  // namespace cohort::launcher
