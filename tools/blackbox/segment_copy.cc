#include "tools/blackbox/segment_copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/base/errno_status.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/runtime/base/whole_file.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/layout.h"

namespace cohort::blackbox {
namespace {

using runtime::BlackBoxMemory;
using runtime::CallRecord;
using runtime::RankPart;
using runtime::SegmentHeader;

constexpr int kReadAttempts = 8;
constexpr size_t kCopyBytes = 1 << 20;
constexpr uint64_t kClockMagic = 0x6b636f6c63786f62u;  // "boxclock", little-endian

// Follows the segment in a saved file: when it was saved, without which nobody knows how long a call had hung.
struct SavedClock {
  uint64_t magic;
  uint64_t now_ns;
};

absl::Status ReadAll(int fd, uint64_t offset, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = pread(fd, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return runtime::ErrnoStatus(errno, "cannot read the node segment");
    if (got == 0) return absl::InvalidArgumentError("no node segment: it ends too early");
    at += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<SegmentHeader> ReadHeader(int fd) {
  SegmentHeader header;
  COHORT_RETURN_IF_ERROR(ReadAll(fd, 0, &header, sizeof header));
  if (header.magic != runtime::kSegmentMagic) return absl::InvalidArgumentError("no node segment");
  if (header.version != runtime::kSegmentVersion) {
    return absl::InvalidArgumentError("a node segment of version " + std::to_string(header.version) + "; this reads " +
                                      std::to_string(runtime::kSegmentVersion));
  }
  if (header.local_ranks < 1 || header.local_ranks > runtime::kMaxLocalRanks) {
    return absl::InvalidArgumentError("a damaged node segment: " + std::to_string(header.local_ranks) + " ranks");
  }
  return header;
}

std::string Printable(const char* text, size_t most) {
  std::string printable;
  for (size_t i = 0; i < most && text[i] != '\0'; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    printable += byte >= 0x20 && byte < 0x7f ? text[i] : '?';
  }
  return printable;
}

// How many of the slots changed between two copies.
template <typename Slots>
int Changed(const Slots& before, const Slots& after) {
  int changed = 0;
  for (size_t i = 0; i < std::size(before); ++i) {
    if (before[i].version.load() != after[i].version.load()) ++changed;
  }
  return changed;
}

template <typename Slots>
void LeaveOutChanged(const Slots& before, Slots& after) {
  for (size_t i = 0; i < std::size(before); ++i) {
    if (before[i].version.load() != after[i].version.load()) after[i].version.store(0);
  }
}

// A copy of a black box in which every record and description is whole: those that changed while it was taken are left
// out, unless a later attempt gets them.
absl::StatusOr<std::unique_ptr<BlackBoxMemory>> CopyBlackBox(int fd, uint64_t offset) {
  auto copy = std::make_unique<BlackBoxMemory>();
  auto later = std::make_unique<BlackBoxMemory>();
  COHORT_RETURN_IF_ERROR(ReadAll(fd, offset, static_cast<void*>(copy.get()), sizeof *copy));
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    COHORT_RETURN_IF_ERROR(ReadAll(fd, offset, static_cast<void*>(later.get()), sizeof *later));
    if (Changed(copy->slots, later->slots) + Changed(copy->descriptions, later->descriptions) == 0) return copy;
    if (attempt + 1 < kReadAttempts) copy.swap(later);
  }
  LeaveOutChanged(later->slots, copy->slots);
  LeaveOutChanged(later->descriptions, copy->descriptions);
  return copy;
}

absl::StatusOr<RankCopy> CopyRank(int fd, int local_rank, int records) {
  const uint64_t part = runtime::RankPartOffset(local_rank);
  runtime::RankControl control{};
  COHORT_RETURN_IF_ERROR(ReadAll(fd, part + offsetof(RankPart, control), static_cast<void*>(&control), sizeof control));
  RankCopy rank;
  rank.local_rank = local_rank;
  rank.pid = std::max(control.pid.load(), 0);
  rank.state = control.state.load();
  COHORT_ASSIGN_OR_RETURN(const auto box, CopyBlackBox(fd, part + offsetof(RankPart, black_box)));
  rank.records = runtime::BlackBoxReader(box.get()).All();
  const auto surplus = static_cast<ptrdiff_t>(rank.records.size()) - records;
  if (surplus > 0) rank.records.erase(rank.records.begin(), rank.records.begin() + surplus);
  return rank;
}

// A live segment is sealed against shrinking; a file cannot be.
bool IsSaved(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals < 0 || (seals & F_SEAL_SHRINK) == 0;
}

}  // namespace

absl::StatusOr<SegmentCopy> CopySegment(int fd, int records) {
  COHORT_ASSIGN_OR_RETURN(const SegmentHeader header, ReadHeader(fd));
  SegmentCopy copy;
  copy.job_id = Printable(header.job_id, sizeof header.job_id);
  copy.node = Printable(header.node, sizeof header.node);
  copy.epoch = runtime::EpochOf(header.epoch);
  for (int rank = 0; rank < static_cast<int>(header.local_ranks); ++rank) {
    COHORT_ASSIGN_OR_RETURN(RankCopy one, CopyRank(fd, rank, records));
    for (const CallRecord& record : one.records) {
      copy.now_ns = std::max({copy.now_ns, record.start_ns, record.end_ns});
    }
    copy.ranks.push_back(std::move(one));
  }
  SavedClock clock{};
  if (!IsSaved(fd)) {
    copy.now_ns = runtime::SteadyNow();
  } else if (ReadAll(fd, runtime::FixedBytes(static_cast<int>(header.local_ranks)), &clock, sizeof clock).ok() &&
             clock.magic == kClockMagic) {
    copy.now_ns = clock.now_ns;
  }
  return copy;
}

absl::Status SaveSegment(int fd, const std::string& path) {
  COHORT_ASSIGN_OR_RETURN(const SegmentHeader header, ReadHeader(fd));
  const uint64_t total = runtime::FixedBytes(static_cast<int>(header.local_ranks));
  std::vector<char> buffer(kCopyBytes);
  SavedClock clock{};
  // The segment, the clock, the end.
  const auto source = [&, offset = uint64_t{0}]() mutable -> absl::StatusOr<std::string_view> {
    if (offset < total) {
      const size_t bytes = std::min<uint64_t>(buffer.size(), total - offset);
      COHORT_RETURN_IF_ERROR(ReadAll(fd, offset, buffer.data(), bytes));
      offset += bytes;
      return std::string_view(buffer.data(), bytes);
    }
    if (clock.magic == kClockMagic) return std::string_view();
    clock = {kClockMagic, runtime::SteadyNow()};
    return std::string_view(reinterpret_cast<const char*>(&clock), sizeof clock);
  };
  return runtime::WriteWholeFile(path, source, {.replace = false, .mode = 0600});
}

}  // namespace cohort::blackbox
