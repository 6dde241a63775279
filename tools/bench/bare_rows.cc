#include "tools/bench/bare_rows.h"

#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cohort/comm/reduce/reduce.h"
#include "cohort/comm/types.h"

namespace cohort::bench {
namespace {

constexpr size_t kRingBytes = 128 << 10;

// One rank's part of the shared memory; only that rank writes to it.
struct Part {
  alignas(128) std::atomic<uint64_t> sent;      // messages, since the beginning
  alignas(128) std::atomic<uint64_t> received;  // of the other's
  alignas(4096) std::byte ring[kRingBytes];
};

void WaitFor(const std::atomic<uint64_t>& counter, uint64_t value) {
  for (int spins = 0; counter.load(std::memory_order_acquire) < value; ++spins) {
    if (spins > 2000) sched_yield();
  }
}

// Mapped before the processes fork.
std::byte* SharedBytes(size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("no shared memory");
    std::exit(1);
  }
  std::memset(memory, 0, bytes);
  return static_cast<std::byte*>(memory);
}

// One rank's end of the two rings.
class Rings {
 public:
  Rings(Part* parts, int rank, size_t chunk) : own_(parts[rank]), other_(parts[1 - rank]), chunk_(chunk) {}

  void Send(const std::byte* data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += chunk_) {
      const uint64_t messages = kRingBytes / chunk_;
      if (sent_ >= messages) WaitFor(other_.received, sent_ - messages + 1);
      std::memcpy(own_.ring + sent_ % messages * chunk_, data + at, chunk_);
      own_.sent.store(++sent_, std::memory_order_release);
    }
  }
  // Calls take(message, offset) for each.
  template <typename Take>
  void Receive(size_t bytes, Take take) {
    for (size_t at = 0; at < bytes; at += chunk_) {
      WaitFor(other_.sent, received_ + 1);
      take(other_.ring + received_ % (kRingBytes / chunk_) * chunk_, at);
      own_.received.store(++received_, std::memory_order_release);
    }
  }

 private:
  Part& own_;
  Part& other_;
  const size_t chunk_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

// Aligned, as vector instructions like it.
struct alignas(64) CacheLine {
  std::byte bytes[64];
};
struct Buffer {
  explicit Buffer(size_t bytes) : lines(bytes / sizeof(CacheLine)) {}
  std::byte* data() { return lines.data()->bytes; }
  std::vector<CacheLine> lines;
};

comm::ReduceKernel Sum() { return comm::FindReduceKernel(comm::DataType::kFloat32, comm::ReduceOp::kSum); }

}  // namespace

Statistics BareAllReduce(size_t bytes, size_t chunk, int calls) {
  const size_t shared_bytes = 2 * sizeof(Part);
  std::byte* shared = SharedBytes(shared_bytes);
  const Statistics statistics = RunPair([=](Side& side) {
    Rings rings(reinterpret_cast<Part*>(shared), side.rank(), chunk);
    const size_t half = bytes / 2;
    Buffer input(bytes), output(bytes);
    const size_t own = static_cast<size_t>(side.rank()) * half, others = half - own;
    const auto sum = Sum();
    const auto call = [&] {
      rings.Send(input.data() + others, half);
      rings.Receive(half, [&](const std::byte* message, size_t at) {
        sum(output.data() + own + at, input.data() + own + at, message, chunk / sizeof(float));
      });
      rings.Send(output.data() + own, half);
      rings.Receive(
          half, [&](const std::byte* message, size_t at) { std::memcpy(output.data() + others + at, message, chunk); });
    };
    for (int i = 0; i < 100; ++i) call();
    side.TimeGated(calls, call);
  });
  ::munmap(shared, shared_bytes);
  return statistics;
}

Statistics BareWindowAllReduce(size_t bytes, int calls) {
  const size_t flags = 2 * sizeof(Part), shared_bytes = flags + 4 * bytes;
  std::byte* shared = SharedBytes(shared_bytes);
  const Statistics statistics = RunPair([=](Side& side) {
    Part* parts = reinterpret_cast<Part*>(shared);
    const size_t half = bytes / 2;
    // The inputs of both ranks, from the half that this one adds.
    const std::byte* inputs[2];
    std::byte* outputs[2];
    for (size_t rank = 0; rank < 2; ++rank) {
      inputs[rank] = shared + flags + 2 * rank * bytes + static_cast<size_t>(side.rank()) * half;
      outputs[rank] = shared + flags + (2 * rank + 1) * bytes + static_cast<size_t>(side.rank()) * half;
    }
    const auto sum = Sum();
    uint64_t step = 0;
    const auto meet = [&] {
      parts[side.rank()].sent.store(++step, std::memory_order_release);
      WaitFor(parts[1 - side.rank()].sent, step);
    };
    const auto call = [&] {
      meet();
      sum(outputs[side.rank()], inputs[0], inputs[1], half / sizeof(float));
      std::memcpy(outputs[1 - side.rank()], outputs[side.rank()], half);
      meet();
    };
    for (int i = 0; i < 100; ++i) call();
    side.TimeGated(calls, call);
  });
  ::munmap(shared, shared_bytes);
  return statistics;
}

}  // namespace cohort::bench
