// The latest calls that NCCL has announced, found by the handles that it keeps of them. A handle is a number and no
// address: one that was used twice, is too old, or was never given finds nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cohort/comm/nccl/profiler/announced_call.h"

namespace cohort::comm::nccl_profiler {

//   announced ── a kernel begins ──► running ── all its kernels have ended ──► ended
//       └────────── launched, and no kernel will be announced ──────────────────┘
enum class CallLife : uint8_t { kAnnounced, kRunning, kEnded };

struct CallSlot {
  uint64_t number = 0;  // from 1; 0: never used
  uint64_t communicator = 0;
  AnnouncedCall call;
  CallLife life = CallLife::kAnnounced;
  uint64_t sequence = 0;
  uint64_t ticket = 0;  // of its record, from kRunning on
  uint64_t since_ns = 0;
  uint64_t begun = 0;  // a bit for each channel whose kernel has begun, and for each that goes on
  uint64_t open = 0;
};

// A call, or the kernel of a call on a channel.
struct CallHandle {
  uint64_t number = 0;
  int channel = -1;  // -1: the call itself

  static constexpr int kChannels = 64;  // as many as NCCL has

  static CallHandle Of(const void* handle) {
    const auto bits = reinterpret_cast<uintptr_t>(handle);
    return {bits / kTags, static_cast<int>(bits % kTags) - 1};
  }
  void* pointer() const {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(number * kTags + static_cast<uint64_t>(channel + 1)));
  }

 private:
  static constexpr uint64_t kTags = 128;
};
static_assert(sizeof(void*) == 8);

class CallSlots {
 public:
  // Programs enqueue calls before the device comes to them, but CUDA lets no more than about a thousand wait.
  static constexpr size_t kCalls = 4096;

  CallSlots() : slots_(kCalls) {}

  // A new slot. It takes the place of the oldest.
  CallSlot& Add() {
    CallSlot& slot = slots_[++latest_ % kCalls];
    slot = {};
    slot.number = latest_;
    return slot;
  }
  // Null where there is none.
  CallSlot* Find(uint64_t number) {
    CallSlot& slot = slots_[number % kCalls];
    return number != 0 && slot.number == number ? &slot : nullptr;
  }

 private:
  std::vector<CallSlot> slots_;
  uint64_t latest_ = 0;
};

}  // namespace cohort::comm::nccl_profiler
