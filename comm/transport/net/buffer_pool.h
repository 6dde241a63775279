// Memory for messages that nobody has asked for yet, and for pieces that are being reduced. Blocks are reused, so that
// a steady state allocates nothing. Used by the engine's owner only.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace cohort::comm::net {

class BufferPool {
 public:
  struct Block {
    std::unique_ptr<std::byte[]> data;  // aligned to 16 bytes
    int size_class = 0;
  };

  // At least `bytes`, uninitialised.
  Block Get(size_t bytes) {
    const int size_class = ClassOf(bytes);
    std::vector<Block>& free = free_[size_class];
    if (free.empty()) {
      return {std::make_unique_for_overwrite<std::byte[]>(kSmallest << size_class), size_class};
    }
    Block block = std::move(free.back());
    free.pop_back();
    kept_ -= kSmallest << size_class;
    return block;
  }
  void Put(Block block) {
    if (block.data == nullptr) return;
    const size_t bytes = kSmallest << block.size_class;
    if (kept_ + bytes > kMostKept) return;
    kept_ += bytes;
    free_[block.size_class].push_back(std::move(block));
  }

 private:
  static constexpr size_t kSmallest = 256;
  static constexpr size_t kMostKept = 16 << 20;
  static int ClassOf(size_t bytes) {
    return bytes <= kSmallest ? 0 : static_cast<int>(std::bit_width((bytes - 1) / kSmallest));
  }

  std::array<std::vector<Block>, 40> free_;
  size_t kept_ = 0;
};

}  // namespace cohort::comm::net
