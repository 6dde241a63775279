#include "cohort/launcher/agent/rank/vfork_thread.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>

#include "cohort/launcher/agent/watch/clone_arguments.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/mutex.h"

namespace cohort::launcher {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;
constexpr std::chrono::milliseconds kExecUsuallyTakes{250};
constexpr std::chrono::microseconds kLookForPid{100};

[[noreturn]] void RunWork(const ChildWork* work) {
  work->Run();
  ::_exit(127);
}

// clone3 whose child calls RunWork(work) on its own stack. The parent's pid, or the negative error. Inline, because the
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

class VforkThread {
 public:
  VforkThread() {
    void* const stack =
        ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) return;
    stack_ = stack;
    ::mprotect(stack_, 4096, PROT_NONE);
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // no handler may run in a child
    try {
      thread_ = std::thread([this] { Serve(); });
      usable_ = true;
    } catch (const std::system_error&) {
      ::munmap(std::exchange(stack_, nullptr), kStackBytes);
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  std::optional<pid_t> Start(const std::shared_ptr<const ChildWork>& work, int cgroup) {
    const runtime::MutexLock lock(mutex_);
    if (!usable_ || work_ != nullptr) return std::nullopt;
    work_ = work;
    cgroup_ = cgroup;
    pid_.store(0, std::memory_order_relaxed);
    changed_.NotifyAll();
    const runtime::Deadline deadline = runtime::Deadline::After(kExecUsuallyTakes);
    while (work_ != nullptr && changed_.Wait(mutex_, deadline)) {
    }
    // Still under way: the kernel writes the pid when the child is made, and who waits for the program has one.
    while (work_ != nullptr && pid_.load(std::memory_order_acquire) == 0) {
      (void)changed_.Wait(mutex_, runtime::Deadline::After(kLookForPid));
    }
    const pid_t pid = pid_.load(std::memory_order_acquire);
    if (pid > 0) return pid;
    if (pid == -ENOSYS || pid == -EPERM) usable_ = false;  // no clone3, or a filter that refuses it
    return std::nullopt;
  }

 private:
  [[noreturn]] void Serve() {
    for (;;) {
      CloneArguments arguments{};
      std::shared_ptr<const ChildWork> work;
      {
        const runtime::MutexLock lock(mutex_);
        while (work_ == nullptr) changed_.Wait(mutex_);
        work = work_;
        arguments = CloneInto(cgroup_);
      }
      static_assert(sizeof pid_ == sizeof(pid_t) && std::atomic<pid_t>::is_always_lock_free);
      arguments.flags |= CLONE_VM | CLONE_VFORK | CLONE_PARENT_SETTID;
      arguments.parent_tid = reinterpret_cast<uint64_t>(&pid_);
      arguments.stack = reinterpret_cast<uint64_t>(stack_);
      arguments.stack_size = kStackBytes;
      const int64_t result = CloneAndRun(&arguments, work.get());
      const runtime::MutexLock lock(mutex_);
      if (result < 0) pid_.store(static_cast<pid_t>(result), std::memory_order_release);
      work_.reset();
      changed_.NotifyAll();
    }
  }

  void* stack_ = nullptr;  // of the child; one at a time
  std::atomic<pid_t> pid_ = 0;
  std::thread thread_;  // never joined: children die when it ends

  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  bool usable_ COHORT_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const ChildWork> work_ COHORT_GUARDED_BY(mutex_);  // while it is under way
  int cgroup_ COHORT_GUARDED_BY(mutex_) = -1;
};

}  // namespace

std::optional<pid_t> StartByVfork(const std::shared_ptr<const ChildWork>& work, int cgroup) {
  static VforkThread* thread = nullptr;  // ends with the process, and its children with it
  static pid_t owner = 0;                // a fork of this process has no such thread
  if (owner != ::getpid()) {
    thread = new VforkThread;
    owner = ::getpid();
  }
  return thread->Start(work, cgroup);
}

}  // namespace cohort::launcher

#else

namespace cohort::launcher {

std::optional<pid_t> StartByVfork(const std::shared_ptr<const ChildWork>&, int) { return std::nullopt; }

}  // namespace cohort::launcher

#endif
