// The ring of bytes through which one way of copying goes (kCopied and kPastCache have one each): parts are copied in
// by the writer, and out by all readers, in the order of their messages.
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

  // Gets memory of `bytes` bytes, a power of two, and leaves what there was to the parts in it. kResourceExhausted:
  // there is none, and nothing has changed.
  absl::Status Provide(size_t bytes);
  // The place of a part of `bytes` bytes, or nothing until more is confirmed.
  std::optional<uint64_t> Place(size_t bytes) const;
  // Message number `message` is a part of `bytes` bytes at `position`, which Place has returned.
  void Take(uint64_t position, size_t bytes, uint64_t message);
  // All readers are finished with the messages up to this number.
  void Confirmed(uint64_t message) {
    while (first_ != end_ && parts_[first_ % parts_.size()].message <= message) {
      tail_ = parts_[first_++ % parts_.size()].head;
    }
  }

 private:
  struct Part {
    uint64_t message;
    uint64_t head;  // behind it
  };

  OwnEndpoint& own_;
  Area area_;
  size_t bytes_ = 0;
  // Bytes used and given back since the beginning, in this memory and what was before it.
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  std::vector<Part> parts_;  // unconfirmed ones: from first_ to end_, modulo the size
  uint64_t first_ = 0;
  uint64_t end_ = 0;
};

}  // namespace cohort::comm::shm
