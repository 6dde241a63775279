#include "cohort/runtime/segment/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "cohort/runtime/base/check.h"
#include "cohort/runtime/base/cpu_budget.h"
#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/futex.h"
#include "cohort/runtime/base/mutex.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/arena.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/directory.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/segment/memory_limits.h"

namespace cohort::runtime {
namespace {

// All arenas together: addresses, not memory. A process has 128 TiB of them.
constexpr uint64_t kAllArenasBytes = uint64_t{1} << 43;
constexpr uint64_t kPagedBytes = 64 * 1024;  // blocks from here on have pages of their own
constexpr uint64_t kPoolBytes = 256 * 1024;  // small blocks are cut from pieces of this size
constexpr uint64_t kLineBytes = 128;
constexpr uint64_t kMostCpus = 1 << 20;
constexpr uint64_t kCheckMemoryBytes = 16 << 20;  // from here on, memory is looked at before it is asked for

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

std::string Mebibytes(uint64_t bytes) {
  return std::to_string((bytes >> 20) + ((bytes & 0xFFFFF) != 0 ? 1 : 0)) + " MiB";
}

// Twice the machine's memory for every rank, as long as the sum stays in bounds.
absl::StatusOr<uint64_t> ArenaBytes(int local_ranks) {
  const uint64_t share = std::bit_floor(kAllArenasBytes / static_cast<uint64_t>(local_ranks));
  uint64_t arena = std::min(share, std::bit_ceil(2 * std::max(TotalMemory(), uint64_t{1} << 30)));
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const uint64_t fixed = FixedBytes(local_ranks);
    const uint64_t left = limit.rlim_cur > fixed ? (limit.rlim_cur - fixed) / static_cast<uint64_t>(local_ranks) : 0;
    arena = std::min(arena, left / kPage * kPage);
    if (arena < kPoolBytes) {
      return absl::ResourceExhaustedError("the node segment does not fit under the limit on file sizes, " +
                                          std::to_string(limit.rlim_cur >> 10) + " KiB (ulimit -f); raise it to " +
                                          Mebibytes(fixed + kPoolBytes * static_cast<uint64_t>(local_ranks)) +
                                          " at the least");
    }
  }
  return arena;
}

absl::Status Reserve(int fd, uint64_t offset, uint64_t bytes) {
  int result = 0;
  do {
    result = fallocate(fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0 ? absl::OkStatus()
                     : ErrnoStatus(errno, "no memory for " + Mebibytes(bytes) + " of the node segment");
}

// The pages of the header and of all control blocks.
absl::Status ReserveControlWords(int fd, int local_ranks) {
  COHORT_RETURN_IF_ERROR(Reserve(fd, 0, kPage));
  for (int rank = 0; rank < local_ranks; ++rank) {
    COHORT_RETURN_IF_ERROR(Reserve(fd, RankPartOffset(rank), offsetof(RankPart, directory)));
  }
  return absl::OkStatus();
}

// Gives pages back to the machine; what is read there later is zero.
bool GiveBack(int fd, uint64_t offset, uint64_t bytes) {
  return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(bytes)) == 0;
}

}  // namespace

struct Segment::Rep {
  ~Rep() {
    if (base != nullptr) munmap(base, total_bytes);
  }

  uint64_t arena_offset(int rank) const { return FixedBytes(local_ranks) + static_cast<uint64_t>(rank) * arena_bytes; }
  RankPart& part(int rank) const { return *reinterpret_cast<RankPart*>(base + RankPartOffset(rank)); }

  absl::Status Open(int rank);
  absl::Status OpenFixedPart(int rank);
  absl::Status MapPages(uint64_t offset, uint64_t bytes, int flags) COHORT_REQUIRES(map_mutex);
  enum class Known : uint8_t { kAsIs, kPopulate };  // what to do with pages that are mapped already
  absl::Status EnsureMapped(uint64_t offset, uint64_t bytes, Known known = Known::kAsIs);
  // Makes the page tables of a mapped, allocated range now.
  void Populate(uint64_t start, uint64_t end) const;
  void ReadPages(uint64_t start, uint64_t end) const;
  // kInvalidArgument: not so.
  absl::Status CheckInside(SegmentBlock block) const;
  absl::Status CheckAllocated(SegmentBlock block) const;
  // The mapped range that holds the block; false when there is none.
  bool RangeAround(SegmentBlock block, SegmentBlock* around) {
    MutexLock lock(map_mutex);
    auto range = mapped.upper_bound(block.offset);
    if (range == mapped.begin() || (--range)->second < block.offset + block.bytes) return false;
    *around = {range->first, range->second - range->first};
    return true;
  }
  absl::StatusOr<SegmentBlock> TakePages(uint64_t bytes) COHORT_REQUIRES(arena_mutex);
  absl::StatusOr<SegmentBlock> TakeSmall(uint64_t bytes, uint64_t alignment) COHORT_REQUIRES(arena_mutex);

  FileDescriptor fd;
  int local_ranks = 0;
  int local_rank = -1;
  uint64_t epoch = 0;
  int cpus = 1;
  uint64_t arena_bytes = 0;
  uint64_t total_bytes = 0;
  bool fixed_part_reserved = false;  // as far as this object knows
  // The whole segment's address range. Pages that nobody has asked for are reserved and not accessible, so that a
  // block lies at base + offset for as long as the segment lives.
  char* base = nullptr;

  Mutex map_mutex;
  std::map<uint64_t, uint64_t> mapped COHORT_GUARDED_BY(map_mutex);  // disjoint: start to end

  Mutex arena_mutex;
  RangeAllocator pages COHORT_GUARDED_BY(arena_mutex);
  RangeAllocator small COHORT_GUARDED_BY(arena_mutex);

  std::unique_ptr<BlackBoxWriter> writer;
};

Segment::Segment() : rep_(std::make_unique<Rep>()) {}
Segment::~Segment() = default;

// Maps the fixed part and prepares the own arena. The descriptor and the sizes are known.
absl::Status Segment::Rep::Open(int rank) {
  local_rank = rank;
  void* reserved = mmap(nullptr, total_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    return ErrnoStatus(
        errno, "cannot reserve " + Mebibytes(total_bytes) + " of addresses for the node segment (check ulimit -v)");
  }
  base = static_cast<char*>(reserved);
  COHORT_RETURN_IF_ERROR(OpenFixedPart(rank));
  if (rank >= 0) {
    MutexLock lock(arena_mutex);
    pages.Add(arena_offset(rank), arena_bytes);
  }
  return absl::OkStatus();
}

// Populates only the rank's own part. A rank touches few pages of the other parts in its life, and all of them together
// are 49 MiB for 64 ranks. Populating all took half of the CPU time of a rank's start.
absl::Status Segment::Rep::OpenFixedPart(int rank) {
  const uint64_t bytes = FixedBytes(local_ranks);
  MutexLock lock(map_mutex);
  COHORT_RETURN_IF_ERROR(MapPages(0, bytes, 0));
  mapped[0] = RoundUp(bytes, kPage);
  return rank < 0 ? absl::OkStatus() : MapPages(RankPartOffset(rank), sizeof(RankPart), MAP_POPULATE);
}

absl::Status Segment::Rep::MapPages(uint64_t offset, uint64_t bytes, int flags) {
  void* at = mmap(base + offset, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | flags, fd.get(),
                  static_cast<off_t>(offset));
  if (at == MAP_FAILED) return ErrnoStatus(errno, "cannot map " + Mebibytes(bytes) + " of the node segment");
  return absl::OkStatus();
}

absl::Status Segment::Rep::CheckInside(SegmentBlock block) const {
  const uint64_t first = FixedBytes(local_ranks);
  if (block.offset >= first && block.bytes <= total_bytes && block.offset <= total_bytes - block.bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a block of " + std::to_string(block.bytes) + " bytes at offset " +
                                    std::to_string(block.offset) + " lies outside the node segment");
}

absl::Status Segment::Rep::CheckAllocated(SegmentBlock block) const {
  const off_t hole = lseek(fd.get(), static_cast<off_t>(block.offset), SEEK_HOLE);
  if (hole >= 0 && static_cast<uint64_t>(hole) >= block.offset + block.bytes) return absl::OkStatus();
  return absl::InvalidArgumentError("a block of " + std::to_string(block.bytes) + " bytes at offset " +
                                    std::to_string(block.offset) + " of the node segment is not allocated");
}

void Segment::Rep::Populate(uint64_t start, uint64_t end) const {
  constexpr int kPopulateWrite =
      23;  // MADV_POPULATE_WRITE, which older C libraries do not have, nor kernels before 5.14
  if (madvise(base + start, end - start, kPopulateWrite) != 0) ReadPages(start, end);
}

void Segment::Rep::ReadPages(uint64_t start, uint64_t end) const {
  const volatile char* const bytes = base;
  for (uint64_t at = start; at < end; at += kPage) (void)bytes[at];
}

absl::Status Segment::Rep::EnsureMapped(uint64_t offset, uint64_t bytes, Known known) {
  uint64_t start = offset / kPage * kPage;
  uint64_t end = RoundUp(offset + bytes, kPage);
  MutexLock lock(map_mutex);
  auto range = mapped.upper_bound(start);
  if (range != mapped.begin() && std::prev(range)->second >= end) {
    if (known == Known::kPopulate) Populate(start, end);
    return absl::OkStatus();
  }
  // Fill the gaps of [start, end), then make one range of everything that touches it.
  if (range != mapped.begin() && std::prev(range)->second >= start) --range;
  for (uint64_t at = start; at < end;) {
    auto next = mapped.upper_bound(at);
    if (next != mapped.begin() && std::prev(next)->second > at) {
      const uint64_t known_end = std::min(end, std::prev(next)->second);
      if (known == Known::kPopulate) Populate(at, known_end);
      at = known_end;
      continue;
    }
    const uint64_t gap_end = next == mapped.end() ? end : std::min(end, next->first);
    // Populated at once: page faults in the middle of a collective cost more than the collective.
    COHORT_RETURN_IF_ERROR(MapPages(at, gap_end - at, MAP_POPULATE));
    at = gap_end;
  }
  while (range != mapped.end() && range->first <= end) {
    start = std::min(start, range->first);
    end = std::max(end, range->second);
    range = mapped.erase(range);
  }
  mapped[start] = end;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Segment>> Segment::Create(const Options& options) {
  if (options.local_ranks < 1 || options.local_ranks > kMaxLocalRanks) {
    return absl::InvalidArgumentError("a node segment serves 1 to 1024 local ranks, not " +
                                      std::to_string(options.local_ranks));
  }
  std::unique_ptr<Segment> segment(new Segment);
  Rep& rep = *segment->rep_;
  COHORT_ASSIGN_OR_RETURN(rep.arena_bytes, ArenaBytes(options.local_ranks));
  rep.local_ranks = options.local_ranks;
  rep.epoch = options.epoch;
  const uint64_t fixed = FixedBytes(rep.local_ranks);
  rep.total_bytes = fixed + rep.arena_bytes * static_cast<uint64_t>(rep.local_ranks);
  rep.fd = FileDescriptor(memfd_create("cohort-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!rep.fd.valid()) return ErrnoStatus(errno, "cannot create the node segment");
  if (ftruncate(rep.fd.get(), static_cast<off_t>(rep.total_bytes)) != 0) {
    return ErrnoStatus(errno, "cannot size the node segment");
  }
  COHORT_RETURN_IF_ERROR(options.reserve_fixed_part ? segment->ReserveFixedPart()
                                                    : ReserveControlWords(rep.fd.get(), rep.local_ranks));
  COHORT_RETURN_IF_ERROR(rep.Open(-1));

  auto* header = new (rep.base) SegmentHeader{};
  header->version = kSegmentVersion;
  header->local_ranks = static_cast<uint32_t>(rep.local_ranks);
  header->epoch = options.epoch;
  header->arena_bytes = rep.arena_bytes;
  const int cpus = AvailableCpus();
  rep.cpus = Oversubscribed(rep.local_ranks) ? cpus : std::max(cpus, rep.local_ranks);
  header->cpus = static_cast<uint64_t>(rep.cpus);
  std::strncpy(header->job_id, options.job_id.c_str(), sizeof header->job_id - 1);
  std::strncpy(header->node, options.node.c_str(), sizeof header->node - 1);
  header->magic = kSegmentMagic;
  if (fcntl(rep.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "cannot seal the node segment");
  }
  return segment;
}

absl::StatusOr<std::unique_ptr<Segment>> Segment::Attach(int fd, int local_rank, Role role) {
  std::unique_ptr<Segment> segment(new Segment);
  Rep& rep = *segment->rep_;
  rep.fd = FileDescriptor(fd);
  const auto foreign = [](const std::string& why) {
    return absl::InvalidArgumentError("the descriptor is no node segment of this version of cohort: " + why);
  };
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) {
    return foreign("it is not a sealed memfd");
  }
  struct stat info{};
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "cannot look at the node segment");
  const auto size = static_cast<uint64_t>(info.st_size);
  SegmentHeader header;
  if (pread(fd, &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) return foreign("it is too short");
  if (header.magic != kSegmentMagic) return foreign("its first bytes are others");
  if (header.version != kSegmentVersion) {
    return foreign("version " + std::to_string(header.version) + ", not " + std::to_string(kSegmentVersion) +
                   "; this program and the dlaunch that started it were built from different versions of cohort: use "
                   "the dlaunch of the program's build (see PATH), or build the program again");
  }
  if (header.local_ranks < 1 || header.local_ranks > kMaxLocalRanks || header.arena_bytes % kPage != 0 ||
      header.arena_bytes > size / header.local_ranks || header.cpus < 1 || header.cpus > kMostCpus) {
    return foreign("its header is damaged");
  }
  rep.local_ranks = static_cast<int>(header.local_ranks);
  rep.epoch = header.epoch;
  rep.fixed_part_reserved = true;
  rep.cpus = static_cast<int>(header.cpus);
  rep.arena_bytes = header.arena_bytes;
  rep.total_bytes = size;
  if (size != FixedBytes(rep.local_ranks) + rep.arena_bytes * header.local_ranks) return foreign("its size is wrong");
  if (local_rank < -1 || local_rank >= rep.local_ranks) {
    return absl::InvalidArgumentError("local rank " + std::to_string(local_rank) + " in a node segment of " +
                                      std::to_string(rep.local_ranks) + " ranks");
  }
  COHORT_RETURN_IF_ERROR(rep.Open(local_rank));
  if (local_rank >= 0) {
    RankControl& control = rep.part(local_rank).control;
    uint32_t state = kRankAbsent;
    if (role == Role::kRuntime) control.state.compare_exchange_strong(state, kRankAttached);
    if (role == Role::kRecorder) state = control.state.load(std::memory_order_acquire);
    if (state != kRankAbsent && (role == Role::kRuntime || state != kRankFinalised)) {
      return absl::FailedPreconditionError(
          "process " + std::to_string(control.pid.load(std::memory_order_acquire)) + " has joined as local rank " +
          std::to_string(local_rank) + " already, and did not finalize its runtime: a rank is one process at a time");
    }
    if (role == Role::kRuntime) {
      COHORT_RETURN_IF_ERROR(TakeBlackBox(&rep.part(local_rank)));
      rep.writer = std::make_unique<BlackBoxWriter>(&rep.part(local_rank).black_box);
    }
    control.pid.store(getpid(), std::memory_order_release);
  }
  return segment;
}

absl::Status Segment::ReserveFixedPart() {
  if (rep_->fixed_part_reserved) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(Reserve(rep_->fd.get(), 0, FixedBytes(rep_->local_ranks)));
  rep_->fixed_part_reserved = true;
  return absl::OkStatus();
}

int Segment::fd() const { return rep_->fd.get(); }
int Segment::local_ranks() const { return rep_->local_ranks; }
int Segment::local_rank() const { return rep_->local_rank; }
uint64_t Segment::epoch() const { return rep_->epoch; }
int Segment::cpus() const { return rep_->cpus; }

RankControl& Segment::control(int local_rank) {
  COHORT_CHECK(local_rank >= 0 && local_rank < rep_->local_ranks);
  return rep_->part(local_rank).control;
}

NoticeMemory* Segment::notices(int local_rank) {
  COHORT_CHECK(local_rank >= 0 && local_rank < rep_->local_ranks);
  return &rep_->part(local_rank).notices;
}

void Segment::Wake(int local_rank) {
  RankControl& control = rep_->part(local_rank).control;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (control.parked.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  control.wake.fetch_add(1, std::memory_order_release);
  FutexWake(control.wake, FutexScope::kShared);
}

absl::StatusOr<SegmentBlock> Segment::Rep::TakePages(uint64_t bytes) {
  const uint64_t size = RoundUp(bytes, kPage);
  if (size >= kCheckMemoryBytes && size > AvailableMemory()) {
    return absl::ResourceExhaustedError("no memory for " + Mebibytes(size) + " of the node segment: " +
                                        Mebibytes(AvailableMemory()) + " are available on this machine");
  }
  const std::optional<uint64_t> offset = pages.Take(size, kPage);
  if (!offset.has_value()) {
    return absl::ResourceExhaustedError("no room for " + Mebibytes(size) + " in this rank's arena of " +
                                        Mebibytes(arena_bytes) + ": the largest free range has " +
                                        Mebibytes(pages.largest()));
  }
  absl::Status status = Reserve(fd.get(), *offset, size);
  if (status.ok()) status = EnsureMapped(*offset, size, Known::kPopulate);
  // qemu-user ignores requests to populate, and peers take a reserved page for a hole until it is touched.
  const auto first = static_cast<off_t>(*offset);
  if (status.ok() && lseek(fd.get(), first, SEEK_DATA) != first) ReadPages(*offset, *offset + size);
  if (!status.ok()) {
    (void)GiveBack(fd.get(), *offset, size);
    pages.Add(*offset, size);
    return status;
  }
  return SegmentBlock{*offset, size};
}

absl::StatusOr<SegmentBlock> Segment::Rep::TakeSmall(uint64_t bytes, uint64_t alignment) {
  std::optional<uint64_t> offset = small.Take(bytes, alignment);
  if (!offset.has_value()) {
    COHORT_ASSIGN_OR_RETURN(const SegmentBlock pool, TakePages(kPoolBytes));
    small.Add(pool.offset, pool.bytes);
    offset = small.Take(bytes, alignment);
    COHORT_CHECK(offset.has_value());
  }
  std::memset(base + *offset, 0, bytes);
  return SegmentBlock{*offset, bytes};
}

absl::StatusOr<SegmentBlock> Segment::Allocate(uint64_t bytes, uint64_t alignment) {
  COHORT_CHECK(rep_->local_rank >= 0);
  if (!std::has_single_bit(alignment) || alignment > kPage) {
    return absl::InvalidArgumentError("alignment " + std::to_string(alignment) +
                                      " is no power of two between 1 and 4096");
  }
  if (bytes > rep_->arena_bytes) {
    return absl::ResourceExhaustedError("no room for " + Mebibytes(bytes) + " in this rank's arena of " +
                                        Mebibytes(rep_->arena_bytes));
  }
  MutexLock lock(rep_->arena_mutex);
  const uint64_t lines = RoundUp(std::max<uint64_t>(bytes, 1), kLineBytes);
  // By the size that Free will see.
  return lines >= kPagedBytes ? rep_->TakePages(lines) : rep_->TakeSmall(lines, std::max(alignment, kLineBytes));
}

void Segment::Free(SegmentBlock block) {
  if (block.bytes == 0) return;
  COHORT_CHECK(rep_->local_rank >= 0);
  MutexLock lock(rep_->arena_mutex);
  if (block.bytes < kPagedBytes) {
    rep_->small.Add(block.offset, RoundUp(block.bytes, kLineBytes));
    return;
  }
  const uint64_t size = RoundUp(block.bytes, kPage);
  if (!GiveBack(rep_->fd.get(), block.offset, size)) std::memset(rep_->base + block.offset, 0, size);
  rep_->pages.Add(block.offset, size);
}

absl::StatusOr<void*> Segment::Map(SegmentBlock block) {
  COHORT_RETURN_IF_ERROR(rep_->CheckInside(block));
  COHORT_RETURN_IF_ERROR(rep_->EnsureMapped(block.offset, block.bytes));
  return static_cast<void*>(rep_->base + block.offset);
}

absl::StatusOr<void*> Segment::MapAfresh(SegmentBlock block) {
  COHORT_RETURN_IF_ERROR(rep_->CheckInside(block));
  COHORT_RETURN_IF_ERROR(rep_->CheckAllocated(block));
  COHORT_RETURN_IF_ERROR(rep_->EnsureMapped(block.offset, block.bytes, Rep::Known::kPopulate));
  return static_cast<void*>(rep_->base + block.offset);
}

absl::StatusOr<void*> Segment::MapNamed(SegmentBlock block, SegmentBlock* around) {
  COHORT_RETURN_IF_ERROR(rep_->CheckInside(block));
  if (!rep_->RangeAround(block, around)) COHORT_RETURN_IF_ERROR(rep_->CheckAllocated(block));
  COHORT_ASSIGN_OR_RETURN(void* data, Map(block));
  rep_->RangeAround(block, around);
  return data;
}

void* Segment::AddressOf(uint64_t offset) const { return rep_->base + offset; }

std::optional<uint64_t> Segment::OffsetOf(const void* pointer, uint64_t bytes) const {
  const auto offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(rep_->base);
  if (offset < FixedBytes(rep_->local_ranks) || offset >= rep_->total_bytes || bytes > rep_->total_bytes - offset) {
    return std::nullopt;
  }
  return offset;
}

absl::Status Segment::Publish(uint64_t key, SegmentBlock block) {
  COHORT_CHECK(rep_->local_rank >= 0);
  MutexLock lock(rep_->arena_mutex);
  return DirectoryInsert(rep_->part(rep_->local_rank).directory, key, block);
}

void Segment::Unpublish(uint64_t key) {
  COHORT_CHECK(rep_->local_rank >= 0);
  MutexLock lock(rep_->arena_mutex);
  DirectoryErase(rep_->part(rep_->local_rank).directory, key);
}

std::optional<SegmentBlock> Segment::LookUp(int local_rank, uint64_t key) const {
  COHORT_CHECK(local_rank >= 0 && local_rank < rep_->local_ranks);
  return DirectoryFind(rep_->part(local_rank).directory, key);
}

BlackBoxWriter& Segment::black_box() {
  COHORT_CHECK(rep_->writer != nullptr);
  return *rep_->writer;
}

BlackBoxReader Segment::black_box_of(int local_rank) const {
  COHORT_CHECK(local_rank >= 0 && local_rank < rep_->local_ranks);
  static BlackBoxMemory empty;  // reading the other would take memory
  return BlackBoxReader(rep_->fixed_part_reserved ? &rep_->part(local_rank).black_box : &empty);
}

}  // namespace cohort::runtime
