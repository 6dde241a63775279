// The part of a bootstrap that is equal wherever no other process takes part: nothing is heard, and nobody is told.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "cohort/runtime/bootstrap/bootstrap.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

class BootstrapAlone : public Bootstrap {
 public:
  bool Poll(BootstrapListener& listener) final {
    (void)listener;
    return false;
  }
  void ReportStall(uint64_t group, uint64_t epoch, uint64_t sequence, const RankSet& members, bool expired) final {
    (void)group, (void)epoch, (void)sequence, (void)members, (void)expired;
  }
  void ReportGroupFailure(const GroupFailure& failure) final { (void)failure; }
  void Goodbye() final;

 protected:
  // Makes the segment of a node with this rank alone. The runtime owns it and outlives Goodbye. Errors: those of
  // CreateAndAttach.
  absl::StatusOr<std::unique_ptr<Segment>> MakeSegment(const Segment::Options& options);

 private:
  Segment* segment_ = nullptr;
};

}  // namespace cohort::runtime
