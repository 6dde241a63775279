// Which way long private messages travel between two ranks: copied through memory that both share, or read by their
// receiver with process_vm_readv. Neither is always the quicker one. Within a near level 3 cache copies take half the
// time of reads; between far CPUs they take from two thirds to six times as long, which depends on the processor, the
// hypervisor and where it has put the CPUs. So the times of both ways decide, as they were lately for this pair.
//
// The receiver times every long message, from the moment when it finds its first part until the last one is in place.
// It tells the sender by a word beside its acknowledgements. The sender adds the time of copying the first part in, and
// now and then sends a few messages the other way, the more rarely the slower that is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cohort::comm::shm {

enum class Way : uint8_t { kCopied = 0, kRead = 1 };

inline constexpr size_t kWaySizes = 3;  // messages of up to 32 KiB, up to 512 KiB, and longer ones
constexpr size_t WaySizeOf(size_t bytes) { return bytes <= (32 << 10) ? 0 : bytes <= (512 << 10) ? 1 : 2; }

// Nanoseconds per KiB of one way at one size: the median of the last five messages, so that a few which were
// interrupted change nothing, and a change of place shows after three.
class WayTime {
 public:
  static constexpr uint32_t kMost = 1023;

  void Note(size_t bytes, uint64_t ns);
  // 1 to kMost; 0: fewer than three are known.
  uint32_t ns_per_kib() const { return median_; }

 private:
  std::array<uint32_t, 5> latest_{};
  uint32_t noted_ = 0;
  uint32_t median_ = 0;
};

// A receiver's view of one sender.
class ReceivedTimes {
 public:
  void Note(Way way, size_t bytes, uint64_t ns) { times_[static_cast<size_t>(way)][WaySizeOf(bytes)].Note(bytes, ns); }
  // All times in one word, with bit 0: whether the receiver can read the sender's private memory at all.
  uint64_t Told(bool can_read) const;
  // The time in such a word; 0: not known. Any word is good.
  static uint32_t TimeIn(uint64_t told, Way way, size_t size) {
    return static_cast<uint32_t>(told >> (1 + 10 * (static_cast<size_t>(way) * kWaySizes + size))) & WayTime::kMost;
  }

 private:
  std::array<std::array<WayTime, kWaySizes>, 2> times_;
};

// A sender's choice for one receiver.
class WayChooser {
 public:
  // `first`: the way of the first messages.
  explicit WayChooser(Way first) : first_(first) {}
  // The way of the next message, to a receiver that can read and that has told `told`.
  Way Choose(size_t bytes, uint64_t told);
  // The first part of a message of `bytes` bytes was copied in.
  void NoteCopiedIn(size_t bytes, uint64_t ns) { copied_in_[WaySizeOf(bytes)].Note(bytes, ns); }

 private:
  // After so many messages, times the ratio of the two ways, the other way is tried by kTries messages. Costs at most
  // 3 % of the time, whatever the ratio. The first time it is sooner, then twice as late each time: the first messages
  // touch memory that nobody has touched, which may make either way look slow.
  static constexpr uint32_t kTryEvery = 100;
  static constexpr uint32_t kFirstTryAfter = 12;
  static constexpr uint32_t kTries = 3;

  struct Trial {
    uint32_t every = kFirstTryAfter;
    uint32_t since = 0;  // messages since the last one
  };

  Way first_;
  std::array<WayTime, kWaySizes> copied_in_;
  std::array<Trial, kWaySizes> trials_{};
};

}  // namespace cohort::comm::shm
