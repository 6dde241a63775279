#include "cohort/launcher/agent/rank/output_rate.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cohort::launcher {
namespace {

size_t SizeOf(const v1::OutputLine& line) { return line.text().size() + 1; }

}  // namespace

OutputRate::OutputRate(uint64_t bytes_per_second, Clock::time_point now)
    : bytes_per_second_(static_cast<double>(bytes_per_second)), saved_(bytes_per_second_), at_(now) {}

void OutputRate::Save(Clock::time_point now) {
  const double seconds = std::max(0.0, std::chrono::duration<double>(now - at_).count());
  saved_ = std::min(bytes_per_second_, saved_ + seconds * bytes_per_second_);
  at_ = std::max(at_, now);
}

void OutputRate::Take(v1::OutputLine line, Clock::time_point now, const Sink& sink) {
  if (bytes_per_second_ == 0) return sink(line);
  ring_bytes_ += SizeOf(line);
  ring_.push_back(std::move(line));
  PassOn(now, sink);
  while (ring_bytes_ > kRingBytes && ring_.size() > 1) DropFront();
}

void OutputRate::DropFront() {
  const v1::OutputLine& line = ring_.front();
  Stream& stream = streams_[line.standard_error() ? 1 : 0];
  stream.dropped = true;
  stream.cut = line.goes_on();
  if (!line.goes_on()) ++stream.dropped_lines;
  ring_bytes_ -= SizeOf(line);
  ring_.pop_front();
}

bool OutputRate::IsRestOfDropped(const v1::OutputLine& line) const {
  return ring_.size() > 1 && streams_[line.standard_error() ? 1 : 0].cut && line.text().size() < kLongRest;
}

void OutputRate::PassOn(Clock::time_point now, const Sink& sink) {
  Save(now);
  while (!ring_.empty() && saved_ > 0) {
    if (IsRestOfDropped(ring_.front())) {
      DropFront();
      continue;
    }
    saved_ -= static_cast<double>(SizeOf(ring_.front()));
    Send(ring_.front(), sink);
    ring_bytes_ -= SizeOf(ring_.front());
    ring_.pop_front();
  }
}

void OutputRate::Finish(const Sink& sink) {
  while (!ring_.empty()) {
    if (IsRestOfDropped(ring_.front())) {
      DropFront();
      continue;
    }
    Send(ring_.front(), sink);
    ring_.pop_front();
  }
  ring_bytes_ = 0;
}

OutputRate::Clock::time_point OutputRate::next() const {
  const double missing = std::max(0.0, 1 - saved_);
  return at_ + std::chrono::ceil<Clock::duration>(std::chrono::duration<double>(missing / bytes_per_second_));
}

// The dropped lines lay before every line that waits.
void OutputRate::Send(const v1::OutputLine& line, const Sink& sink) {
  for (const bool is_error : {false, true}) {
    Stream& stream = streams_[is_error ? 1 : 0];
    if (!std::exchange(stream.dropped, false)) continue;
    v1::OutputLine notice = line;
    notice.set_standard_error(is_error);
    notice.set_goes_on(false);
    if (std::exchange(stream.goes_on, false)) {
      notice.clear_text();
      sink(notice);  // ends the line whose rest is dropped
    }
    const uint64_t dropped = std::max<uint64_t>(1, std::exchange(stream.dropped_lines, 0));
    notice.set_text("[dropped " + std::to_string(dropped) + (dropped == 1 ? " line]" : " lines]"));
    sink(notice);
  }
  streams_[line.standard_error() ? 1 : 0].goes_on = line.goes_on();
  streams_[line.standard_error() ? 1 : 0].cut = false;
  sink(line);
}

}  // namespace cohort::launcher
