#include "cohort/comm/transport/shm/copy_ring.h"

#include "cohort/comm/transport/shm/layout.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm::shm {

absl::Status CopyRing::Provide(size_t bytes) {
  COHORT_ASSIGN_OR_RETURN(area_, own_.AllocateArea(bytes));
  bytes_ = bytes;
  return absl::OkStatus();
}

std::optional<uint64_t> CopyRing::Place(size_t bytes) const {
  const uint64_t padded = PaddedPartBytes(bytes);
  const uint64_t at = head_ % bytes_;
  const uint64_t start = at + padded > bytes_ ? head_ + (bytes_ - at) : head_;
  if (start + padded - tail_ > bytes_) return std::nullopt;
  return start % bytes_;
}

void CopyRing::Take(uint64_t position, size_t bytes, uint64_t message) {
  const uint64_t at = head_ % bytes_;
  if (position != at) head_ += bytes_ - at;  // skipped the end
  head_ += PaddedPartBytes(bytes);
  parts_[end_++ % parts_.size()] = {.message = message, .head = head_};
}

}  // namespace cohort::comm::shm
