#include "cohort/comm/transport/shm/member_memory.h"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <string>

#include "cohort/runtime/base/deadline.h"

namespace cohort::comm::shm {
MemberMemory::MemberMemory(runtime::Segment& segment, PrivateMemory& memory, OwnEndpoint& own, int group_rank,
                           std::vector<PeerEndpoint>& peers)
    : segment_(segment), memory_(memory), own_(own), group_rank_(group_rank), peers_(peers), mapped_(peers.size()) {}

bool MemberMemory::Close() {
  own_.Close();
  // A member that has no endpoint yet has never been inside.
  const auto inside = [](PeerEndpoint& peer) {
    return !peer.gone() && peer.Attach() == Progress::kDone &&
           peer.header().inside.load(std::memory_order_acquire) != 0;
  };
  if (std::none_of(peers_.begin(), peers_.end(), inside)) return true;
  const auto deadline = runtime::Deadline::After(kLongestWait);
  while (std::any_of(peers_.begin(), peers_.end(), inside)) {
    if (deadline.passed()) return false;
    sched_yield();
  }
  return true;
}

MemoryName MemberMemory::NameOf(const void* data, size_t bytes) {
  if (const std::optional<uint64_t> offset = segment_.OffsetOf(data, bytes)) return {.place = *offset, .shared = 1};
  return {.place = reinterpret_cast<uintptr_t>(data), .shared = 0};
}

Progress MemberMemory::ReachesPrivate(bool* reaches, int* waiting_for) {
  if (reach_ == Reach::kUnknown) {
    bool all = true;
    for (size_t i = 0; i < peers_.size(); ++i) {
      switch (peers_[i].Attach()) {
        case Progress::kDone:
          break;
        case Progress::kFailed:
          all = false;  // the first message of this peer will say that its endpoint is damaged
          continue;
        default:
          *waiting_for = static_cast<int>(i) < group_rank_ ? static_cast<int>(i) : static_cast<int>(i) + 1;
          return Progress::kBlocked;
      }
      // A write of nothing but the gate's word is a probe.
      all = all && memory_.Readable(peers_[i]) && memory_.Write(peers_[i], 0, nullptr, 0) == ReadResult::kRead;
    }
    reach_ = all ? Reach::kYes : Reach::kNo;
  }
  *reaches = reach_ == Reach::kYes && memory_.direct();
  return Progress::kDone;
}

std::byte* MemberMemory::Resolve(int peer, const MemoryName& name, size_t bytes) {
  Mapped& mapped = mapped_[IndexOf(peer)];
  for (const runtime::SegmentBlock& range : mapped.ranges) {
    if (name.place >= range.offset && bytes <= range.bytes && name.place - range.offset <= range.bytes - bytes) {
      return static_cast<std::byte*>(segment_.AddressOf(name.place));
    }
  }
  runtime::SegmentBlock& range = mapped.ranges[mapped.next++ % mapped.ranges.size()];
  const absl::StatusOr<void*> data = segment_.MapNamed({.offset = name.place, .bytes = bytes}, &range);
  return data.ok() ? static_cast<std::byte*>(*data) : nullptr;
}

bool MemberMemory::Enter() {
  own_.header().inside.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!AnyClosed()) return true;
  own_.header().inside.store(0, std::memory_order_release);
  return false;
}

bool MemberMemory::Leave() {
  own_.header().inside.store(0, std::memory_order_release);
  return !AnyClosed();
}

bool MemberMemory::AnyClosed() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const PeerEndpoint& peer) { return peer.Closed(); });
}

Progress MemberMemory::Read(int peer, uint64_t address, std::byte* to, size_t bytes, absl::Status* error) {
  const PeerEndpoint& endpoint = peers_[IndexOf(peer)];
  return Outcome(memory_.Read(endpoint, address, to, bytes), endpoint, error);
}

Progress MemberMemory::Write(int peer, uint64_t address, const std::byte* from, size_t bytes, absl::Status* error) {
  const PeerEndpoint& endpoint = peers_[IndexOf(peer)];
  return Outcome(memory_.Write(endpoint, address, from, bytes), endpoint, error);
}

Progress MemberMemory::Outcome(ReadResult result, const PeerEndpoint& peer, absl::Status* error) const {
  if (result == ReadResult::kRead) return Progress::kDone;
  // Gone, or it has given the group up: the control plane reports that, with its cause.
  if (result == ReadResult::kGone || peer.gone() || peer.Closed()) {
    return Progress::kBlocked;
  }
  *error = absl::UnavailableError(
      "the memory of rank " + std::to_string(peer.address().world_rank) +
      " cannot be reached any more: it freed a buffer that an operation still uses, or changed its permissions (user, "
      "dumpable flag, ptrace scope) while running");
  return Progress::kFailed;
}

}  // namespace cohort::comm::shm
