// The gate: where all ranks of a benchmark meet before each timed call. It belongs to no system under test, so every
// system starts from the same state, and it carries the samples home afterwards.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/measure/flag_ping_pong.h"
#include "tools/measure/shared_memory.h"

namespace cohort::measure {

// The most numbers that Max and Sum take at a time.
inline constexpr int kMostNumbers = 1 << 16;

// Used by one thread per rank. Every call is collective. Waiting longer than two minutes is kDeadlineExceeded.
class Gate {
 public:
  virtual ~Gate() = default;
  // Returns when all ranks have called it. Spins, then yields.
  virtual absl::Status Wait() = 0;
  // Replaces each number by the largest, or the sum, of those that the ranks have at this place; on every rank.
  virtual absl::Status Max(std::span<uint64_t> numbers) = 0;
  virtual absl::Status Sum(std::span<uint64_t> numbers) = 0;
  // The one-way latency of a flag between ranks 0 and 1, in nanoseconds (flag_ping_pong.h), on every rank. 0: it is not
  // known, because there is one rank, or the ranks share no memory.
  virtual absl::StatusOr<double> FlagNs() { return 0.0; }
  // For the head of a report: "shared memory".
  virtual std::string Describe() const = 0;
  // Called now and then while this rank waits: some systems finish a call for their peers only when they are polled. A
  // status that is not OK ends the wait with it: a rank will not come.
  void set_idle(std::function<absl::Status()> idle) { idle_ = std::move(idle); }

 protected:
  absl::Status Idle() const { return idle_ ? idle_() : absl::OkStatus(); }

 private:
  std::function<absl::Status()> idle_;
};

// The memory that the ranks of a gate in shared memory see. It is all zeros at first.
struct GateMemory {
  struct Row {
    uint64_t numbers[kMostNumbers];
  };
  alignas(128) std::atomic<uint64_t> arrivals;
  std::atomic<uint64_t> broken;  // 1: a rank has given up
  FlagMemory flags;
  alignas(128) Row rows[1];  // one for each rank
};
// Bytes of a GateMemory for `ranks` ranks.
constexpr size_t GateBytes(int ranks) {
  return sizeof(GateMemory) + static_cast<size_t>(ranks - 1) * sizeof(GateMemory::Row);
}

// Ranks of one machine that map the same GateMemory, which outlives the gate. `spins`: how often to look before
// yielding; little where ranks share CPUs.
class SharedMemoryGate final : public Gate {
 public:
  SharedMemoryGate(GateMemory* memory, int rank, int ranks, int spins)
      : memory_(memory), rank_(rank), ranks_(ranks), spins_(spins), flag_(&memory->flags, rank) {}
  absl::Status Wait() override;
  absl::Status Max(std::span<uint64_t> numbers) override;
  absl::Status Sum(std::span<uint64_t> numbers) override;
  absl::StatusOr<double> FlagNs() override;
  std::string Describe() const override { return "shared memory"; }
  // Lets every other rank's Wait fail, at once and for ever.
  void Break() { memory_->broken.store(1, std::memory_order_release); }

 private:
  template <typename Combine>
  absl::Status Reduce(std::span<uint64_t> numbers, Combine combine);

  GateMemory* memory_;
  int rank_;
  int ranks_;
  int spins_;
  uint64_t gates_ = 0;
  FlagPingPong flag_;  // of ranks 0 and 1
};

// Looks before yielding that suit `ranks` ranks on this machine's CPUs.
int GateSpins(int ranks);

}  // namespace cohort::measure
