// Which way private messages travel between two ranks: copied through memory that both share, the same with stores that
// bypass the writer's cache, or read by their receiver with process_vm_readv. Each is the quickest somewhere. Within a
// near level 3 cache copies take half the time of reads. Between far CPUs each line of a copy changes its owner twice:
// copies take four times as long as reads, and past the cache no longer than those (README.md has figures). That
// depends on the processor, the hypervisor and where it has put the CPUs. So the times of all ways decide, as they were
// lately for this pair.
//
// The receiver times every long message and one of many short ones (MessageTime) and tells the sender by words beside
// its acknowledgements. The sender adds the time of copying the first part in. Now and then it sends a few messages
// another way, the more rarely the slower that is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cohort::comm::shm {

enum class Way : uint8_t { kCopied = 0, kPastCache = 1, kRead = 2 };
inline constexpr size_t kWays = 3;

// From here on copies may go past the cache. Shorter messages lie in few lines.
inline constexpr size_t kPastCacheFrom = 1024;

// Messages below 6 KiB, up to 32 KiB, below 512 KiB, and longer ones, whose parts are 256 KiB long.
inline constexpr size_t kWaySizes = 4;
constexpr size_t WaySizeOf(size_t bytes) {
  return bytes < (6 << 10) ? 0 : bytes <= (32 << 10) ? 1 : bytes < (512 << 10) ? 2 : 3;
}
// The length of a run of the shortest ones, which go the same way. One of them is timed, which costs 60 ns.
inline constexpr uint32_t kShortRun = 16;

// Nanoseconds per KiB of one way at one size: the second least of the last five messages (of three: the least). Three
// of five may have been interrupted, or be the first ones that go this way again. Those find caches cold and take up to
// three times as long as the next ones. A way that becomes slower shows it after four messages, a quicker one after
// two.
class WayTime {
 public:
  static constexpr uint32_t kMost = 1023;

  void Note(size_t bytes, uint64_t ns);
  // 1 to kMost; 0: fewer than three are known.
  uint32_t ns_per_kib() const { return usual_; }

 private:
  std::array<uint32_t, 5> latest_{};
  uint32_t noted_ = 0;
  uint32_t usual_ = 0;
};

// The time of one message at its receiver, which gets it in parts.
//
// A read takes the time inside its parts. Between them the receiver may copy in what it sends itself. That is no part
// of the read, and goes away when the other direction is read too.
//
// Copies take the time from the first part to the end. It includes the receiver's own copying in, which a mutual
// exchange by copies has to do as well. It leaves out reads of either rank between two parts: those belong to the way
// of the other direction. Copying out can be hidden behind such reads, so that much of them counts.
class MessageTime {
 public:
  // `reading_ns`: the time that this rank has spent on reads so far.
  void Begin(uint64_t now_ns, uint64_t reading_ns) {
    began_ns_ = now_ns;
    reading_before_ns_ = reading_ns;
    parts_ns_ = 0;
  }
  // A part was copied out or read in `ns`.
  void AddPart(uint64_t ns) { parts_ns_ += ns; }
  uint64_t OfRead() const { return parts_ns_; }
  // `sender_reading_ns`: the time that the sender has spent on reads since it copied the first part in.
  uint64_t OfCopies(uint64_t now_ns, uint64_t reading_ns, uint64_t sender_reading_ns) const;

 private:
  uint64_t began_ns_ = 0;
  uint64_t reading_before_ns_ = 0;
  uint64_t parts_ns_ = 0;
};

// The times of all ways and sizes, at one side.
using WayTimes = std::array<std::array<WayTime, kWaySizes>, kWays>;

// The times as a receiver tells them to a sender. Any words are good.
struct ToldTimes {
  std::array<uint64_t, 2> words{};

  // Whether the receiver can read the sender's private memory at all.
  bool can_read() const { return (words[0] & 1) != 0; }
  // In ns per KiB; 0: not known.
  uint32_t Time(Way way, size_t size) const {
    const size_t index = static_cast<size_t>(way) * kWaySizes + size;
    return static_cast<uint32_t>(words[index / kPerWord] >> (1 + 10 * (index % kPerWord))) & WayTime::kMost;
  }

  static constexpr size_t kPerWord = 6;
};

// A receiver's view of one sender.
class ReceivedTimes {
 public:
  void Note(Way way, size_t bytes, uint64_t ns) { times_[static_cast<size_t>(way)][WaySizeOf(bytes)].Note(bytes, ns); }
  ToldTimes Told(bool can_read) const;

 private:
  WayTimes times_;
};

// A sender's choice for one receiver.
class WayChooser {
 public:
  // `first`: the way of the first messages.
  explicit WayChooser(Way first) : first_(first) {}
  // The way of the next message, or run of short ones, to a receiver that has told `told`. `may_read`: kRead is one of
  // the ways.
  Way Choose(size_t bytes, const ToldTimes& told, bool may_read);
  // The first part of a message of `bytes` bytes was copied in.
  void NoteCopiedIn(Way way, size_t bytes, uint64_t ns) {
    copied_in_[static_cast<size_t>(way)][WaySizeOf(bytes)].Note(bytes, ns);
  }

 private:
  // After so many messages (runs of short ones), times the ratio of the two ways, another way is tried by kTries
  // messages. Costs at most 3 % of the time in the long run, whatever the ratio. The first time it is sooner, then
  // twice as late each time: the first messages touch memory that nobody has touched, which may make any way look slow.
  static constexpr uint32_t kTryEvery = 100;
  static constexpr uint32_t kFirstTryAfter = 12;
  static constexpr uint32_t kTries = 3;

  struct Trial {
    uint32_t every = kFirstTryAfter;
    uint32_t since = 0;  // messages since the last one
    uint32_t number = 0;
  };

  Way first_;
  WayTimes copied_in_;
  std::array<std::array<Trial, kWaySizes>, 2> trials_{};  // by may_read: a link and a fan-out may share a chooser
};

}  // namespace cohort::comm::shm
