// A standby's side of the log: takes what the host sends, acknowledges it, and carries out what all who may take over
// have. See replicated_rendezvous.h.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "cohort/v1/rendezvous.pb.h"
#include "launcher/control/rendezvous.h"
#include "launcher/control/rendezvous_copy.h"

namespace cohort::launcher {

class StandbyCopy {
 public:
  // A page of the log has come. The acknowledgement; nothing for a page of a host whose term is over, or with a gap.
  std::optional<v1::LogAck> OnPage(const v1::LogPage& page, TimePoint now);

  // The number of the latest entry that was carried out. A host of a later term begins after it: what only the host
  // before knew to be with all is not sure to be.
  uint64_t applied() const { return copy_.applied(); }

 private:
  friend class ReplicatedRendezvous;  // takes over from it

  uint64_t term_ = 0;
  RendezvousCopy copy_;
  std::deque<v1::LogEntry> entries_;  // up to end_: not yet carried out, or by this copy but not by every other
  uint64_t end_ = 0;                  // the number of the latest entry that is here
  TimePoint arrived_;                 // when it came
};

}  // namespace cohort::launcher
