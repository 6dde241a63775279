// Counts the instructions that a function executes in user space.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace cohort::measure {

// By the processor's counter (perf_event_open) where the kernel permits it, else by single steps: the trap flag of x86
// stops the thread after each instruction, for a microsecond or two. One counter at a time, used by the thread that
// made it; single steps occupy SIGTRAP meanwhile.
class InstructionCounter {
 public:
  // kUnavailable: neither works here, and why.
  static absl::StatusOr<std::unique_ptr<InstructionCounter>> Make();
  virtual ~InstructionCounter() = default;

  // "perf_event", "single steps".
  virtual std::string method() const = 0;
  // Instructions of work() without those of counting. The same work may count a few more or less the next time.
  template <typename Work>
  uint64_t Count(Work work) {
    const uint64_t empty = CountErased([](void*) {}, nullptr);
    const uint64_t all = CountErased([](void* context) { (*static_cast<Work*>(context))(); }, &work);
    return all > empty ? all - empty : 0;
  }

 protected:
  // Includes what counting itself takes, which is always the same.
  virtual uint64_t CountErased(void (*work)(void*), void* context) = 0;
};

}  // namespace cohort::measure
