// Bytes that were read from a connection beyond what was asked for: heads, and short messages, which come with their
// head by one system call.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

namespace cohort::comm::tcp {

template <size_t kBytes>
class FrameBuffer {
 public:
  static constexpr size_t capacity() { return kBytes; }
  const std::byte* data() const { return bytes_.data() + begin_; }
  size_t size() const { return end_ - begin_; }
  void Take(size_t bytes) { begin_ += bytes; }
  // The room behind the bytes that are here, for up to `most` in all. Moves them.
  std::span<std::byte> Room(size_t most) {
    if (begin_ > 0) {
      std::memmove(bytes_.data(), data(), size());
      end_ -= std::exchange(begin_, 0);
    }
    return std::span(bytes_).first(std::max(most, end_)).subspan(end_);
  }
  // `bytes` bytes have been put into the room.
  void Add(size_t bytes) { end_ += bytes; }

 private:
  size_t begin_ = 0;
  size_t end_ = 0;
  std::array<std::byte, kBytes> bytes_;
};

}  // namespace cohort::comm::tcp
