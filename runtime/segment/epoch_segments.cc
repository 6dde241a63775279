#include "cohort/runtime/segment/epoch_segments.h"

#include <algorithm>
#include <string>

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/process/owner_word.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/layout.h"

namespace cohort::runtime {

absl::Status EpochSegments::Start(const Segment::Options& options) {
  options_ = options;
  ranks_.resize(static_cast<size_t>(options.local_ranks));
  return Add();
}

absl::Status EpochSegments::Add() {
  Segment::Options options = options_;
  options.epoch = SegmentEpoch(options.epoch, dropped_ + segments_.size());
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<Segment> segment, Segment::Create(options));
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].ended != 0) segment->control(static_cast<int>(rank)).state.store(ranks_[rank].ended);
  }
  segments_.push_back(std::move(segment));
  return absl::OkStatus();
}

Segment& EpochSegments::Of(int local_rank) const {
  const size_t place = ranks_[static_cast<size_t>(local_rank)].place;
  return *segments_[std::max(place, dropped_) - dropped_];  // one that has ended may be behind
}

absl::Status EpochSegments::Open(int local_rank) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  const size_t place = rank.place + (rank.left ? 1 : 0);
  DropOld();
  if (place - dropped_ > kMostAhead) {
    return absl::ResourceExhaustedError("this rank has opened " + std::to_string(kMostAhead) +
                                        " runtimes more than another rank of its node: ranks open equally many");
  }
  if (place == dropped_ + segments_.size()) COHORT_RETURN_IF_ERROR(Add());
  COHORT_RETURN_IF_ERROR(segments_[place - dropped_]->ReserveFixedPart());
  // Calls that a recorder would still write into the former one would be seen by nobody.
  if (place != rank.place) OwnerWord(&RankPartOf(&Of(local_rank), local_rank)->black_box.owner).Revoke();
  rank.place = place;
  rank.left = false;
  DropOld();
  return absl::OkStatus();
}

absl::Status EpochSegments::Record(int local_rank) const { return Of(local_rank).ReserveFixedPart(); }

void EpochSegments::Leave(int local_rank) { ranks_[static_cast<size_t>(local_rank)].left = true; }

void EpochSegments::MarkEnded(int local_rank, uint32_t state) {
  ranks_[static_cast<size_t>(local_rank)].ended = state;
  for (const auto& segment : segments_) segment->control(local_rank).state.store(state, std::memory_order_seq_cst);
}

// A segment that all ranks have gone on from is of no use to anybody. One that a rank has only left may still hold its
// last calls, which reports show.
void EpochSegments::DropOld() {
  size_t slowest = dropped_ + segments_.size() - 1;
  for (const Rank& rank : ranks_) {
    if (rank.ended == 0) slowest = std::min(slowest, rank.place);
  }
  for (; dropped_ < slowest; ++dropped_) segments_.pop_front();
}

}  // namespace cohort::runtime
