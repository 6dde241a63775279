#include "tools/measure/instruction_counter.h"

#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::measure {
namespace {

class PerfCounter final : public InstructionCounter {
 public:
  explicit PerfCounter(runtime::FileDescriptor fd) : fd_(std::move(fd)) {}
  std::string method() const override { return "perf_event"; }

 private:
  uint64_t CountErased(void (*work)(void*), void* context) override {
    ioctl(fd_.get(), PERF_EVENT_IOC_RESET, 0);
    ioctl(fd_.get(), PERF_EVENT_IOC_ENABLE, 0);
    work(context);
    ioctl(fd_.get(), PERF_EVENT_IOC_DISABLE, 0);
    uint64_t count = 0;
    return read(fd_.get(), &count, sizeof count) == sizeof count ? count : 0;
  }
  runtime::FileDescriptor fd_;
};

#if defined(__x86_64__)
volatile uint64_t steps = 0;

class StepCounter final : public InstructionCounter {
 public:
  StepCounter() {
    struct sigaction action = {};
    action.sa_handler = [](int) { steps = steps + 1; };
    sigemptyset(&action.sa_mask);
    sigaction(SIGTRAP, &action, &before_);
  }
  ~StepCounter() override { sigaction(SIGTRAP, &before_, nullptr); }
  std::string method() const override { return "single steps"; }

 private:
  // Sets or clears the trap flag. Keeps off the bytes below the stack pointer, which may be in use.
  static void SetTrap() {
    asm volatile("lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::
                     : "cc", "memory");
  }
  static void ClearTrap() {
    asm volatile("lea -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::
                     : "cc", "memory");
  }
  uint64_t CountErased(void (*work)(void*), void* context) override {
    steps = 0;
    SetTrap();
    work(context);
    ClearTrap();
    return steps;
  }
  struct sigaction before_ = {};
};
#endif

}  // namespace

absl::StatusOr<std::unique_ptr<InstructionCounter>> InstructionCounter::Make() {
  perf_event_attr attributes = {};
  attributes.type = PERF_TYPE_HARDWARE;
  attributes.size = sizeof attributes;
  attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
  attributes.disabled = 1;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  runtime::FileDescriptor fd(
      static_cast<int>(syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC)));
  const std::string why = std::strerror(errno);
  std::unique_ptr<InstructionCounter> counter;
  if (fd.get() >= 0) {
    counter = std::make_unique<PerfCounter>(std::move(fd));
    if (counter->Count([] { asm volatile("nop\n nop\n nop\n nop"); }) > 0) return counter;
  }
#if defined(__x86_64__)
  counter = std::make_unique<StepCounter>();
  if (counter->Count([] { asm volatile("nop\n nop\n nop\n nop"); }) > 0) return counter;
  return absl::UnavailableError("instructions can't be counted: perf_event_open failed (" + why +
                                "), and the trap flag stops nothing here");
#else
  return absl::UnavailableError("instructions can't be counted: perf_event_open failed (" + why +
                                "), and single steps need x86");
#endif
}

}  // namespace cohort::measure
