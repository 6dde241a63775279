// A standby's side of the log: takes what the host sends, acknowledges it, and carries out what all who may take over
// have. See replicated_rendezvous.h.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/control/standby/rendezvous_copy.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// The first identifier of a connection to the host of `term`, so that they differ from those of the hosts before.
constexpr ConnectionId FirstConnection(uint64_t term) { return ((term - 1) << 32) + 1; }

class StandbyCopy {
 public:
  // A page of the log has come. The acknowledgement; nothing for a page of a host whose term is over, or with a gap,
  // nor for one that no host in its senses sends: a second start, a plan that CheckPlan refuses, time that goes back,
  // connections that can't be. A host that gets none does without this copy in time.
  std::optional<v1::LogAck> OnPage(const v1::LogPage& page, TimePoint now);

  // The number of the latest entry that was carried out. A host of a later term begins after it: what only the host
  // before knew to be with all is not sure to be.
  uint64_t applied() const { return copy_.applied(); }

 private:
  bool IsNext(const v1::LogEntry& entry) const;
  void Take(const v1::LogEntry& entry);

  friend class ReplicatedRendezvous;  // takes over from it

  uint64_t term_ = 0;
  RendezvousCopy copy_;
  // Not yet carried out, or by this copy but not by every other. Those after end_ are of a host before: it may have
  // acted on them, so they are kept until this term's host has sent as many, for the case that it is lost before.
  std::deque<v1::LogEntry> entries_;
  uint64_t end_ = 0;   // the number of the latest entry that is as this term's host has it
  TimePoint arrived_;  // when the latest came
};

}  // namespace cohort::launcher
