// Gives each node what all others have for it: an all-gather over the job's variables, one round after another.
//
// Bytes, with N nodes that publish B each: N B to the rendezvous, N (N - 1) B from it. A node's values of a round are
// removed when it has completed the second round after that. On the agent's event loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cohort/launcher/agent/mpi/stored_values.h"

namespace cohort::launcher {

class ValueExchange {
 public:
  // The same on all nodes. Rounds of one name follow each other: a member publishes one when it has completed the one
  // before.
  struct Round {
    std::string name;
    uint64_t number = 0;
  };
  // The values of all other members in their order.
  using Then = std::function<void(const std::vector<std::string>& values)>;

  // The store outlives it, and is one of this node's.
  explicit ValueExchange(StoredValues* store) : store_(store) {}

  // This node's values of a round; once a round.
  void Publish(const Round& round, size_t own, const std::string& values);
  // Waits for the values of those of `members` that are not `own`, for however long.
  void Fetch(const Round& round, const std::vector<size_t>& members, size_t own, const Then& then);
  // The members whose values any Fetch waits for, ascending.
  std::set<size_t> missing() const;

 private:
  struct Gathered {
    Then then;
    std::vector<std::string> values;
    std::set<size_t> missing;  // members
  };

  static std::string KeyOf(const Round& round, size_t node) {
    return round.name + "/" + std::to_string(round.number) + "/" + std::to_string(node);
  }
  // Removes what the others have, as this round is complete.
  void Forget(const Round& round, size_t own);

  StoredValues* const store_;
  std::map<std::string, std::map<uint64_t, size_t>> pieces_;  // of this node's values, by name and number
  std::set<std::shared_ptr<Gathered>> fetches_;               // that wait
};

}  // namespace cohort::launcher
