#include "cohort/comm/transport/shm/way/stream_way.h"

namespace cohort::comm::shm {

Way OutgoingWay::Decide(WayQuestion& question, std::optional<Way> heard) {
  question.bytes = bytes_;
  question.heard = heard;
  reader_ = question.reader;
  way_ = ways_.Choose(reader_, question);
  const size_t size = WaySizeOf(bytes_);
  if (size == 0) short_way_ = way_;
  timed_ = size != 1 || sample_.Next(way_);
  return way_;
}

void OutgoingWay::NotePart(uint64_t began_ns, size_t bytes) {
  const bool first = copied_bytes_ == 0;
  const uint64_t took = ways_.Now() - began_ns;
  WayChooser& chooser = ways_.To(reader_);
  if (first) chooser.NoteCopiedIn(way_, bytes_, took);
  copying_in_ns_ = first ? took : copying_in_ns_ + took;
  if (copied_bytes_ + bytes == bytes_) chooser.NoteSending(way_, bytes_, copying_in_ns_);
}

void IncomingWay::Begin(Way way, size_t bytes) {
  timed_ = false;
  if (ways_ == nullptr || bytes < kPastCacheFrom) return;
  way_ = way;
  bytes_ = bytes;
  if (arrivals_ != nullptr) arrivals_->Note(way, bytes, ways_->Now());
  switch (WaySizeOf(bytes)) {
    case 0:
      timed_ = short_messages_++ % kShortRun == 0;
      break;
    case 1:
      timed_ = sample_.Next(way) || way == Way::kRead;
      break;
    default:
      timed_ = true;
  }
  if (timed_) time_.Begin(ways_->Now(), ways_->reading_ns());
}

bool IncomingWay::End(uint64_t sender_reading_ns) {
  if (!std::exchange(timed_, false)) return false;
  const uint64_t took =
      way_ == Way::kRead ? time_.InParts() : time_.OfCopies(ways_->Now(), ways_->reading_ns(), sender_reading_ns);
  ways_->To(sender_).NoteReceiving(way_, bytes_, time_.InParts());
  ways_->From(sender_).Note(way_, bytes_, took);
  return true;
}

bool IncomingWay::ShouldTell(const ToldTimes& told) const {
  const size_t size = WaySizeOf(bytes_);
  return DifferMuch(told.Time(way_, size), ways_->From(sender_).Time(way_, size));
}

}  // namespace cohort::comm::shm
