#include "cohort/launcher/agent/evidence/thread_snapshot.h"

#include <elf.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "cohort/launcher/agent/watch/process_state.h"

namespace cohort::launcher {
namespace {

using SnapshotClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kThreadStopsWithin{20};
// One that is about to run stops when it gets a CPU: behind others that spin, as MPI's ranks do, after their turns.
constexpr std::chrono::milliseconds kRunnableStopsWithin{150};
constexpr std::chrono::milliseconds kProcessTakes{200};
constexpr size_t kStackPage = 4096;

// How a snapshot is written: this, then for each thread its head and the bytes of its stack.
struct SnapshotHead {
  uint32_t rank, pid, threads;
};
struct ThreadHead {
  uint32_t thread, stack_bytes;
  char name[ThreadSnapshot::kMaxName + 1];
  uint64_t registers[ThreadSnapshot::kRegisters];
};

#if defined(__x86_64__)

std::vector<pid_t> ThreadsOf(pid_t pid) {
  std::vector<pid_t> threads;
  std::error_code error;
  std::filesystem::directory_iterator at("/proc/" + std::to_string(pid) + "/task", error);
  for (const std::filesystem::directory_iterator end; !error && at != end; at.increment(error)) {
    if (threads.size() >= ProcessSnapshot::kMaxThreads) break;
    threads.push_back(std::atoi(at->path().filename().c_str()));
  }
  return threads;
}

bool ReadRegisters(pid_t thread, ThreadSnapshot* snapshot) {
  user_regs_struct user{};
  iovec part{&user, sizeof user};
  errno = 0;
  if (::ptrace(PTRACE_GETREGSET, thread, NT_PRSTATUS, &part) != 0) return false;
  if (part.iov_len != sizeof user) return false;  // a program of 32 bits
  const uint64_t registers[] = {user.rax, user.rdx, user.rcx, user.rbx, user.rsi, user.rdi, user.rbp, user.rsp, user.r8,
                                user.r9,  user.r10, user.r11, user.r12, user.r13, user.r14, user.r15, user.rip};
  static_assert(sizeof registers == sizeof snapshot->registers);
  std::memcpy(snapshot->registers, registers, sizeof registers);
  return true;
}

// Page by page, since the kernel reads whole parts only. What lies above the stack ends it.
std::string ReadStack(pid_t pid, uint64_t begin) {
  std::string stack(ThreadSnapshot::kMaxStack, '\0');
  std::vector<iovec> pages;
  for (size_t at = 0; at < stack.size();) {
    const size_t bytes = std::min(kStackPage - (begin + at) % kStackPage, stack.size() - at);
    pages.push_back({reinterpret_cast<void*>(begin + at), bytes});  // NOLINT(performance-no-int-to-ptr)
    at += bytes;
  }
  const iovec all{stack.data(), stack.size()};
  const ssize_t got = ::process_vm_readv(pid, &all, 1, pages.data(), pages.size(), 0);
  stack.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return stack;
}

// The signal with which a stopped thread goes on: one that had just been delivered, in place of our stop.
int SignalThatWasDelivered(pid_t thread) {
  siginfo_t info{};
  constexpr int kOurStop = SIGTRAP | (PTRACE_EVENT_STOP << 8);
  if (::ptrace(PTRACE_GETSIGINFO, thread, 0, &info) != 0 || info.si_code == kOurStop) return 0;
  return info.si_signo;
}

enum class Traced { kTaken, kNotInTime, kForbidden };

// PTRACE_SEIZE, not PTRACE_ATTACH: its stop is no SIGSTOP, which would outlive this process. The loop of this process
// may take the stop out of wait(), so it is seen by the registers, which can be read from then on.
Traced TakeThread(pid_t pid, pid_t thread, std::chrono::milliseconds within, ThreadSnapshot* snapshot) {
  if (::ptrace(PTRACE_SEIZE, thread, 0, 0) != 0) return errno == EPERM ? Traced::kForbidden : Traced::kNotInTime;
  if (::ptrace(PTRACE_INTERRUPT, thread, 0, 0) != 0) return Traced::kNotInTime;
  const auto limit = SnapshotClock::now() + within;
  bool read = false;
  while (!(read = ReadRegisters(thread, snapshot)) && errno == ESRCH && SnapshotClock::now() < limit) {
    constexpr timespec kPause{0, 20'000};
    ::nanosleep(&kPause, nullptr);
  }
  if (read) snapshot->stack = ReadStack(pid, snapshot->registers[ThreadSnapshot::kStackPointer]);
  ::ptrace(PTRACE_DETACH, thread, 0, SignalThatWasDelivered(thread));
  return read ? Traced::kTaken : Traced::kNotInTime;
}

#endif

}  // namespace

ProcessSnapshot TakeSnapshot(pid_t pid) {
  ProcessSnapshot snapshot;
  snapshot.pid = pid;
#if defined(__x86_64__)
  const auto limit = SnapshotClock::now() + kProcessTakes;
  for (const pid_t thread : ThreadsOf(pid)) {
    const auto state = ReadProcessState(thread);  // a thread has a folder there too, which no listing shows
    if (!state || std::string_view("RSD").find(state->state) == std::string_view::npos) continue;
    if (SnapshotClock::now() > limit) break;
    ThreadSnapshot taken;
    taken.thread = thread;
    taken.name = state->name.substr(0, ThreadSnapshot::kMaxName);
    const Traced traced =
        TakeThread(pid, thread, state->state == 'R' ? kRunnableStopsWithin : kThreadStopsWithin, &taken);
    if (traced == Traced::kForbidden && thread == pid) break;  // of another thread it may say that it is ending
    if (traced == Traced::kTaken) snapshot.threads.push_back(std::move(taken));
  }
#endif
  return snapshot;
}

std::string WriteSnapshot(const ProcessSnapshot& snapshot) {
  std::string bytes;
  const auto append = [&bytes](const auto& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  append(
      SnapshotHead{snapshot.rank, static_cast<uint32_t>(snapshot.pid), static_cast<uint32_t>(snapshot.threads.size())});
  for (const ThreadSnapshot& thread : snapshot.threads) {
    ThreadHead head{};
    head.thread = static_cast<uint32_t>(thread.thread);
    head.stack_bytes = static_cast<uint32_t>(thread.stack.size());
    std::copy_n(thread.name.begin(), std::min(thread.name.size(), ThreadSnapshot::kMaxName), head.name);
    std::memcpy(head.registers, thread.registers, sizeof head.registers);
    append(head);
    bytes += thread.stack;
  }
  return bytes;
}

std::optional<ProcessSnapshot> ReadSnapshot(std::string* bytes) {
  size_t at = 0;
  const auto take = [&](auto* value) {
    if (bytes->size() - at < sizeof *value) return false;
    std::memcpy(value, bytes->data() + at, sizeof *value);
    at += sizeof *value;
    return true;
  };
  SnapshotHead head{};
  if (!take(&head) || head.threads > ProcessSnapshot::kMaxThreads) return std::nullopt;
  ProcessSnapshot snapshot;
  snapshot.rank = head.rank;
  snapshot.pid = static_cast<pid_t>(head.pid);
  for (uint32_t i = 0; i < head.threads; ++i) {
    ThreadHead of{};
    if (!take(&of) || of.stack_bytes > ThreadSnapshot::kMaxStack || bytes->size() - at < of.stack_bytes) {
      return std::nullopt;
    }
    ThreadSnapshot thread;
    thread.thread = static_cast<pid_t>(of.thread);
    thread.name.assign(of.name, ::strnlen(of.name, sizeof of.name));
    std::memcpy(thread.registers, of.registers, sizeof of.registers);
    thread.stack.assign(*bytes, at, of.stack_bytes);
    at += of.stack_bytes;
    snapshot.threads.push_back(std::move(thread));
  }
  bytes->erase(0, at);
  return snapshot;
}

}  // namespace cohort::launcher
