// The node segment: one memfd per node and job epoch. The agent makes it, or the first local rank if there is no agent.
// It is sealed against shrinking and has no name, so that nothing is left behind when processes are killed.
//
//   +--------+----------------+----------------+-- ... --+---------------+---------------+-- ...
//   | header | rank control 0 | black box 0    |         | arena 0       | arena 1       |
//   |        | + directory 0  |                |         | (sparse)      | (sparse)      |
//   +--------+----------------+----------------+-- ... --+---------------+---------------+-- ...
//
// Every range has one owner. Rank r writes its control block's owner fields, its directory, its black box and its
// arena. The agent writes the header and the "events" words. Arenas are huge and sparse. Their owner allocates blocks
// with fallocate, so that full memory is an error and never a SIGBUS. It tells peers the offsets, mostly through its
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

// The words by which others wake a rank. They are aligned to cache lines: the parked word is read after every publish.
struct alignas(128) RankControl {
  // The number of the rank's threads that sleep, or are about to, until `wake` changes. The rank writes it.
  std::atomic<uint32_t> parked;
  // Futex word. A process that wants the rank's attention and sees `parked` set increments it and wakes the rank.
  std::atomic<uint32_t> wake;
  // The agent increments it whenever it has sent the rank a message. The rank then reads its agent socket.
  alignas(64) std::atomic<uint32_t> events;
  std::atomic<int32_t> pid;
  // 0 absent, 1 attached (by Attach), 2 finalised, 3 lost. The agent sets 3 before it reports the loss to anyone.
  std::atomic<uint32_t> state;
  // The wait of the rank, for those who look for ranks that wait for each other: see wait_state.h. The engine's owner
  // writes it, when the wait has come to sleeping.
  alignas(64) std::atomic<uint64_t> wait_number;  // odd while it waits; every wait and every movement has a new number
  std::atomic<uint64_t> first_awaited;            // tickets of the black box: the wait is for all of these calls
  std::atomic<uint64_t> last_awaited;
  std::atomic<uint64_t> wait_bound;  // 1: only the calls' end ends this wait, and the rank calls nothing meanwhile
  std::atomic<uint64_t> wait_looks;  // times that the rank has looked at everything since it began to wait
};

// A block of segment memory. The offset counts from the segment's start.
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
    // Whether memory for the fixed part, 0.7 MiB a rank, is taken at once. Otherwise only control words have memory,
    // and ReserveFixedPart must succeed before anybody gets the descriptor or reads anything else.
    bool reserve_fixed_part = true;
  };
  // Makes a new segment. kResourceExhausted: there is no memory for the fixed part.
  static absl::StatusOr<std::unique_ptr<Segment>> Create(const Options& options);
  enum class Role {
    kRuntime,   // the rank's runtime: RankControl::state becomes 1
    kRecorder,  // writes the rank's black box as a guest (BlackBoxMemory::owner), and lets the state be
  };
  // Maps the segment behind `fd` and takes `fd` over. `local_rank` is the caller's own. It is -1 for an agent, which
  // only reads black boxes and writes control words. kInvalidArgument: `fd` is no segment of this version.
  // kFailedPrecondition: the runtime of `local_rank` has attached already, or its recorder hangs in a record.
  static absl::StatusOr<std::unique_ptr<Segment>> Attach(int fd, int local_rank, Role role = Role::kRuntime);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // See Options::reserve_fixed_part. Does nothing the second time. kResourceExhausted: there is no memory.
  absl::Status ReserveFixedPart();

  int fd() const;
  int local_ranks() const;
  int local_rank() const;
  uint64_t epoch() const;
  // The number of CPUs that the node's ranks share, as the segment's maker saw it. It is at least 1, and at least
  // local_ranks() if each rank has a CPU to itself. All ranks get the same figure, whatever CPUs each is bound to.
  int cpus() const;

  RankControl& control(int local_rank);
  // The notices that a rank gives its local peers in place of an agent: see notice_board.h.
  NoticeMemory* notices(int local_rank);

  // Wakes `local_rank` if it sleeps. Call it after publishing with release or stronger order. It contains the full
  // fence that makes "publish, then look at parked" safe. It costs a few ns when nobody sleeps.
  void Wake(int local_rank);

  // --- the caller's own arena: any thread of the owner may call; it is locked inside ---

  // Allocates and touches `bytes` of zeroed memory, mapped here. Sizes of 64 KiB and more are rounded up to pages,
  // smaller ones to 128 B. `alignment` is a power of two, at most 4096. kResourceExhausted names what was full.
  absl::StatusOr<SegmentBlock> Allocate(uint64_t bytes, uint64_t alignment = 128);
  // Gives the block and its pages back. Peers must have stopped using it.
  void Free(SegmentBlock block);

  // --- addresses ---

  // The address of `block` (anyone's) in this process. The block is mapped first if need be. kInvalidArgument: it is
  // out of range. Mappings are kept until the segment is destroyed. The call is thread-safe, and cheap the second time.
  absl::StatusOr<void*> Map(SegmentBlock block);
  // As Map, for a block that its owner has allocated lately: if another one lay there before, its pages went away with
  // that, and each would cost a page fault. Not cheap the second time. kInvalidArgument also if part of it is not
  // allocated.
  absl::StatusOr<void*> MapAfresh(SegmentBlock block);
  // As Map, for a block that a peer has named and that is not mapped here yet. kInvalidArgument also if part of it is
  // not allocated: touching that would take memory, or raise SIGBUS if there is none. *around becomes the mapped range
  // that holds the block. Blocks inside it need no further call.
  absl::StatusOr<void*> MapNamed(SegmentBlock block, SegmentBlock* around);
  // The address of an offset in this process, mapped or not.
  void* AddressOf(uint64_t offset) const;
  // The segment offset of `pointer` if it lies in mapped segment memory with at least `bytes` behind it, or nothing.
  std::optional<uint64_t> OffsetOf(const void* pointer, uint64_t bytes) const;

  // --- directories: small per-rank tables from 64-bit keys to blocks, with a single writer and wait-free readers ---

  // Adds `key` (not 0, not present) to the caller's directory. kResourceExhausted: its 16,384 entries are used.
  absl::Status Publish(uint64_t key, SegmentBlock block);
  void Unpublish(uint64_t key);
  std::optional<SegmentBlock> LookUp(int local_rank, uint64_t key) const;

  // --- black boxes ---
  BlackBoxWriter& black_box();  // the caller's own; CHECK-fails for an agent and for a recorder
  BlackBoxReader black_box_of(int local_rank) const;

 private:
  Segment();
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace cohort::runtime
