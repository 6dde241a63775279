// The node segments of an epoch. A rank that finalizes its runtime may open another one in the epoch, and the k-th
// runtimes of the node's ranks share the k-th segment. So nothing that one runtime leaves meets the next one's, however
// far the ranks are apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

class EpochSegments {
 public:
  // A rank may open this many runtimes more than the slowest one of its node: a segment takes up to 8 TiB of the
  // agent's addresses, of which there are 128.
  static constexpr size_t kMostAhead = 8;

  // Makes the first one. `options` are those of all.
  absl::Status Start(const Segment::Options& options);

  // The segment that a rank uses, or used last. After Start.
  Segment& Of(int local_rank) const;
  // A rank opens a runtime, in the segment after the one that it has left. kResourceExhausted: there is no memory, or
  // the rank is too far ahead.
  absl::Status Open(int local_rank);
  // A recorder writes for a rank, in the segment that the rank uses, or used last. kResourceExhausted: as above.
  absl::Status Record(int local_rank) const;
  // A rank has finalized its runtime.
  void Leave(int local_rank);
  // A rank has ended, in order or not (RankControl::state): all ranks see it, also in later segments.
  void MarkEnded(int local_rank, uint32_t state);

 private:
  struct Rank {
    size_t place = 0;    // of its segment, counted from the first there ever was
    bool left = false;   // it has finalized the runtime there
    uint32_t ended = 0;  // its state, once it has ended
  };

  absl::Status Add();
  void DropOld();

  Segment::Options options_;
  std::vector<Rank> ranks_;
  size_t dropped_ = 0;
  std::deque<std::unique_ptr<Segment>> segments_;  // without those dropped
};

}  // namespace cohort::runtime
