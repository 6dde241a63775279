// The node segment: one memfd per node and job epoch, made by the agent (or by the first local rank where there is no
// agent), sealed against shrinking, nameless, so that nothing is left behind whoever is killed.
//
//   +--------+----------------+----------------+-- ... --+---------------+---------------+-- ...
//   | header | rank control 0 | black box 0    |         | arena 0       | arena 1       |
//   |        | + directory 0  |                |         | (sparse)      | (sparse)      |
//   +--------+----------------+----------------+-- ... --+---------------+---------------+-- ...
//
// Every range has one owner: rank r writes its control block's owner fields, its directory, its black box and its
// arena; the agent writes the header and the "events" words. Arenas are huge and sparse; their owner allocates blocks
// (fallocate, so a full memory is an error and never a SIGBUS) and tells peers the offsets, mostly through its
// directory. Peers map only the blocks that they use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/segment/call_record.h"

namespace cohort::runtime {

inline constexpr int kMaxLocalRanks = 1024;

// The words by which others wake a rank. Cache-line sized and aligned: the parked word is read after every publish.
struct alignas(128) RankControl {
  // How many of the rank's threads sleep, or are about to, until `wake` changes. Written by the rank.
  std::atomic<uint32_t> parked;
  // Futex word. Whoever wants the rank's attention and sees `parked` set increments it and wakes.
  std::atomic<uint32_t> wake;
  // Incremented by the agent whenever it has sent the rank a message: the rank then reads its agent socket.
  alignas(64) std::atomic<uint32_t> events;
  std::atomic<int32_t> pid;
  // 0 absent, 1 attached (by Attach), 2 finalised, 3 lost (set by the agent, before anyone is told).
  std::atomic<uint32_t> state;
};

// A block of segment memory: offset from the segment's start.
struct SegmentBlock {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class BlackBoxReader;
class BlackBoxWriter;
struct NoticeMemory;

class Segment {
 public:
  struct Options {
    int local_ranks = 1;
    uint64_t epoch = 1;
    std::string job_id = {};
    std::string node = {};  // its name, for people who read the segment
  };
  // Makes a new segment. kResourceExhausted when there is no memory for the fixed part.
  static absl::StatusOr<std::unique_ptr<Segment>> Create(const Options& options);
  // Maps the segment behind `fd` (taken over). `local_rank` is the caller's own, or -1 for an agent, which only reads
  // black boxes and writes control words. kInvalidArgument when fd is no segment of this version;
  // kFailedPrecondition when `local_rank` has already attached.
  static absl::StatusOr<std::unique_ptr<Segment>> Attach(int fd, int local_rank);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int fd() const;
  int local_ranks() const;
  int local_rank() const;
  uint64_t epoch() const;
  // CPUs that the node's ranks share, as its maker saw it: at least 1, and at least local_ranks() where each has one to
  // itself. The same figure for all of them, whatever CPUs each is bound to.
  int cpus() const;

  RankControl& control(int local_rank);
  // Where a rank tells its local peers what an agent would tell them: see notice_board.h.
  NoticeMemory* notices(int local_rank);

  // Wakes `local_rank` if it sleeps. Call after publishing with release or stronger order: contains the full fence
  // that makes "publish, then look at parked" safe. Costs a few ns when nobody sleeps.
  void Wake(int local_rank);

  // --- the caller's own arena (any thread of the owner; internally locked) ---

  // Allocates and touches `bytes` (rounded up to pages when >= 64 KiB, else to 128 B) of zeroed memory, mapped here.
  // kResourceExhausted names what was full. alignment: a power of two, at most 4096.
  absl::StatusOr<SegmentBlock> Allocate(uint64_t bytes, uint64_t alignment = 128);
  // Gives the block back, pages too. Peers must have stopped using it.
  void Free(SegmentBlock block);

  // --- addresses ---

  // Where `block` (anyone's) lies in this process, mapping it first if need be. kInvalidArgument when out of range.
  // Mappings are kept until the segment is destroyed; the call is thread-safe and cheap the second time.
  absl::StatusOr<void*> Map(SegmentBlock block);
  // The same for a block that a peer has named and that has not been mapped here yet: kInvalidArgument also where some
  // of it is not allocated (touching that would take memory, and be a SIGBUS where there is none). *around becomes the
  // mapped range that holds the block: for blocks inside it no further call is needed.
  absl::StatusOr<void*> MapNamed(SegmentBlock block, SegmentBlock* around);
  // Where an offset lies in this process, mapped or not.
  void* AddressOf(uint64_t offset) const;
  // The segment offset of a pointer that lies in mapped segment memory with at least `bytes` behind it, or nothing.
  std::optional<uint64_t> OffsetOf(const void* pointer, uint64_t bytes) const;

  // --- directories: small per-rank tables from 64-bit keys to blocks; single writer, wait-free readers ---

  // Adds key (not 0, not present) to the caller's directory. kResourceExhausted when its 16,384 entries are used.
  absl::Status Publish(uint64_t key, SegmentBlock block);
  void Unpublish(uint64_t key);
  std::optional<SegmentBlock> LookUp(int local_rank, uint64_t key) const;

  // --- black boxes ---
  BlackBoxWriter& black_box();  // the caller's own; CHECK-fails for an agent
  BlackBoxReader black_box_of(int local_rank) const;

 private:
  Segment();
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace cohort::runtime
