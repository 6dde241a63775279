#include "cohort/runtime/bootstrap/alone.h"

#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/bootstrap/local_segment.h"
#include "cohort/runtime/segment/agent_protocol.h"

namespace cohort::runtime {

void BootstrapAlone::Goodbye() { segment_->control(0).state.store(kRankFinalised); }

absl::StatusOr<std::unique_ptr<Segment>> BootstrapAlone::MakeSegment(const Segment::Options& options) {
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<Segment> segment, CreateAndAttach(options));
  segment_ = segment.get();
  return segment;
}

}  // namespace cohort::runtime
