#include "cohort/launcher/agent/rank/clone_child.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>

#include "cohort/launcher/agent/watch/clone_arguments.h"
#include "cohort/runtime/base/sanitizer.h"

#if defined(__x86_64__) && !COHORT_ADDRESS_SANITIZER && !COHORT_THREAD_SANITIZER

#include <sched.h>

namespace cohort::launcher {
namespace {

constexpr size_t kGuardBytes = 4096;
constexpr size_t kStackBytes = size_t{64} << 10;

// The memory that a child uses until it executes its program.
class Lent {
 public:
  explicit Lent(std::shared_ptr<const ChildWork> work)
      : work_(std::move(work)),
        stack_(::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0)) {
    if (stack_ != MAP_FAILED) ::mprotect(stack_, kGuardBytes, PROT_NONE);
  }
  ~Lent() {
    if (stack_ != MAP_FAILED) ::munmap(stack_, kStackBytes);
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  const ChildWork* work() const { return work_.get(); }
  // Whether the child has left it.
  bool returned() const { return used_.load(std::memory_order_acquire) == 0; }
  // Returns false if there is no stack.
  bool AddTo(CloneArguments* arguments) {
    if (stack_ == MAP_FAILED) return false;
    static_assert(sizeof used_ == sizeof(pid_t) && std::atomic<pid_t>::is_always_lock_free);
    arguments->flags |= CLONE_VM | CLONE_CHILD_CLEARTID;
    arguments->child_tid = reinterpret_cast<uint64_t>(&used_);
    arguments->stack = reinterpret_cast<uint64_t>(stack_);
    arguments->stack_size = kStackBytes;
    return true;
  }

 private:
  const std::shared_ptr<const ChildWork> work_;
  void* const stack_;
  std::atomic<pid_t> used_ = 1;  // the kernel writes 0 when the child leaves this memory, by exec or by its end
};

// Never destroyed: children may still use it when this process ends.
std::list<Lent>& AllLent() {
  static auto* const all = new std::list<Lent>;
  return *all;
}

[[noreturn]] void RunWork(const ChildWork* work) {
  work->Run();
  __builtin_unreachable();
}

// clone3 whose child calls RunWork(work) on its own stack. The child's pid, or the negative error. Inline, because the
// child must not return through a frame that it shares with the parent.
int64_t CloneAndRun(CloneArguments* arguments, const ChildWork* work) {
  int64_t result = SYS_clone3;
  register void (*function)(const ChildWork*) asm("r12") = &RunWork;
  register const ChildWork* argument asm("r13") = work;
  asm volatile(
      "syscall\n\t"
      "testq %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xorl %%ebp, %%ebp\n\t"
      "movq %%r13, %%rdi\n\t"
      "callq *%%r12\n\t"
      "hlt\n"
      "1:"
      : "+a"(result)
      : "D"(arguments), "S"(sizeof *arguments), "r"(function), "r"(argument)
      : "rcx", "r11", "memory", "cc");
  return result;
}

}  // namespace

std::optional<pid_t> StartByClone(std::shared_ptr<const ChildWork> work, int cgroup) {
  static bool refused = false;  // no clone3, or a filter against it
  if (refused) return std::nullopt;
  ReleaseExecuted();
  Lent& lent = AllLent().emplace_back(std::move(work));
  CloneArguments arguments = CloneInto(cgroup);
  int64_t result = -ENOMEM;
  if (lent.AddTo(&arguments)) {
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // no handler may run in the child
    result = CloneAndRun(&arguments, lent.work());
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  if (result > 0) return static_cast<pid_t>(result);
  AllLent().pop_back();
  refused = result == -ENOSYS || result == -EPERM;
  return std::nullopt;
}

size_t ReleaseExecuted() {
  AllLent().remove_if([](const Lent& lent) { return lent.returned(); });
  return AllLent().size();
}

}  // namespace cohort::launcher

#else

namespace cohort::launcher {

std::optional<pid_t> StartByClone(std::shared_ptr<const ChildWork>, int) { return std::nullopt; }

size_t ReleaseExecuted() { return 0; }

}  // namespace cohort::launcher

#endif
