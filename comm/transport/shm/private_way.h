// Which way private messages travel between two ranks: copied through memory that both share, the same with stores that
// bypass the writer's cache, or read by their receiver with process_vm_readv. Each is the quickest somewhere. Within a
// near level 3 cache copies take half the time of reads. Between far CPUs each line of a copy changes its owner twice:
// copies take four times as long as reads, and past the cache no longer than those (README.md has figures). That
// depends on the processor, the hypervisor and where it has put the CPUs. So the times of all ways decide, as they were
// lately for this pair.
//
// If two ranks send to each other, one of them chooses for both (WayChooser).
//
// The receiver times every long message and one of many short ones (MessageTime) and tells the sender by words beside
// its acknowledgements. The sender adds the time of copying the first part in. Now and then it sends a few messages
// another way, the more rarely the slower that is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "cohort/comm/transport/shm/way_trial.h"

namespace cohort::comm::shm {

// From here on copies may go past the cache. Shorter messages lie in few lines.
inline constexpr size_t kPastCacheFrom = 1024;

// Messages below 6 KiB, up to 32 KiB, below 512 KiB, below 2 MiB, below 8 MiB, and longer ones, which no cache holds.
// Reads of 4 MiB take three times as long for a byte as those of 512 KiB, so that these have times of their own.
inline constexpr size_t kWaySizes = 6;
constexpr size_t WaySizeOf(size_t bytes) {
  if (bytes < (512 << 10)) return bytes < (6 << 10) ? 0 : bytes <= (32 << 10) ? 1 : 2;
  return bytes < (2 << 20) ? 3 : bytes < (8 << 20) ? 4 : 5;
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
  uint64_t InParts() const { return parts_ns_; }  // all that a read takes
  // `sender_reading_ns`: the time that the sender has spent on reads since it copied the first part in.
  uint64_t OfCopies(uint64_t now_ns, uint64_t reading_ns, uint64_t sender_reading_ns) const;

 private:
  uint64_t began_ns_ = 0;
  uint64_t reading_before_ns_ = 0;
  uint64_t parts_ns_ = 0;
};

// Which copies of 6 to 32 KiB are timed: the first three that go another way than the one before, and one in four. A
// time costs 60 ns on either side, and past the cache the wait for the stores, 200 ns between far CPUs.
class CopySample {
 public:
  bool Next(Way way) {
    if (way != way_) since_ = 0;
    way_ = way;
    return since_++ < 3 || since_ % 4 == 0;
  }

 private:
  Way way_ = Way::kRead;
  uint32_t since_ = 0;  // messages of this way
};

// The times of all ways and sizes, at one side.
using WayTimes = std::array<std::array<WayTime, kWaySizes>, kWays>;

// The times as a receiver tells them to a sender. Any words are good.
struct ToldTimes {
  static constexpr size_t kWords = 3;
  std::array<uint64_t, kWords> words{};

  // Whether the receiver can read the sender's private memory at all.
  bool can_read() const { return (words[0] & 1) != 0; }
  // In ns per KiB; 0: not known.
  uint32_t Time(Way way, size_t size) const {
    const size_t index = static_cast<size_t>(way) * kWaySizes + size;
    return static_cast<uint32_t>(words[index / kPerWord] >> (1 + 10 * (index % kPerWord))) & WayTime::kMost;
  }

  static constexpr size_t kPerWord = 6;
};

// Whether a sender is worth telling: by an eighth, or one is not known.
constexpr bool DifferMuch(uint32_t told, uint32_t now) {
  const uint32_t more = told < now ? now : told, less = told < now ? told : now;
  return (more - less) * 8 > less;
}

// A receiver's view of one sender.
class ReceivedTimes {
 public:
  void Note(Way way, size_t bytes, uint64_t ns) { times_[static_cast<size_t>(way)][WaySizeOf(bytes)].Note(bytes, ns); }
  // In ns per KiB; 0: not known.
  uint32_t Time(Way way, size_t size) const { return times_[static_cast<size_t>(way)][size].ns_per_kib(); }
  ToldTimes Told(bool can_read) const;

 private:
  WayTimes times_;
};

// The latest messages of one stream, as the writer of the stream in the other direction has to know them.
class Arrivals {
 public:
  // A message of `bytes` bytes has begun to arrive.
  void Note(Way way, size_t bytes, uint64_t now_ns) {
    const size_t size = WaySizeOf(bytes);
    latest_[size] = {.way = way, .age = 0, .meets = now_ns <= soon_until_ns_[size]};
  }
  // The way of the latest message of this class, or nothing if more than kMostAge were sent since. Before each send.
  std::optional<Way> Latest(size_t size) {
    if (latest_[size].age == kMostAge) return std::nullopt;
    ++latest_[size].age;
    return latest_[size].way;
  }

  // Around the copying in of a message in the other direction.
  void BeginSending(size_t bytes) { soon_until_ns_[WaySizeOf(bytes)] = UINT64_MAX; }
  void EndSending(size_t bytes, uint64_t began_ns, uint64_t now_ns) {
    soon_until_ns_[WaySizeOf(bytes)] = now_ns + (now_ns - began_ns);
  }
  // Whether both ranks copy in at the same time: the latest message of this class began to arrive while one was copied
  // in for the other direction, or sooner after that than the copy took. Not so where one rank answers the other.
  bool Meets(size_t size) const { return latest_[size].meets; }

 private:
  static constexpr uint32_t kMostAge = 2;
  struct Arrival {
    Way way = Way::kCopied;
    uint32_t age = kMostAge;  // messages sent since
    bool meets = false;
  };
  std::array<Arrival, kWaySizes> latest_;
  std::array<uint64_t, kWaySizes> soon_until_ns_{};
};

// A message whose way is to be chosen.
struct WayQuestion {
  size_t bytes = 0;  // at least 1
  ToldTimes told;
  bool may_read = false;                   // kRead is one of the ways
  std::array<size_t, kWays> ring_bytes{};  // by way
  std::optional<Way> heard = {};           // Arrivals::Latest. Nothing where several receive
};

// A sender's choice for one receiver.
//
// If both send to each other, one way for both is better than two: while one copies and the other reads, each waits
// for the other (64 KiB each way between far CPUs: 12 us, both read 9, both copy past the cache 10). So one of the two,
// the one that leads, chooses for both, and the other takes the way of the latest message that it has received. The
// time of a way is then the leader's work on an exchange: copying in what it sends and out what it receives, or
// reading.
class WayChooser {
 public:
  // `first`: the way of the first messages.
  WayChooser(Way first, bool leads) : first_(first), leads_(leads) {}
  // The way of the next message, or run of short ones.
  Way Choose(const WayQuestion& question);
  // The work on a whole message of `bytes` bytes to the receiver, or from it.
  void NoteSending(Way way, size_t bytes, uint64_t ns) {
    sending_[static_cast<size_t>(way)][WaySizeOf(bytes)].Note(bytes, ns);
  }
  void NoteReceiving(Way way, size_t bytes, uint64_t ns) {
    receiving_[static_cast<size_t>(way)][WaySizeOf(bytes)].Note(bytes, ns);
  }
  // The first part of a message of `bytes` bytes was copied in.
  void NoteCopiedIn(Way way, size_t bytes, uint64_t ns) {
    copied_in_[static_cast<size_t>(way)][WaySizeOf(bytes)].Note(bytes, ns);
  }

 private:
  // The other side need not follow (it may not be able to read): no way is tried more often for its first three times.
  static constexpr uint32_t kFirstTries = 8;

  // In ns per KiB; 0: not known.
  uint32_t TimeOf(Way way, size_t size, const ToldTimes& told) const;
  uint32_t WorkOf(Way way, size_t size) const;

  Way first_;
  bool leads_;
  WayTimes copied_in_;
  WayTimes sending_, receiving_;
  std::array<std::array<uint32_t, kWaySizes>, kWays> first_tries_{};  // of exchanges
  // By may_read, since a link and a fan-out may share a chooser, and by whether both send.
  std::array<std::array<std::array<WayTrial, kWaySizes>, 2>, 2> trials_{};
};

}  // namespace cohort::comm::shm
