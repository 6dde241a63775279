// Two ranks over shared memory: a line and its stamp for a small message, and for a longer one each way in which a
// message can travel between processes: copied through a ring, with plain stores or past the cache, read by
// process_vm_readv, and from windows read in place.
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/transport/stream_copy.h"
#include "cohort/comm/types.h"
#include "cohort/runtime/engine/wait_policy.h"
#include "tools/collperf/peers/bare_pair.h"
#include "tools/measure/shared_memory.h"

namespace cohort::collperf {
namespace {

constexpr size_t kSlots = 32;
constexpr size_t kInLine = 56;  // beside the stamp
constexpr size_t kInSlot = 1024;
constexpr size_t kRingBytes = 2 << 20;
constexpr size_t kWindowBytes = 1 << 30;
constexpr size_t kBothMove = 16 << 10;  // from here on both ranks can move what goes one way
constexpr size_t kStaging = 64 << 10;   // of what is read and then added
constexpr size_t kOwnPart = 16 << 10;   // of a rank's own block, while it waits

struct alignas(128) Slot {
  std::byte line[kInLine];
  std::atomic<uint64_t> stamp;
  std::byte rest[kInSlot];
};

// The part of the shared memory that one rank writes and the other reads.
struct Side {
  Slot slots[kSlots];
  alignas(128) std::atomic<uint64_t> parts;  // written to the ring since the beginning
  alignas(128) std::atomic<uint64_t> taken;  // of the other's parts
  alignas(128) std::atomic<uint64_t> done;   // times that the other's memory was used in place
  alignas(4096) std::byte ring[kRingBytes];
};

constexpr size_t kWindowsAt = (2 * sizeof(Side) + 4095) / 4096 * 4096;
constexpr size_t kMemoryBytes = kWindowsAt + 4 * kWindowBytes;  // pages come when they are touched

// A wait that spins, and yields where it lasts so long that the other rank may need this CPU.
class Spin {
 public:
  void Once() {
    if (++spins_ < kPatience) {
      runtime::Pause();
    } else {
      ::sched_yield();
    }
  }

 private:
  static constexpr int kPatience = 20'000;
  int spins_ = 0;
};

void WaitFor(const std::atomic<uint64_t>& counter, uint64_t value) {
  for (Spin spin; counter.load(std::memory_order_acquire) < value;) spin.Once();
}

struct Ring {
  size_t bytes;
  size_t most;  // in a part
  bool past_cache;
};
// Rings within a level 2 cache, beyond it, and past it.
constexpr std::array<Ring, 4> kRings = {
    {{128 << 10, 4 << 10, false}, {2 << 20, 32 << 10, false}, {128 << 10, 8 << 10, true}, {1 << 20, 128 << 10, true}}};
// The ways without a ring. In windows the first uses the other's memory in place, and the second writes past the cache.
// In private memory the first reads the other's, and in the second both ranks move what goes one way.
constexpr int kInPlace = static_cast<int>(kRings.size());
constexpr int kInPlaceToo = kInPlace + 1;

// The places of a step's buffers, as PlaceOf.
struct Places {
  uint64_t send = 0;
  uint64_t receive = 0;
  uint64_t addend = 0;
  uint64_t twin = 0;
};

class BareMemory final : public BarePair {
 public:
  BareMemory(std::unique_ptr<measure::SharedMemory> memory, int rank)
      : memory_(std::move(memory)),
        base_(static_cast<std::byte*>(memory_->data())),
        own_(reinterpret_cast<Side*>(base_)[rank]),
        other_(reinterpret_cast<Side*>(base_)[1 - rank]),
        windows_(base_ + kWindowsAt + static_cast<size_t>(rank) * 2 * kWindowBytes),
        staging_(kStaging) {
    peer_ = static_cast<pid_t>(Swap(static_cast<uint64_t>(::getpid())));
    // A kernel may forbid it. Both must be able to, or neither does.
    const uint64_t address = Swap(reinterpret_cast<uint64_t>(staging_.data()));
    std::byte byte{};
    const bool can = ReadOther(address, &byte, 1) && WriteOther(address, &byte, 1);
    uses_other_ = (Swap(can ? 1 : 0) == 1) && can;
  }

  void Run(const BareStep& step) override {
    if (std::max(step.send_bytes, step.receive_bytes) <= kInSlot) return RunSmall(step);
    if (way_ >= kInPlace) return RunInPlace(step);
    RunRing(step, kRings[static_cast<size_t>(way_)]);
  }
  bool TwinSums() const override { return in_window_ && way_ >= kInPlace; }
  int ways(bool window) const override { return window || uses_other_ ? kInPlaceToo + 1 : kInPlace; }
  void UseWay(bool window, int way) override {
    in_window_ = window;
    way_ = way;
  }
  std::byte* Window(int buffer, size_t bytes) override {
    return bytes > kWindowBytes ? nullptr : windows_ + static_cast<size_t>(buffer) * kWindowBytes;
  }
  void ReleaseWindows() override { (void)::madvise(windows_, 2 * kWindowBytes, MADV_REMOVE); }

 private:
  void Put(const std::byte* data, size_t bytes) {
    Slot& slot = own_.slots[sent_ % kSlots];
    std::memcpy(bytes <= kInLine ? slot.line : slot.rest, data, bytes);
    slot.stamp.store(++sent_, std::memory_order_release);
  }
  const std::byte* Await(size_t bytes) {
    Slot& slot = other_.slots[received_ % kSlots];
    WaitFor(slot.stamp, ++received_);
    return bytes <= kInLine ? slot.line : slot.rest;
  }
  // Short messages go in one way only: every other of the ways ends a store before it looks for the other's, as ours.
  void RunSmall(const BareStep& step) {
    if (step.send_bytes > 0) Put(step.send, step.send_bytes);
    if (way_ % 2 == 1) std::atomic_thread_fence(std::memory_order_seq_cst);
    CopyBlock(step.own_to, step.own_from, step.own_bytes);
    if (step.receive_bytes > 0) TakeBytes(step, Await(step.receive_bytes), 0, step.receive_bytes);
    __builtin_prefetch(own_.slots[sent_ % kSlots].line, 1);
  }
  bool ReadOther(uint64_t address, std::byte* to, size_t bytes) const;
  bool WriteOther(uint64_t address, const std::byte* from, size_t bytes) const;
  // Counted from the beginning of the shared memory in a window, else an address.
  uint64_t PlaceOf(const std::byte* data) const {
    return in_window_ ? static_cast<uint64_t>(data - base_) : reinterpret_cast<uint64_t>(data);
  }
  void RunInPlace(const BareStep& step);
  void TakeInPlace(const BareStep& step, const Places& others, size_t bytes);
  void GiveInPlace(const BareStep& step, const Places& others, size_t at);
  void ReadPrivate(const BareStep& step, uint64_t address, size_t bytes);
  void RunRing(const BareStep& step, const Ring& ring);

  std::unique_ptr<measure::SharedMemory> memory_;
  std::byte* const base_;
  Side& own_;
  Side& other_;
  std::byte* const windows_;
  std::vector<std::byte> staging_;
  pid_t peer_ = 0;
  bool uses_other_ = false;  // private memory
  bool in_window_ = false;
  int way_ = 0;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  uint64_t lent_ = 0;  // times that the other has used this rank's memory
  uint64_t used_ = 0;  // and this one the other's
};

// The kernel moves at most 2 GiB in a call.
bool BareMemory::ReadOther(uint64_t address, std::byte* to, size_t bytes) const {
  for (size_t done = 0; done < bytes;) {
    const iovec local{to + done, bytes - done};
    const iovec remote{reinterpret_cast<void*>(address + done), bytes - done};  // NOLINT(performance-no-int-to-ptr)
    const ssize_t n = ::process_vm_readv(peer_, &local, 1, &remote, 1, 0);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool BareMemory::WriteOther(uint64_t address, const std::byte* from, size_t bytes) const {
  for (size_t done = 0; done < bytes;) {
    const iovec local{const_cast<std::byte*>(from) + done, bytes - done};
    const iovec remote{reinterpret_cast<void*>(address + done), bytes - done};  // NOLINT(performance-no-int-to-ptr)
    const ssize_t n = ::process_vm_writev(peer_, &local, 1, &remote, 1, 0);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

// Sums `bytes` bytes of both inputs into all outputs.
void Sum(std::initializer_list<std::byte*> outs, const std::byte* a, const std::byte* b, size_t bytes,
         bool past_cache) {
  static const comm::FoldKernel fold = comm::FindFoldKernel(comm::DataType::kFloat32, comm::ReduceOp::kSum);
  std::array<void*, 2> targets{};
  std::copy(outs.begin(), outs.end(), targets.begin());
  const std::array<const void*, 2> ins = {a, b};
  fold(targets.data(), outs.size(), ins.data(), ins.size(), bytes / sizeof(float), past_cache);
}

// Both say where their memory is and then move their shares of the bytes.
void BareMemory::RunInPlace(const BareStep& step) {
  const Places own{PlaceOf(step.send), PlaceOf(step.receive), PlaceOf(step.addend), PlaceOf(step.twin)};
  const size_t longest = std::max(step.send_bytes, step.receive_bytes);
  const bool one_way = step.send_bytes == 0 || step.receive_bytes == 0;
  const bool both = one_way && longest >= kBothMove && (in_window_ || (way_ == kInPlaceToo && !step.one_way_sum));
  const size_t share = both ? static_cast<size_t>(static_cast<double>(longest) * step.taken) / 64 * 64 : longest;
  const bool puts = step.send_bytes > 0 || both;
  if (puts) Put(reinterpret_cast<const std::byte*>(&own), sizeof own);
  CopyBlock(step.own_to, step.own_from, step.own_bytes);
  if (step.receive_bytes > 0 || both) {
    Places others;
    std::memcpy(&others, Await(sizeof others), sizeof others);
    if (step.receive_bytes > 0) {
      TakeInPlace(step, others, std::min(share, step.receive_bytes));
    } else {
      GiveInPlace(step, others, share);
    }
    own_.done.store(++used_, std::memory_order_release);
  }
  if (puts) WaitFor(other_.done, ++lent_);
}

// Takes the first `bytes` bytes of what the other sends.
void BareMemory::TakeInPlace(const BareStep& step, const Places& others, size_t bytes) {
  if (bytes == 0) return;
  if (!in_window_) return ReadPrivate(step, others.send, bytes);
  const bool past_cache = way_ == kInPlaceToo;
  const std::byte* const place = base_ + others.send;
  if (step.twin != nullptr) {
    std::byte* const twin = base_ + others.twin + (step.receive - step.twin);
    Sum({step.receive, twin}, step.addend, place, bytes, past_cache);
  } else if (step.addend != nullptr) {
    Sum({step.receive}, step.addend, place, bytes, past_cache);
  } else if (past_cache) {
    comm::StreamCopy(step.receive, place, bytes);
  } else {
    std::memcpy(step.receive, place, bytes);
  }
}

// Puts what is sent from `at` on into the other's memory.
void BareMemory::GiveInPlace(const BareStep& step, const Places& others, size_t at) {
  const size_t bytes = step.send_bytes - at;
  if (bytes == 0) return;
  if (!in_window_) {
    if (!WriteOther(others.receive + at, step.send + at, bytes)) EndRank("process_vm_writev");
    return;
  }
  const bool past_cache = way_ == kInPlaceToo;
  std::byte* const place = base_ + others.receive + at;
  if (step.one_way_sum) {
    Sum({place}, base_ + others.addend + at, step.send + at, bytes, past_cache);
  } else if (past_cache) {
    comm::StreamCopy(place, step.send + at, bytes);
  } else {
    std::memcpy(place, step.send + at, bytes);
  }
}

void BareMemory::ReadPrivate(const BareStep& step, uint64_t address, size_t bytes) {
  if (step.addend == nullptr) {
    if (!ReadOther(address, step.receive, bytes)) EndRank("process_vm_readv");
    return;
  }
  for (size_t at = 0; at < bytes; at += kStaging) {
    const size_t part = std::min(kStaging, bytes - at);
    if (!ReadOther(address + at, staging_.data(), part)) EndRank("process_vm_readv");
    TakeBytes(step, staging_.data(), at, part);
  }
}

void BareMemory::RunRing(const BareStep& step, const Ring& ring) {
  const size_t longest = std::max(step.send_bytes, step.receive_bytes);
  size_t part = std::min<size_t>(4 << 10, ring.most);
  while (part < ring.most && part < longest / 8) part *= 2;
  const uint64_t parts = ring.bytes / part;
  uint64_t written = own_.parts.load(std::memory_order_relaxed);
  uint64_t room_until = other_.taken.load(std::memory_order_acquire) + parts;
  uint64_t read = own_.taken.load(std::memory_order_relaxed);
  size_t sent = 0;
  size_t received = 0;
  size_t own = 0;
  Spin spin;
  while (sent < step.send_bytes || received < step.receive_bytes || own < step.own_bytes) {
    const size_t before = sent + received;
    if (sent < step.send_bytes && written == room_until) {
      room_until = other_.taken.load(std::memory_order_acquire) + parts;
    }
    if (sent < step.send_bytes && written < room_until) {
      const size_t bytes = std::min(part, step.send_bytes - sent);
      std::byte* const to = own_.ring + written % parts * part;
      if (ring.past_cache) {
        comm::StreamCopy(to, step.send + sent, bytes);
      } else {
        std::memcpy(to, step.send + sent, bytes);
      }
      own_.parts.store(++written, std::memory_order_release);
      sent += bytes;
    }
    if (received < step.receive_bytes && other_.parts.load(std::memory_order_acquire) > read) {
      const size_t bytes = std::min(part, step.receive_bytes - received);
      TakeBytes(step, other_.ring + read % parts * part, received, bytes);
      own_.taken.store(++read, std::memory_order_release);
      received += bytes;
    }
    if (sent + received != before) {
      spin = Spin();
    } else if (own == step.own_bytes) {
      spin.Once();
    } else {
      const size_t bytes = std::min(kOwnPart, step.own_bytes - own);
      std::memcpy(step.own_to + own, step.own_from + own, bytes);
      own += bytes;
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<BarePair>> JoinBareMemory(const std::string& folder, int rank) {
  if (rank == 0) {
    auto memory = measure::SharedMemory::Create(kMemoryBytes);
    if (!memory.ok()) return memory.status();
    if (absl::Status left = LeaveNote(folder, (*memory)->Path()); !left.ok()) return left;
    return std::make_unique<BareMemory>(*std::move(memory), rank);
  }
  const auto note = ReadNote(folder);
  if (!note.ok()) return note.status();
  auto memory = measure::SharedMemory::Open(*note, kMemoryBytes);
  if (!memory.ok()) return memory.status();
  return std::make_unique<BareMemory>(*std::move(memory), rank);
}

}  // namespace cohort::collperf
