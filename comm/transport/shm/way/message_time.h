// The time of one message of a stream, and which messages are timed.
#pragma once

#include <cstdint>

#include "cohort/comm/transport/shm/way/way.h"

namespace cohort::comm::shm {

// The time of one message at its receiver, which gets it in parts.
//
// A read takes the time inside its parts. Between them the receiver may copy in what it sends itself. That is no part
// of the read, and goes away when the other direction is read too.
//
// Copies take the time from the first part to the end. It includes the receiver's own copying in, which a mutual
// exchange by copies has to do as well. It leaves out reads of either rank between two parts: those belong to the way
// of the other direction. Copying out can be hidden behind such reads, so that much of them counts.
class MessageTime {
 public:
  // `reading_ns`: the time that this rank has spent on reads so far.
  void Begin(uint64_t now_ns, uint64_t reading_ns) {
    began_ns_ = now_ns;
    reading_before_ns_ = reading_ns;
    parts_ns_ = 0;
  }
  // A part was copied out or read in `ns`.
  void AddPart(uint64_t ns) { parts_ns_ += ns; }
  uint64_t InParts() const { return parts_ns_; }  // all that a read takes
  // `sender_reading_ns`: the time that the sender has spent on reads since it copied the first part in.
  uint64_t OfCopies(uint64_t now_ns, uint64_t reading_ns, uint64_t sender_reading_ns) const;

 private:
  uint64_t began_ns_ = 0;
  uint64_t reading_before_ns_ = 0;
  uint64_t parts_ns_ = 0;
};

// Which copies of 6 to 32 KiB are timed: the first three that go another way than the one before, and one in four. A
// time costs 60 ns on either side, and past the cache the wait for the stores, 200 ns between far CPUs.
class CopySample {
 public:
  bool Next(Way way) {
    if (way != way_) since_ = 0;
    way_ = way;
    return since_++ < 3 || since_ % 4 == 0;
  }

 private:
  Way way_ = Way::kRead;
  uint32_t since_ = 0;  // messages of this way
};

}  // namespace cohort::comm::shm
