// FsdpGroups: the communicators of a FsdpRoot, and counters. Gathering and reducing have communicators of their own, so
// that neither waits behind the other. All of them are the root's own: failing them leaves the user's groups alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/communicator.h"

namespace cohort::trainer {

// Calls and bytes of this rank since the root was made: what collectives were given to move, not what they sent.
struct FsdpTraffic {
  int64_t gathers = 0;
  int64_t gathered_bytes = 0;  // of the whole gathered vectors, padding included
  int64_t reductions = 0;
  int64_t reduced_bytes = 0;     // of whole flat gradients
  int64_t replicated_bytes = 0;  // of shards that were all-reduced over the replicas
};

class FsdpGroups {
 public:
  // `shard` carries the shards and `replicate`, if not null, joins equal shards; `world` has the ranks of both. All
  // must outlive this. `neighbours` has the numbers of ranks that units gather among in backward. Collective. Throws
  // DistributedError.
  FsdpGroups(comm::Communicator& world, comm::Communicator& shard, comm::Communicator* replicate,
             bool reduce_over_world, const std::vector<int>& neighbours);

  comm::Communicator& gather() const { return *gather_; }
  comm::Communicator& reduce() const { return *reduce_; }
  // Null without replicas, and where nothing is reduced over the world.
  comm::Communicator* replicate() const { return replicate_.get(); }
  comm::Communicator* world() const { return world_.get(); }
  comm::Communicator& neighbours(int ranks) const { return *neighbours_.at(ranks); }
  int shards() const { return shards_; }
  int replicas() const { return replicas_; }

  std::vector<comm::Communicator*> All() const;
  void Abort(const std::string& why);
  // Ends the groups whose windows hold units' memory: operations under way are given up, and no peer takes them for
  // done.
  void CloseWindowGroups();

 private:
  const int shards_;
  const int replicas_;
  std::unique_ptr<comm::Communicator> gather_, reduce_, replicate_, world_;
  std::map<int, std::unique_ptr<comm::Communicator>> neighbours_;  // by number of ranks
};

// Called on a rank whose last backward pass has ended in an exception. OK where all ranks of all `groups` call it: they
// go on together. Otherwise the others wait in some group for data that this rank won't send. The call then aborts the
// groups of several ranks with `message`. Without `all_answer` some rank can't call it, and it fails at once.
// Collective; blocks.
absl::Status AgreeThatPassEnded(std::span<comm::Communicator* const> groups, bool all_answer,
                                const std::string& message);

}  // namespace cohort::trainer
