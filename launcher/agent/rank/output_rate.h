// A limit on what one rank may print in a second, that never costs its last lines: what is above the limit waits in a
// ring of 64 KiB and follows at the permitted rate; where the ring is full its oldest lines are dropped and counted,
// and a line says how many at the place where they are missing. At the end of the rank the ring is passed on at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class OutputRate {
 public:
  using Clock = std::chrono::steady_clock;
  using Sink = std::function<void(const v1::OutputLine&)>;
  static constexpr size_t kRingBytes = 64u << 10;
  static constexpr size_t kLongRest = 4u << 10;

  // 0 bytes a second: no limit, and every line is passed on at once. The rate may be saved up for a second.
  OutputRate(uint64_t bytes_per_second, Clock::time_point now);

  // Passes the line, or the part of one, on, or lets it wait behind others. Newlines count as a byte.
  void Take(v1::OutputLine line, Clock::time_point now, const Sink& sink);
  // Passes on what may go by now. A line goes as soon as there is anything left of the rate, and what it took too much
  // is missing for the next.
  void PassOn(Clock::time_point now, const Sink& sink);
  // Passes on everything that waits.
  void Finish(const Sink& sink);
  // When PassOn has something to do; only while lines wait.
  Clock::time_point next() const;
  bool waiting() const { return !ring_.empty(); }

 private:
  void Save(Clock::time_point now);
  void Send(const v1::OutputLine& line, const Sink& sink);
  void DropFront();
  // The rest of a line whose beginning was dropped goes with it, unless it is long or the last that waits.
  bool IsRestOfDropped(const v1::OutputLine& line) const;

  const double bytes_per_second_;
  double saved_;  // bytes; negative after a line that was larger than what there was
  Clock::time_point at_;
  std::deque<v1::OutputLine> ring_;
  size_t ring_bytes_ = 0;
  struct Stream {
    uint64_t dropped_lines = 0;  // not told yet
    bool dropped = false;        // the same, also of a part of a line
    bool goes_on = false;        // the latest that was passed on was a part of a line
    bool cut = false;            // the latest that was dropped was a part of a line
  };
  Stream streams_[2];  // standard output and error
};

}  // namespace cohort::launcher
