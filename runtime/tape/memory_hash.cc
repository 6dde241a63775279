#include "cohort/runtime/tape/memory_hash.h"

#include <algorithm>
#include <cstring>

#include "cohort/runtime/segment/call_record.h"

namespace cohort::runtime {
namespace {

uint64_t WordAt(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

// Both words, with keys of their own, into the lane.
uint64_t MixWords(uint64_t lane, const std::byte* data, size_t key) {
  return SignatureWords::Fold(WordAt(data) ^ lane, WordAt(data + 8) ^ SignatureWords::kKeys[key]) + lane;
}

}  // namespace

MemoryHash::MemoryHash() {
  for (size_t lane = 0; lane < kLanes; ++lane) lanes_[lane] = SignatureWords::kKeys[lane] + lane;
}

void MemoryHash::AddSteps(const std::byte* data, size_t steps) {
  // Lanes of their own: a multiplication does not wait for the one before it.
  std::array<uint64_t, kLanes> lanes = lanes_;
  for (; steps > 0; --steps, data += kStep) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = MixWords(lanes[lane], data + 16 * lane, lane + 1);
  }
  lanes_ = lanes;
}

void MemoryHash::Add(const void* data, size_t bytes) {
  if (bytes == 0) return;
  const auto* at = static_cast<const std::byte*>(data);
  total_ += bytes;
  if (waiting_ > 0) {
    const size_t taken = std::min(bytes, kStep - waiting_);
    std::memcpy(rest_.data() + waiting_, at, taken);
    waiting_ += taken;
    at += taken;
    bytes -= taken;
    if (waiting_ < kStep) return;
    AddSteps(rest_.data(), 1);
    waiting_ = 0;
  }
  AddSteps(at, bytes / kStep);
  waiting_ = bytes % kStep;
  if (waiting_ > 0) std::memcpy(rest_.data(), at + (bytes - waiting_), waiting_);
}

uint64_t MemoryHash::Finish() {
  if (waiting_ > 0) {
    std::fill(rest_.begin() + static_cast<std::ptrdiff_t>(waiting_), rest_.end(), std::byte{0});
    AddSteps(rest_.data(), 1);
  }
  uint64_t hash = total_ ^ SignatureWords::kKeys[5];
  for (const uint64_t lane : lanes_)
    hash = SignatureWords::Fold(hash ^ SignatureWords::kKeys[0], lane ^ SignatureWords::kKeys[4]) + lane;
  return hash;
}

uint64_t HashMemory(const void* data, size_t bytes) {
  MemoryHash hash;
  hash.Add(data, bytes);
  return hash.Finish();
}

}  // namespace cohort::runtime
