// The ring of bytes through which one way of copying goes (kCopied and kPastCache have one each): parts are copied in
// by the writer, and out by all readers, in the order of their messages.
//
// Parts of one message ascend, in a block; blocks descend:
//
//   | ........ | 3a 3b 3c | 2a | 1a 1b 1c |        next: in front of 3a
//
// A reader's CPU that sees ascending lines fetches those behind them as well. Within a message that helps it. Behind
// the last part lies an older message, and not the room of the next one, whose lines the writer would then have to take
// away from the reader before it could write. Blocks have at most a quarter of the ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/transport/shm/endpoint.h"

namespace cohort::comm::shm {

class CopyRing {
 public:
  // The endpoint outlives the ring and frees its memory. At most `slots` messages are unconfirmed at any time.
  CopyRing(OwnEndpoint& own, uint64_t slots) : own_(own), parts_(slots) {}

  // 0: there is none yet.
  size_t bytes() const { return bytes_; }
  uint64_t offset() const { return area_.block.offset; }
  std::byte* At(uint64_t position) const { return area_.data + position; }

  // Gets memory of `bytes` bytes, a power of two, and leaves what there was to the parts in it. Not amid a message.
  // kResourceExhausted: there is none, and nothing has changed.
  absl::Status Provide(size_t bytes);
  // The place of the next part of a message of which `rest` bytes are not in the ring yet, or nothing until more is
  // confirmed. The same until Take.
  std::optional<uint64_t> Place(size_t rest);
  // That part is message number `message` of the stream and has `bytes` bytes: all that were left, or a power of two
  // from kPartBytes to a quarter of the ring, the same for all parts.
  void Take(size_t bytes, uint64_t message);
  // All readers are finished with the messages up to this number.
  void Confirmed(uint64_t message) {
    while (first_ != end_ && parts_[first_ % parts_.size()].message <= message) {
      tail_ = parts_[first_++ % parts_.size()].free_to;
    }
  }

 private:
  struct Part {
    uint64_t message;
    uint64_t free_to;  // the end of its block, if it is the last part there; else the beginning
  };

  OwnEndpoint& own_;
  Area area_;
  size_t bytes_ = 0;
  // Bytes used and given back since the beginning, in this memory and what was before it. head_ is the beginning of the
  // open block, where there is one.
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  size_t block_bytes_ = 0;  // of the open block; 0: there is none
  size_t block_used_ = 0;
  std::vector<Part> parts_;  // unconfirmed ones: from first_ to end_, modulo the size
  uint64_t first_ = 0;
  uint64_t end_ = 0;
};

}  // namespace cohort::comm::shm
