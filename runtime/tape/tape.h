// The tape of a runtime: one that is written, or one that is replayed.
#pragma once

#include <memory>

#include "cohort/runtime/segment/segment.h"
#include "cohort/runtime/tape/tape_player.h"
#include "cohort/runtime/tape/tape_writer.h"

namespace cohort::runtime {

// One of both is there. A bootstrap keeps it; the rest of the process finds it by the runtime's segment.
class Tape {
 public:
  Tape(const Segment* segment, std::unique_ptr<TapeWriter> writer);
  Tape(const Segment* segment, std::unique_ptr<TapePlayer> player);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Returns the tape of the runtime that has this segment, or null. Cheap where this process has none. Any thread may
  // call; the tape lives as long as the runtime.
  static Tape* Of(const Segment& segment);

  TapeWriter* writer() const { return writer_.get(); }
  TapePlayer* player() const { return player_.get(); }

 private:
  const Segment* const segment_;
  const std::unique_ptr<TapeWriter> writer_;
  const std::unique_ptr<TapePlayer> player_;
};

// Whether no peer is there: calls get what a tape holds.
inline bool Replays(const Segment& segment) {
  const Tape* const tape = Tape::Of(segment);
  return tape != nullptr && tape->player() != nullptr;
}

}  // namespace cohort::runtime
