// Follows the ring of a rank's black box: each call once, when it has ended. The rank writes on meanwhile, and what it
// overwrites before it was read is counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::launcher {

class RingReader {
 public:
  static constexpr uint64_t kOpenForNs = 500'000'000;
  static constexpr uint64_t kTellAgainNs = 20'000'000'000;  // so that a trace of the latest minute alone holds it

  using OnCall = std::function<void(const runtime::CallRecord& call, const runtime::CallService& service)>;

  // Reads the calls after the one with ticket `after`.
  explicit RingReader(uint64_t after) : read_(after) {}

  // Takes the calls that have ended, and looks at `most` new ones. Returns the number of calls that were missed since.
  uint64_t Read(const runtime::BlackBoxReader& box, size_t most, const OnCall& on_call);
  // Gives the calls that Read has found not to have ended, once they have taken `kOpenForNs`. Gives each again when
  // that time has doubled, and after `kTellAgainNs` at the latest. Read or Finish gives it too when it has ended.
  void TellOpen(const runtime::BlackBoxReader& box, uint64_t now_ns, const OnCall& on_call);
  // The same as Read for the last time: the rank writes no more. Calls that have not ended are taken too (state
  // kStarted). One that the rank was writing when it died is missed.
  uint64_t Finish(const runtime::BlackBoxReader& box, const OnCall& on_call);

 private:
  // A call that had not ended.
  struct Pending {
    uint64_t ticket = 0;
    uint64_t tell_at_ns = 0;  // TellOpen looks at it then
  };
  uint64_t read_;                 // the ticket of the last call that was looked at
  std::vector<Pending> pending_;  // by ticket; as many as the ring holds
};

}  // namespace cohort::launcher
