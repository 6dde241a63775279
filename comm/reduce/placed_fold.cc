// Works in blocks that stay in the nearest cache: a block is folded into the cached outputs, or aside, and copied from
// there past the cache. That copy is compiled once for each instruction set, as kernels.cc.
#include "cohort/comm/reduce/placed_fold.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cohort/comm/reduce/instruction_set.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cohort/comm/reduce/placed_fold.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::comm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whole cache lines only: part of a line that bypasses the cache costs a read of the memory behind it.
void StreamBlock(uint8_t* to, const uint8_t* from, size_t bytes) {
  constexpr size_t kLine = 64;
  const hn::CappedTag<uint8_t, kLine> tag;
  const size_t vector = hn::Lanes(tag);
  const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(to) % kLine);
  std::memcpy(to, from, head);
  size_t i = head;
  for (; i + kLine <= bytes; i += kLine) {
    for (size_t j = 0; j < kLine; j += vector) hn::Stream(hn::LoadU(tag, from + i + j), tag, to + i + j);
  }
  std::memcpy(to + i, from + i, bytes - i);
}

}  // namespace cohort::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::comm {
namespace {

COHORT_VERSIONS(StreamBlock);

constexpr size_t kBlockBytes = 4096;

// The copy of one input, `bytes` at a time.
void Copy(const PlacedFoldCall& call, size_t at, size_t bytes, const void* from) {
  for (size_t j = 0; j < call.outs.size(); ++j) {
    auto* to = static_cast<uint8_t*>(call.outs[j]) + at;
    if (to == from) continue;
    if (j < call.cached) {
      std::memcpy(to, from, bytes);
    } else {
      COHORT_BEST_VERSION(StreamBlock)(to, static_cast<const uint8_t*>(from), bytes);
    }
  }
}

void CopyAll(const PlacedFoldCall& call) {
  const size_t total = call.count * call.element_bytes;
  const auto* from = static_cast<const std::byte*>(call.ins[0]);
  const size_t step = call.outs.size() == 1 ? total : kBlockBytes;
  for (size_t at = 0; at < total; at += step) Copy(call, at, std::min(step, total - at), from + at);
}

void FoldAll(const PlacedFoldCall& call) {
  if (call.cached == call.outs.size()) {
    call.kernel(call.outs.data(), call.cached, call.ins.data(), call.ins.size(), call.count, false);
    return;
  }
  alignas(64) std::byte aside[kBlockBytes + 64];
  // It begins at the outputs' offset in a line, so that both are aligned from the same element on.
  std::byte* const place = aside + reinterpret_cast<uintptr_t>(call.outs[0]) % 64;
  const size_t most = kBlockBytes / call.element_bytes;
  for (size_t at = 0; at < call.count; at += most) {
    const size_t count = std::min(most, call.count - at);
    const size_t bytes = count * call.element_bytes;
    void* only = place;
    void* const* outs = call.cached == 0 ? &only : call.outs.data();
    call.kernel(outs, std::max<size_t>(call.cached, 1), call.ins.data(), call.ins.size(), count, false);
    const auto* block = static_cast<const uint8_t*>(outs[0]);
    for (size_t j = call.cached; j < call.outs.size(); ++j) {
      COHORT_BEST_VERSION(StreamBlock)(static_cast<uint8_t*>(call.outs[j]), block, bytes);
    }
    for (const void*& in : call.ins) in = static_cast<const std::byte*>(in) + bytes;
    for (void*& out : call.outs) out = static_cast<std::byte*>(out) + bytes;
  }
}

}  // namespace

void PlacedFold(const PlacedFoldCall& call) {
  if (call.count == 0 || call.outs.empty()) return;
  if (call.ins.size() > 1) {
    FoldAll(call);
  } else {
    CopyAll(call);
  }
  if (call.cached < call.outs.size()) hwy::FlushStream();
}

}  // namespace cohort::comm
#endif  // HWY_ONCE
