// The registers and the stacks of another process' threads. A thread is stopped for some ten microseconds, as by a
// debugger: what is slow, unwinding its stack, is done later on the copy.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohort::launcher {

struct ThreadSnapshot {
  // Registers by DWARF's numbers for x86-64, the program counter last.
  static constexpr size_t kRegisters = 17;
  static constexpr size_t kStackPointer = 7;
  static constexpr size_t kMaxStack = 128u << 10;
  static constexpr size_t kMaxName = 15;

  pid_t thread = 0;
  std::string name;
  uint64_t registers[kRegisters] = {};
  std::string stack;  // the bytes from the stack pointer on, up to kMaxStack
};

struct ProcessSnapshot {
  static constexpr size_t kMaxThreads = 128;

  uint32_t rank = 0;
  pid_t pid = 0;
  std::vector<ThreadSnapshot> threads;
};

// Takes a copy of the process' threads. Empty without one: where ptrace is forbidden, a debugger is attached, the
// process is stopped, or the processor is not an x86-64. Yama's ptrace_scope 1 permits it to ancestors. Threads that do
// not stop in time, since the kernel is busy for them, are left out. May hang while the process executes a program.
//
// Run it on a thread that ends soon: the end lets go of threads that did not stop in time. All threads of the caller's
// process see the stops of the other's threads in wait().
ProcessSnapshot TakeSnapshot(pid_t pid);

// As bytes, for another process of this program.
std::string WriteSnapshot(const ProcessSnapshot& snapshot);
// Returns the first snapshot in `bytes`, and removes it from them. Nothing where it is not whole yet, or damaged. Pure.
std::optional<ProcessSnapshot> ReadSnapshot(std::string* bytes);

}  // namespace cohort::launcher
