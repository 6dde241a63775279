// The ways of one stream's private messages: OutgoingWay at the writer chooses them, IncomingWay at the reader follows,
// and both take the times from which the next ones are chosen. README.md has the whole rule.
//
//   writer                                     reader
//   Next ─► the way of this message
//   Begin; each part: BeginPart, EndPart; End
//        ─────────────── parts ──────────────► Begin; each part: BeginPart, EndPart; End
//   Next ◄────── times, beside the acks ────── Told, where they have changed
//
// A message that is not timed costs a branch a part. By the engine's owner; no errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "cohort/comm/transport/shm/way/arrivals.h"
#include "cohort/comm/transport/shm/way/message_time.h"
#include "cohort/comm/transport/shm/way/rank_ways.h"
#include "cohort/comm/transport/shm/way/way.h"
#include "cohort/comm/transport/shm/way/way_chooser.h"

namespace cohort::comm::shm {

class OutgoingWay {
 public:
  // `ways` outlives it.
  explicit OutgoingWay(RankWays& ways) : ways_(ways) {}

  // The way of the next message, of at least one byte; once a message. `to_one`: the stream has one reader. `ask`:
  // returns the std::optional<WayQuestion> without `bytes` and `heard`, nothing while there is no reader to ask; it is
  // called only where the answer matters.
  template <typename Ask>
  Way Next(size_t bytes, bool to_one, Ask&& ask) {
    bytes_ = bytes;
    const size_t size = WaySizeOf(bytes);
    const std::optional<Way> heard = to_one ? arrivals_.Latest(size) : std::nullopt;
    meets_ = heard.has_value() && arrivals_.Meets(size);
    may_meet_ = to_one;
    timed_ = false;
    way_ = Way::kCopied;
    if (bytes < kPastCacheFrom) return way_;
    if (size == 0 && short_messages_++ % kShortRun != 0) return way_ = short_way_;
    std::optional<WayQuestion> question = ask();
    return question.has_value() ? Decide(*question, heard) : way_;
  }
  Way way() const { return way_; }  // of the latest message

  // Whether the reader copies one in at the same time, as far as is known.
  bool meets() const { return meets_; }

  // Around a message that is copied in; `parted`: it may have more than one part.
  void Begin(bool parted) {
    parted_ = parted && may_meet_;
    copied_bytes_ = 0;
    if (!parted_) return;
    arrivals_.BeginSending(bytes_);
    sending_since_ns_ = ways_.Now();
  }
  void End() {
    if (parted_) arrivals_.EndSending(bytes_, sending_since_ns_, ways_.Now());
  }
  // Around the copying in of a part of `bytes` bytes.
  uint64_t BeginPart() { return timed_ ? ways_.Now() : 0; }
  void EndPart(uint64_t began_ns, size_t bytes) {
    if (timed_) NotePart(began_ns, bytes);
    if (copied_bytes_ == 0) reading_before_ns_ = ways_.reading_ns();
    copied_bytes_ += bytes;
  }
  // The time that this rank has spent on reads since the first part.
  uint64_t reading_ns() const { return ways_.reading_ns() - reading_before_ns_; }

  // The messages that the only reader sends in the other direction: its IncomingWay notes them.
  Arrivals& arrivals() { return arrivals_; }

 private:
  Way Decide(WayQuestion& question, std::optional<Way> heard);
  void NotePart(uint64_t began_ns, size_t bytes);

  RankWays& ways_;
  Arrivals arrivals_;
  // The message under way.
  size_t bytes_ = 0;
  size_t copied_bytes_ = 0;
  Way way_ = Way::kCopied;
  bool timed_ = false;
  bool meets_ = false;
  bool may_meet_ = false;
  bool parted_ = false;
  size_t reader_ = 0;  // by local rank, if it is timed
  uint64_t copying_in_ns_ = 0;
  uint64_t sending_since_ns_ = 0;
  uint64_t reading_before_ns_ = 0;
  // Which messages are timed.
  Way short_way_ = Way::kCopied;  // of the run of short ones
  uint32_t short_messages_ = 0;
  CopySample sample_;
};

class IncomingWay {
 public:
  // `ways`: null where messages never lie in private memory, and nothing is timed. `sender`: its local rank.
  // `arrivals`: of the other direction's OutgoingWay, or null. All outlive it.
  IncomingWay(RankWays* ways, size_t sender, Arrivals* arrivals) : ways_(ways), sender_(sender), arrivals_(arrivals) {}

  // The first part of a message of `bytes` bytes was found.
  void Begin(Way way, size_t bytes);
  // Around the copying out, or reading, of a part.
  uint64_t BeginPart() { return timed_ ? ways_->Now() : 0; }
  void EndPart(uint64_t began_ns) {
    if (!timed_) return;
    const uint64_t took = ways_->Now() - began_ns;
    time_.AddPart(took);
    if (way_ == Way::kRead) ways_->AddReading(took);
  }
  // All is in place. `sender_reading_ns`: OutgoingWay::reading_ns of the latest part. Returns whether it was timed.
  bool End(uint64_t sender_reading_ns);
  // After that: whether the sender, which has been told `told`, should be told the present times.
  bool ShouldTell(const ToldTimes& told) const;
  ToldTimes Told(bool can_read) const { return ways_->From(sender_).Told(can_read); }

 private:
  RankWays* const ways_;
  const size_t sender_;
  Arrivals* const arrivals_;
  // The message under way.
  Way way_ = Way::kCopied;
  size_t bytes_ = 0;
  bool timed_ = false;
  MessageTime time_;
  // Which messages are timed.
  uint32_t short_messages_ = 0;
  CopySample sample_;
};

}  // namespace cohort::comm::shm
