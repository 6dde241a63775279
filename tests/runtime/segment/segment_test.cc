#include "cohort/runtime/segment/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/futex.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/segment/notice_board.h"
#include "tests/runtime/child.h"

namespace cohort::runtime {
namespace {

using testing::Child;

std::unique_ptr<Segment> MakeSegment(int local_ranks) {
  auto segment = Segment::Create({.local_ranks = local_ranks, .epoch = 7, .job_id = "job"});
  EXPECT_TRUE(segment.ok()) << segment.status();
  return *std::move(segment);
}

std::unique_ptr<Segment> Join(const Segment& segment, int local_rank) {
  auto joined = Segment::Attach(dup(segment.fd()), local_rank);
  EXPECT_TRUE(joined.ok()) << joined.status();
  return *std::move(joined);
}

uint64_t Pages(const Segment& segment) {
  struct stat info{};
  fstat(segment.fd(), &info);
  return static_cast<uint64_t>(info.st_blocks) * 512 / kPage;
}

TEST(SegmentTest, AttachedSegmentsSeeTheSameMemory) {
  const auto agent = MakeSegment(2);
  const auto first = Join(*agent, 0);
  const auto second = Join(*agent, 1);
  EXPECT_EQ(second->epoch(), 7u);
  EXPECT_EQ(second->local_ranks(), 2);
  EXPECT_EQ(agent->local_rank(), -1);

  for (const uint64_t bytes : {uint64_t{1}, uint64_t{200}, uint64_t{64 * 1024}, uint64_t{3} << 20}) {
    const auto block = first->Allocate(bytes);
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_GE(block->bytes, bytes);
    auto* mine = static_cast<char*>(*first->Map(*block));
    EXPECT_TRUE(std::all_of(mine, mine + bytes, [](char c) { return c == 0; }));
    std::memset(mine, 0x5a, bytes);
    const auto* theirs = static_cast<const char*>(*second->Map(*block));
    EXPECT_NE(theirs, mine);
    EXPECT_TRUE(std::all_of(theirs, theirs + bytes, [](char c) { return c == 0x5a; }));
    EXPECT_EQ(first->OffsetOf(mine, bytes), block->offset);
    EXPECT_EQ(second->OffsetOf(theirs + 1, bytes - 1), block->offset + 1);
  }
  int local = 0;
  EXPECT_EQ(first->OffsetOf(&local, 4), std::nullopt);
  EXPECT_EQ(first->OffsetOf(nullptr, 4), std::nullopt);
}

TEST(SegmentTest, RefusesBlocksOutsideTheArenas) {
  const auto agent = MakeSegment(1);
  EXPECT_EQ(agent->Map({0, 64}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(agent->Map({~uint64_t{0} - 8, 64}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(agent->Map({1 << 20, ~uint64_t{0}}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SegmentTest, AllocationsNeverOverlapAndFreedPagesGoBack) {
  const auto segment = Join(*MakeSegment(2), 1);
  const uint64_t before = Pages(*segment);
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::map<uint64_t, SegmentBlock> live;
  for (int step = 0; step < 3000; ++step) {
    if (live.size() < 40 && random() % 2 == 0) {
      const uint64_t bytes = random() % 3 == 0 ? random() % 300'000 : random() % 4000;
      const uint64_t alignment = uint64_t{1} << (random() % 13);
      const auto block = segment->Allocate(bytes, alignment);
      ASSERT_TRUE(block.ok()) << block.status();
      ASSERT_EQ(block->offset % alignment, 0u);
      ASSERT_GE(block->bytes, bytes);
      auto* memory = static_cast<unsigned char*>(*segment->Map(*block));
      ASSERT_TRUE(std::all_of(memory, memory + bytes, [](unsigned char c) { return c == 0; }));
      std::memset(memory, 0xff, bytes);
      const auto next = live.upper_bound(block->offset);
      if (next != live.end()) {
        ASSERT_LE(block->offset + block->bytes, next->first);
      }
      if (next != live.begin()) {
        const SegmentBlock& previous = std::prev(next)->second;
        ASSERT_LE(previous.offset + previous.bytes, block->offset);
      }
      live[block->offset] = *block;
    } else if (!live.empty()) {
      const auto victim = std::next(live.begin(), static_cast<int>(random() % live.size()));
      segment->Free(victim->second);
      live.erase(victim);
    }
  }
  for (const auto& [offset, block] : live) segment->Free(block);
  // The remaining pages are the pieces that small blocks are cut from.
  EXPECT_LE(Pages(*segment), before + 2 * 64);
}

// Whether this process's page table holds the page. Bit 63 of its entry in /proc/self/pagemap.
bool IsPresent(const void* address) {
  const FileDescriptor file(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  uint64_t entry = 0;
  const auto at = static_cast<off_t>(reinterpret_cast<uintptr_t>(address) / kPage * sizeof entry);
  EXPECT_EQ(pread(file.get(), &entry, sizeof entry, at), static_cast<ssize_t>(sizeof entry));
  return (entry >> 63) != 0;
}

// Page faults in the middle of a collective cost more than the collective.
TEST(SegmentTest, ABlockWhereAnotherOneLayIsThereAtOnce) {
  const auto agent = MakeSegment(2);
  const auto owner = Join(*agent, 0), reader = Join(*agent, 1);
  constexpr uint64_t kBytes = 1 << 20;
  const auto first = owner->Allocate(kBytes);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(reader->Map(*first).ok());
  owner->Free(*first);
  const auto second = owner->Allocate(kBytes);
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_EQ(second->offset, first->offset);
  const auto* mine = static_cast<const char*>(*owner->Map(*second));
  const auto* theirs = static_cast<const char*>(*reader->MapAfresh(*second));
  for (uint64_t at = 0; at < kBytes; at += kPage) {
    ASSERT_TRUE(IsPresent(mine + at)) << at;
    ASSERT_TRUE(IsPresent(theirs + at)) << at;
  }
  EXPECT_FALSE(reader->MapAfresh({.offset = 0, .bytes = kPage}).ok());
}

// Blocks that are rounded up to the first size with pages of its own come back as what they were taken as.
TEST(SegmentTest, BlocksAroundTheFirstPagedSizeComeBack) {
  const auto segment = Join(*MakeSegment(1), 0);
  const auto warm = segment->Allocate(100);
  const uint64_t before = Pages(*segment);
  for (int round = 0; round < 100; ++round) {
    for (const uint64_t bytes : {65407, 65408, 65409, 65535, 65536, 65537}) {
      const auto small = segment->Allocate(100);
      const auto block = segment->Allocate(bytes);
      ASSERT_TRUE(small.ok() && block.ok()) << block.status();
      segment->Free(*block);
      segment->Free(*small);
    }
  }
  EXPECT_LE(Pages(*segment), before + 64);  // one more piece for small blocks
  segment->Free(*warm);
}

TEST(SegmentTest, ADamagedNoticeBoardEndsNoReaderNorHoldsOneUp) {
  const auto segment = Join(*MakeSegment(1), 0);
  uint64_t seen = 0;
  for (const uint64_t tickets : {uint64_t{5}, uint64_t{1} << 40, ~uint64_t{0}}) {
    segment->notices(0)->tickets.store(tickets);
    EXPECT_TRUE(ReadNotices(segment->notices(0), &seen).empty());
    EXPECT_EQ(seen, tickets);
  }
}

TEST(SegmentTest, FullMemoryIsAnErrorAndNoSignal) {
  Child child([] {
    const uint64_t fixed = FixedBytes(1);
    const rlimit limit{fixed + (1 << 20), fixed + (1 << 20)};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto created = Segment::Create({});
    if (!created.ok()) return 1;
    auto segment = Segment::Attach(dup((*created)->fd()), 0);
    if (!segment.ok()) return 2;
    if ((*segment)->Allocate(2 << 20).status().code() != absl::StatusCode::kResourceExhausted) return 3;
    const auto all = (*segment)->Allocate(1 << 20);
    if (!all.ok()) return 4;
    if ((*segment)->Allocate(100).status().code() != absl::StatusCode::kResourceExhausted) return 5;
    (*segment)->Free(*all);
    if (!(*segment)->Allocate(100).ok()) return 6;
    const rlimit tiny{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &tiny);
    return Segment::Create({}).status().code() == absl::StatusCode::kResourceExhausted ? 0 : 7;
  });
  EXPECT_EQ(child.Wait(), 0);
}

// An agent's, until the first rank joins.
TEST(SegmentTest, MemoryOfTheFixedPartCanComeLater) {
  const auto bytes_of = [](const Segment& segment) {
    struct stat info{};
    EXPECT_EQ(fstat(segment.fd(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  };
  auto agent = Segment::Create({.local_ranks = 3, .reserve_fixed_part = false});
  ASSERT_TRUE(agent.ok()) << agent.status();
  const uint64_t before = bytes_of(**agent);
  EXPECT_LE(before, 4 * kPage);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE((*agent)->black_box_of(rank).Latest().has_value());
    (*agent)->control(rank).state.store(kRankLost);
    (*agent)->control(rank).state.store(kRankAbsent);
    (*agent)->Wake(rank);
  }
  EXPECT_EQ(bytes_of(**agent), before);
  ASSERT_TRUE((*agent)->ReserveFixedPart().ok());
  EXPECT_GE(bytes_of(**agent), FixedBytes(3));
  ASSERT_TRUE((*agent)->ReserveFixedPart().ok());

  const auto rank = Join(**agent, 1);
  CallRecord record;
  record.signature.group = 5;
  rank->black_box().Start(record);
  EXPECT_TRUE((*agent)->black_box_of(1).Latest().has_value());
}

TEST(SegmentTest, MoreMemoryThanTheMachineHasIsAnError) {
  const auto segment = Join(*MakeSegment(1), 0);
  const uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto block = segment->Allocate(memory + memory / 4);
  EXPECT_EQ(block.status().code(), absl::StatusCode::kResourceExhausted) << block.status();
}

TEST(SegmentTest, RefusesForeignDescriptors) {
  const int plain = memfd_create("plain", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(plain, 1 << 20), 0);
  EXPECT_EQ(Segment::Attach(plain, 0).status().code(), absl::StatusCode::kInvalidArgument);

  const int sealed = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(sealed, 1 << 20), 0);
  ASSERT_EQ(fcntl(sealed, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_EQ(Segment::Attach(sealed, 0).status().code(), absl::StatusCode::kInvalidArgument);

  const auto agent = MakeSegment(2);
  EXPECT_EQ(Segment::Attach(dup(agent->fd()), 2).status().code(), absl::StatusCode::kInvalidArgument);
  const auto first = Join(*agent, 0);
  EXPECT_EQ(Segment::Attach(dup(agent->fd()), 0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Segment::Create({.local_ranks = 0}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SegmentTest, RefusesDamagedHeaders) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto agent = MakeSegment(2);
    SegmentHeader header;
    ASSERT_EQ(pread(agent->fd(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
    auto* bytes = reinterpret_cast<unsigned char*>(&header);
    const size_t at = random() % offsetof(SegmentHeader, epoch);
    bytes[at] = static_cast<unsigned char>(bytes[at] ^ (1 + random() % 255));
    ASSERT_EQ(pwrite(agent->fd(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
    ASSERT_FALSE(Segment::Attach(dup(agent->fd()), 0).ok());
  }
}

TEST(SegmentTest, DirectoryFindsWhatWasPublished) {
  const auto agent = MakeSegment(1);
  const auto owner = Join(*agent, 0);
  for (uint64_t key = 1; key <= kDirectoryEntries; ++key) {
    ASSERT_TRUE(owner->Publish(key * 977, {key * 4096, key}).ok());
  }
  EXPECT_EQ(owner->Publish(5, {}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(owner->Publish(977, {}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(owner->Publish(0, {}).code(), absl::StatusCode::kInvalidArgument);
  for (uint64_t key = 1; key <= kDirectoryEntries; ++key) {
    const auto block = agent->LookUp(0, key * 977);
    ASSERT_TRUE(block.has_value());
    ASSERT_EQ(block->offset, key * 4096);
    ASSERT_EQ(block->bytes, key);
  }
  for (uint64_t key = 1; key <= kDirectoryEntries; key += 2) owner->Unpublish(key * 977);
  for (uint64_t key = 1; key <= kDirectoryEntries; ++key) {
    ASSERT_EQ(agent->LookUp(0, key * 977).has_value(), key % 2 == 0);
  }
  EXPECT_TRUE(owner->Publish(977, {1, 2}).ok());
  EXPECT_EQ(agent->LookUp(0, 977)->offset, 1u);
}

TEST(SegmentTest, DirectoryReadersSeeWholeEntries) {
  const auto agent = MakeSegment(1);
  const auto owner = Join(*agent, 0);
  std::atomic<bool> stop{false};
  std::atomic<bool> torn{false};
  std::atomic<int> found{0};
  std::thread reader([&] {
    while (!stop.load()) {
      for (uint64_t key = 1; key <= 8; ++key) {
        const auto block = agent->LookUp(0, key);
        if (!block.has_value()) continue;
        found.fetch_add(1);
        if (block->bytes != block->offset * 8 + key) torn.store(true);
      }
    }
  });
  for (uint64_t round = 1; round < 20'000 || found.load() == 0; ++round) {
    const uint64_t key = 1 + round % 8;
    owner->Unpublish(key);
    ASSERT_TRUE(owner->Publish(key, {round, round * 8 + key}).ok());
  }
  stop.store(true);
  reader.join();
  EXPECT_FALSE(torn.load());
}

TEST(SegmentTest, WakesASleepingProcess) {
  const auto agent = MakeSegment(2);
  Child sleeper([&agent] {
    auto segment = Segment::Attach(dup(agent->fd()), 1);
    if (!segment.ok()) return 1;
    RankControl& control = (*segment)->control(1);
    const uint32_t before = control.wake.load();
    control.parked.store(1);
    const Deadline deadline = Deadline::After(std::chrono::seconds(20));
    while (control.wake.load() == before) {
      if (deadline.passed()) return 2;
      FutexWait(control.wake, before, FutexScope::kShared, deadline);
    }
    return 0;
  });
  const auto segment = Join(*agent, 0);
  const Deadline deadline = Deadline::After(std::chrono::seconds(20));
  while (segment->control(1).parked.load() == 0 && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(segment->control(1).state.load(), 1u);
  EXPECT_EQ(segment->control(1).pid.load(), sleeper.pid());
  segment->Wake(1);
  EXPECT_EQ(sleeper.Wait(), 0);
  segment->Wake(0);  // nobody sleeps: nothing happens
  EXPECT_EQ(segment->control(0).wake.load(), 0u);
}

}  // namespace
}  // namespace cohort::runtime
