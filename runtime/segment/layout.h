// The segment's layout. Everything in it may be read by other processes at any time and lives at fixed offsets that
// follow from the number of local ranks alone.
//
//   [Header, 4 KiB] [RankPart 0] ... [RankPart n-1] [arena 0] ... [arena n-1]
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "cohort/runtime/ranges/range_ring.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_record.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {

inline constexpr uint64_t kSegmentMagic = 0x3147455354524843;  // "CHRTSEG1"
inline constexpr uint32_t kSegmentVersion = 12;
inline constexpr uint64_t kPage = 4096;

struct SegmentHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t local_ranks;
  uint64_t epoch;
  uint64_t arena_bytes;  // of each rank
  uint64_t cpus;
  char job_id[64];
  char node[64];  // its name, cut; for people
};

// One entry of a directory. `version` is odd while the owner changes the entry.
struct DirectoryEntry {
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> key;  // 0: never used; kDeletedKey: free again
  std::atomic<uint64_t> offset;
  std::atomic<uint64_t> bytes;
};
inline constexpr uint64_t kDeletedKey = ~uint64_t{0};
inline constexpr uint32_t kDirectoryEntries = 16384;  // a power of two

// A black box. Calls that differ only in number, tag and time share a description, which is written once. A record
// refers to it and is one line. It consists of words, so that a reader beside the writer is no data race.
//
// A record's `version` is 4 * ticket + {1 being written, 2 started, 3 being finished, 4 finished}; 0: never used.
struct alignas(64) BlackBoxSlot {
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> description;  // its id
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> wire_signature;
  std::atomic<uint64_t> start_ns;
  std::atomic<uint64_t> end_ns;
  std::atomic<uint64_t> state;  // and, in its upper half, CallRecord::result
  std::atomic<uint64_t> tag;
};
static_assert(sizeof(BlackBoxSlot) == 64);
// A whole CallRecord, of which the fields above don't count, and its CallService. `version` is 2 * generation, odd
// while it is written.
inline constexpr int kRecordWords = sizeof(CallRecord) / 8;
inline constexpr int kServiceWords = sizeof(CallService) / 8;
struct alignas(64) DescriptionSlot {
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> words[kRecordWords];
  std::atomic<uint64_t> service[kServiceWords];
};
// More than there are records: one that no record refers to is always found.
inline constexpr int kBlackBoxDescriptions = kBlackBoxRecords + 64;
// A set of the groups whose collectives were ever recorded, which outlives their records: a Bloom filter, of which a
// tenth is set after 3,400 groups.
inline constexpr size_t kGroupWords = 1024;
struct BlackBoxMemory {
  alignas(64) std::atomic<uint64_t> tickets;  // handed out so far
  std::atomic<uint64_t> owner;                // an OwnerWord: who writes it; a recorder is a guest
  std::atomic<uint64_t> groups[kGroupWords];
  BlackBoxSlot slots[kBlackBoxRecords];
  DescriptionSlot descriptions[kBlackBoxDescriptions];
};

// The notices of one rank to all local peers when there is no agent: see notice_board.h.
inline constexpr int kNotices = 16;
inline constexpr int kNoticeWords = 96;
struct NoticeSlot {
  std::atomic<uint64_t> version;  // 2 * ticket, odd while being written
  std::atomic<uint64_t> words[kNoticeWords];
};
// A group in which the rank waits. `version` is odd while it is being written; group 0: none.
inline constexpr int kWaitedGroups = 8;
struct WaitedGroupSlot {
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> group;
  std::atomic<uint64_t> members[kMaxLocalRanks / 64];  // a bit for each local rank
};
struct NoticeMemory {
  alignas(64) std::atomic<uint64_t> tickets;
  NoticeSlot slots[kNotices];
  std::atomic<uint64_t> waited_groups;  // written so far
  WaitedGroupSlot waited[kWaitedGroups];
};

struct alignas(kPage) RankPart {
  RankControl control;
  alignas(kPage) DirectoryEntry directory[kDirectoryEntries];
  alignas(kPage) BlackBoxMemory black_box;
  NoticeMemory notices;
  alignas(kPage) RangeMemory ranges;  // mapped once more by its rank
};
static_assert(sizeof(RankPart) % kPage == 0);
// If one of these fails, the layout has changed: kSegmentVersion changes with it.
static_assert(kSegmentVersion == 12 && sizeof(SegmentHeader) == 168 && sizeof(RankControl) == 256);
static_assert(sizeof(CallRecord) == 200 && sizeof(CallService) == 48 && sizeof(DescriptionSlot) == 256 &&
              sizeof(BlackBoxMemory) == 188480);
static_assert(sizeof(NoticeMemory) == 13632 && sizeof(RankPart) == 798720);
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);

// Takes the black box for the rank's runtime, and ends the wait that a recorder has shown. Waits for a record that a
// recorder is writing, for 2 s at most. kFailedPrecondition: it is stopped in the middle of that.
absl::Status TakeBlackBox(RankPart* part);

constexpr uint64_t RankPartOffset(int local_rank) {
  return kPage + static_cast<uint64_t>(local_rank) * sizeof(RankPart);
}
inline RankPart* RankPartOf(Segment* segment, int local_rank) {
  return static_cast<RankPart*>(segment->AddressOf(RankPartOffset(local_rank)));
}
// The ring of ranges of a local rank.
inline RangeMemory* RangesOf(Segment& segment, int local_rank) { return &RankPartOf(&segment, local_rank)->ranges; }
constexpr uint64_t FixedBytes(int local_ranks) { return RankPartOffset(local_ranks); }

}  // namespace cohort::runtime
