// The memory that the conductor of a comparison shares with the ranks of all systems. The conductor gives one system at
// a time a command. Its ranks carry it out while those of all other systems sleep. A change between systems then costs
// one wake-up and no start of processes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tools/measure/gate.h"
#include "tools/measure/operation.h"

namespace cohort::measure {

inline constexpr int kMostSystems = 16;
inline constexpr int kVariants = 2;  // of a system's buffers: private memory, window memory

enum class Action : int32_t {
  kPrepare = 1,  // make buffers, check fresh data, warm up; estimate the time of a call
  kRun,          // time `calls` calls; the samples, in picoseconds, are left in the gate's rows
  kRelease,      // free the buffers
  kExit,
};

struct Command {
  Action action = Action::kExit;
  Operation operation{};
  int32_t variant = 0;
  int32_t root = 0;
  int32_t calls = 0;
  int32_t messages = 1;   // as in SystemCall
  bool rewrites = false;  // every rank writes its input again before each call
  double compute_us = 0;  // as in SystemCall
  int64_t bytes = 0;      // of a block
};

struct SystemSlot {
  alignas(128) std::atomic<uint32_t> commands;  // given so far; the ranks sleep on it
  alignas(128) std::atomic<uint32_t> answers;   // of ranks; the conductor sleeps on it
  std::atomic<uint32_t> failures;               // of ranks
  std::atomic<uint64_t> wrong;                  // elements, since the conductor last cleared it
  std::atomic<uint64_t> estimate_ps;            // of one call
  std::atomic<uint64_t> flag_before_ps;         // one-way latency of a flag between ranks 0 and 1, right before the
  std::atomic<uint64_t> flag_after_ps;          // timed calls and right after them
  char error[256];                              // of the first rank that failed
};

struct SessionMemory {
  int32_t ranks;
  int32_t conductor;  // pid
  Command command;
  SystemSlot slots[kMostSystems];
};

inline size_t GateOffset(int ranks, int slot) {
  const size_t head = (sizeof(SessionMemory) + 127) / 128 * 128;
  return head + static_cast<size_t>(slot) * GateBytes(ranks);
}
inline size_t SessionBytes(int ranks) { return GateOffset(ranks, kMostSystems); }
inline GateMemory* GateOf(SessionMemory* session, int ranks, int slot) {
  return reinterpret_cast<GateMemory*>(reinterpret_cast<char*>(session) + GateOffset(ranks, slot));
}

}  // namespace cohort::measure
