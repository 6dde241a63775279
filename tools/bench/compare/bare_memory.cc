// Two ranks over shared memory: a line and its stamp for a small message, and for a longer one each way in which a
// message can travel between processes: copied through a ring, with plain stores or past the cache, read by
// process_vm_readv, and from windows read in place.
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/transport/stream_copy.h"
#include "cohort/comm/types.h"
#include "cohort/runtime/engine/wait_policy.h"
#include "tools/bench/compare/bare_pair.h"
#include "tools/measure/shared_memory.h"

namespace cohort::bench {
namespace {

constexpr size_t kSlots = 32;
constexpr size_t kInLine = 56;  // beside the stamp
constexpr size_t kInSlot = 1024;
constexpr size_t kRingBytes = 2 << 20;
constexpr size_t kWindowBytes = 1 << 30;
constexpr size_t kShared = 16 << 10;   // from here on both work on what goes one way
constexpr size_t kStaging = 64 << 10;  // of what is read and then added

struct alignas(128) Slot {
  std::byte line[kInLine];
  std::atomic<uint64_t> stamp;
  std::byte rest[kInSlot];
};

// One rank's half of the shared memory, which only it writes (but for windows).
struct Half {
  Slot slots[kSlots];
  alignas(128) std::atomic<uint64_t> parts;  // written to the ring since the beginning
  alignas(128) std::atomic<uint64_t> taken;  // of the other's parts
  alignas(128) std::atomic<uint64_t> done;   // of the other's messages that were read in place
  alignas(4096) std::byte ring[kRingBytes];
};

constexpr size_t kWindowsAt = (2 * sizeof(Half) + 4095) / 4096 * 4096;
constexpr size_t kMemoryBytes = kWindowsAt + 4 * kWindowBytes;  // pages come when they are touched

void WaitFor(const std::atomic<uint64_t>& counter, uint64_t value) {
  while (counter.load(std::memory_order_acquire) < value) runtime::Pause();
}

struct Ring {
  size_t bytes;
  size_t most;  // in a part
  bool past_cache;
};
// Rings within a level 2 cache, beyond it, and past it. The last two ways of private memory are reading, and reading
// one half while the sender writes the other, where only one rank sends.
constexpr std::array<Ring, 4> kRings = {
    {{128 << 10, 4 << 10, false}, {2 << 20, 32 << 10, false}, {128 << 10, 8 << 10, true}, {1 << 20, 128 << 10, true}}};
constexpr int kRead = static_cast<int>(kRings.size());
constexpr int kReadAndWrite = kRead + 1;

// Places of a step's buffers, as PlaceOf.
struct Places {
  uint64_t send = 0;
  uint64_t receive = 0;
  uint64_t addend = 0;
  uint64_t twin = 0;
};

size_t Half64(size_t bytes) { return bytes / 2 / 64 * 64; }

class BareMemory final : public BarePair {
 public:
  BareMemory(std::unique_ptr<measure::SharedMemory> memory, int rank)
      : memory_(std::move(memory)),
        base_(static_cast<std::byte*>(memory_->data())),
        own_(reinterpret_cast<Half*>(base_)[rank]),
        other_(reinterpret_cast<Half*>(base_)[1 - rank]),
        windows_(base_ + kWindowsAt + static_cast<size_t>(rank) * 2 * kWindowBytes),
        staging_(kStaging) {
    peer_ = static_cast<pid_t>(Swap(static_cast<uint64_t>(::getpid())));
    // A kernel may forbid it.
    const auto probe = reinterpret_cast<uint64_t>(&staging_);
    const uint64_t address = Swap(probe);
    std::byte byte{};
    reads_ = Swap(ReadOther(address, &byte, 1) ? 1 : 0) == 1;
    reads_ = Swap(reads_ ? 1 : 0) == 1 && reads_;
  }

  void Run(const BareStep& step) override {
    if (std::max(step.send_bytes, step.receive_bytes) <= kInSlot) return RunSmall(step);
    if (in_window_ || way_ >= kRead) return RunInPlace(step);
    RunRing(step, kRings[static_cast<size_t>(way_)]);
  }
  bool TwinSums() const override { return in_window_; }
  int ways(bool window) const override { return window ? 2 : reads_ ? kReadAndWrite + 1 : kRead; }
  void UseWay(bool window, int way) override {
    in_window_ = window;
    way_ = way;
  }
  uint64_t Swap(uint64_t value) override {
    uint64_t other = 0;
    RunSmall({.send = reinterpret_cast<const std::byte*>(&value),
              .send_bytes = sizeof value,
              .receive = reinterpret_cast<std::byte*>(&other),
              .receive_bytes = sizeof other});
    return other;
  }
  std::byte* Window(int buffer) override { return windows_ + static_cast<size_t>(buffer) * kWindowBytes; }
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
  void RunSmall(const BareStep& step) {
    if (step.send_bytes > 0) Put(step.send, step.send_bytes);
    if (step.receive_bytes > 0) TakeBytes(step, Await(step.receive_bytes), 0, step.receive_bytes);
  }
  bool ReadOther(uint64_t address, std::byte* to, size_t bytes) const {
    const iovec local{to, bytes};
    const iovec remote{reinterpret_cast<void*>(address), bytes};  // NOLINT(performance-no-int-to-ptr)
    return ::process_vm_readv(peer_, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
  }
  // In a window from the beginning of the shared memory, else an address.
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
  Half& own_;
  Half& other_;
  std::byte* const windows_;
  std::vector<std::byte> staging_;
  pid_t peer_ = 0;
  bool reads_ = false;
  bool in_window_ = false;
  int way_ = 0;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  uint64_t lent_ = 0;  // times that the other has used this rank's memory
  uint64_t used_ = 0;  // and this one the other's
};

// Both say where their memory is and, where only one of them sends, each does one half of the work.
void BareMemory::RunInPlace(const BareStep& step) {
  const Places own{PlaceOf(step.send), PlaceOf(step.receive), PlaceOf(step.addend), PlaceOf(step.twin)};
  const bool one_way = step.send_bytes == 0 || step.receive_bytes == 0;
  const bool shares = one_way && std::max(step.send_bytes, step.receive_bytes) >= kShared &&
                      (in_window_ || (way_ == kReadAndWrite && !step.one_way_sum));
  const bool puts = step.send_bytes > 0 || shares;
  if (puts) Put(reinterpret_cast<const std::byte*>(&own), sizeof own);
  if (step.receive_bytes > 0 || shares) {
    Places others;
    std::memcpy(&others, Await(sizeof others), sizeof others);
    if (step.receive_bytes > 0) {
      TakeInPlace(step, others, shares ? Half64(step.receive_bytes) : step.receive_bytes);
    } else {
      GiveInPlace(step, others, Half64(step.send_bytes));
    }
    own_.done.store(++used_, std::memory_order_release);
  }
  if (puts) WaitFor(other_.done, ++lent_);
}

// The first `bytes` bytes of what the other sends.
void BareMemory::TakeInPlace(const BareStep& step, const Places& others, size_t bytes) {
  if (!in_window_) return ReadPrivate(step, others.send, bytes);
  const std::byte* const place = base_ + others.send;
  if (step.twin != nullptr) {
    static const comm::FoldKernel fold = comm::FindFoldKernel(comm::DataType::kFloat32, comm::ReduceOp::kSum);
    void* const outs[] = {step.receive, base_ + others.twin + (step.receive - step.twin)};
    const void* const ins[] = {step.addend, place};
    return fold(outs, 2, ins, 2, bytes / sizeof(float), way_ == 1);
  }
  if (way_ == 1 && step.addend == nullptr) return comm::StreamCopy(step.receive, place, bytes);
  TakeBytes(step, place, 0, bytes);
}

// Puts what is sent from `at` on into the other's memory.
void BareMemory::GiveInPlace(const BareStep& step, const Places& others, size_t at) {
  const size_t bytes = step.send_bytes - at;
  if (!in_window_) {
    const iovec local{const_cast<std::byte*>(step.send) + at, bytes};
    const iovec remote{reinterpret_cast<void*>(others.receive + at), bytes};  // NOLINT(performance-no-int-to-ptr)
    if (::process_vm_writev(peer_, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes)) std::_Exit(1);
    return;
  }
  const BareStep there{.receive = base_ + others.receive,
                       .receive_bytes = step.send_bytes,
                       .addend = step.one_way_sum ? base_ + others.addend : nullptr};
  if (way_ == 1 && !step.one_way_sum) return comm::StreamCopy(there.receive + at, step.send + at, bytes);
  TakeBytes(there, step.send + at, at, bytes);
}

void BareMemory::ReadPrivate(const BareStep& step, uint64_t address, size_t bytes) {
  if (step.addend == nullptr) {
    if (!ReadOther(address, step.receive, bytes)) std::_Exit(1);
    return;
  }
  for (size_t at = 0; at < bytes; at += kStaging) {
    const size_t part = std::min(kStaging, bytes - at);
    if (!ReadOther(address + at, staging_.data(), part)) std::_Exit(1);
    TakeBytes(step, staging_.data(), at, part);
  }
}

void BareMemory::RunRing(const BareStep& step, const Ring& ring) {
  const size_t longest = std::max(step.send_bytes, step.receive_bytes);
  size_t part = std::min<size_t>(4 << 10, ring.most);
  while (part < ring.most && part < longest / 8) part *= 2;
  const uint64_t parts = ring.bytes / part;
  uint64_t written = own_.parts.load(std::memory_order_relaxed);
  uint64_t read = own_.taken.load(std::memory_order_relaxed);
  size_t sent = 0;
  size_t received = 0;
  while (sent < step.send_bytes || received < step.receive_bytes) {
    if (sent < step.send_bytes && written - other_.taken.load(std::memory_order_acquire) < parts) {
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

}  // namespace cohort::bench
