#include "cohort/comm/transport/shm/copy_ring.h"

#include <algorithm>

#include "cohort/comm/transport/shm/layout.h"
#include "cohort/runtime/base/check.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::shm {

absl::Status CopyRing::Provide(size_t bytes) {
  COHORT_CHECK(block_bytes_ == 0);
  COHORT_ASSIGN_OR_RETURN(area_, own_.AllocateArea(bytes));
  bytes_ = bytes;
  return absl::OkStatus();
}

std::optional<uint64_t> CopyRing::Place(size_t rest) {
  if (block_bytes_ == 0) {
    const uint64_t block = PaddedPartBytes(std::min<uint64_t>(rest, bytes_ / 4));
    const uint64_t at = head_ & (bytes_ - 1);
    const uint64_t start = at + block > bytes_ ? head_ + (bytes_ - at) : head_;
    if (start + block - tail_ > bytes_) return std::nullopt;
    head_ = start;
    block_bytes_ = block;
    block_used_ = 0;
  }
  return bytes_ - (head_ & (bytes_ - 1)) - block_bytes_ + block_used_;
}

void CopyRing::Take(size_t bytes, uint64_t message) {
  block_used_ += PaddedPartBytes(bytes);
  COHORT_CHECK(block_used_ <= block_bytes_);
  if (block_used_ == block_bytes_) {
    head_ += block_bytes_;
    block_bytes_ = 0;
  }
  parts_[end_++ % parts_.size()] = {.message = message, .free_to = head_};
}

}  // namespace cohort::comm::shm
