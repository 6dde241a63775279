#include "cohort/launcher/agent/rank/rank_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/agent/rank/clone_child.h"
#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/launcher/agent/watch/limit_mark.h"
#include "cohort/launcher/base/open_files.h"
#include "cohort/launcher/base/pipe.h"
#include "cohort/launcher/machine/program_file.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/process/open_descriptors.h"
#include "cohort/runtime/process/raw_call.h"

namespace cohort::launcher {
namespace {

using runtime::RawArgument;
using runtime::RawCall;

enum class Step : int { kWorkingDirectory, kNullDevice, kStandardStreams, kParentGone, kExec };

struct Failure {
  Step step;
  int error;
};

// Everything the child needs, prepared before: the parent has threads, so the child may only make system calls. It may
// share the parent's memory, and outlive the caller of StartRank there, so it holds copies.
class RankChild : public ChildWork {
 public:
  RankChild(const RankCommand& command, int input, int output, int error, int exec_error);
  ~RankChild() override {
    if (cpus_ != nullptr) CPU_FREE(cpus_);
  }
  RankChild(const RankChild&) = delete;
  RankChild& operator=(const RankChild&) = delete;

  [[noreturn]] void Run() const override;

 private:
  const RankCommand command_;
  std::vector<char*> argv_;
  std::vector<char*> environment_;
  cpu_set_t* cpus_ = nullptr;
  size_t cpu_bytes_ = 0;
  rlimit open_files_ = UsersOpenFileLimit();
  std::optional<rlimit> limit_mark_;
  const int input_;  // none: /dev/null
  const int output_;
  const int error_;
  const int exec_error_;
  const pid_t parent_ = ::getpid();
};

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

RankChild::RankChild(const RankCommand& command, int input, int output, int error, int exec_error)
    : command_(command),
      argv_(Pointers(command_.argv)),
      environment_(Pointers(command_.environment)),
      input_(input),
      output_(output),
      error_(error),
      exec_error_(exec_error) {
  const std::string mark = MarkIn(command_.environment);
  if (!mark.empty()) limit_mark_ = LimitWithMark(LimitMark(mark, command_.local_rank));
  if (command_.cpus.empty()) return;
  const int limit = *std::max_element(command_.cpus.begin(), command_.cpus.end()) + 1;
  cpus_ = CPU_ALLOC(limit);
  cpu_bytes_ = CPU_ALLOC_SIZE(limit);
  CPU_ZERO_S(cpu_bytes_, cpus_);
  for (const int cpu : command_.cpus) CPU_SET_S(cpu, cpu_bytes_, cpus_);
}

// The child's last words, by a call that has failed with that result.
[[noreturn]] void Fail(int exec_error, Step step, long result) {
  const Failure failure{step, static_cast<int>(-result)};
  RawCall(SYS_write, exec_error, RawArgument(&failure), sizeof failure);
  for (;;) RawCall(SYS_exit_group, 127);
}

void ResetSignals() {
  struct {
    unsigned long handler, flags, restorer, mask;  // as the kernel has it: SIG_DFL is 0
  } by_default{};
  constexpr long kMaskBytes = NSIG / 8;
  for (int signal = 1; signal < NSIG; ++signal) {
    RawCall(SYS_rt_sigaction, signal, RawArgument(&by_default), 0, kMaskBytes);
  }
  const unsigned long none = 0;
  RawCall(SYS_rt_sigprocmask, SIG_SETMASK, RawArgument(&none), 0, kMaskBytes);
}

void RankChild::Run() const {
  RawCall(SYS_setsid);
  RawCall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
  if (RawCall(SYS_getppid) != parent_) Fail(exec_error_, Step::kParentGone, 0);  // it died before the line above
  ResetSignals();
  // A hint: cpusets may have changed.
  if (cpus_ != nullptr) RawCall(SYS_sched_setaffinity, 0, static_cast<long>(cpu_bytes_), RawArgument(cpus_));
  const long input = input_ >= 0 ? input_ : RawCall(SYS_openat, AT_FDCWD, RawArgument("/dev/null"), O_RDONLY);
  if (input < 0) Fail(exec_error_, Step::kNullDevice, input);
  const long streams[] = {input, output_, error_};
  for (int fd = 0; fd < 3; ++fd) {
    const long result = RawCall(SYS_dup3, streams[fd], fd, 0);
    if (result < 0) Fail(exec_error_, Step::kStandardStreams, result);
  }
  runtime::CloseOnExecFrom(3);  // exec_error must live until then
  if (command_.inherited >= 0) RawCall(SYS_fcntl, command_.inherited, F_SETFD, 0);
  RawCall(SYS_prlimit64, 0, RLIMIT_NOFILE, RawArgument(&open_files_));
  if (limit_mark_) RawCall(SYS_prlimit64, 0, RLIMIT_RTTIME, RawArgument(&*limit_mark_));
  const long entered = RawCall(SYS_chdir, RawArgument(command_.working_directory.c_str()));
  if (entered < 0) Fail(exec_error_, Step::kWorkingDirectory, entered);
  const long executed = RawCall(SYS_execve, RawArgument(command_.path.c_str()), RawArgument(argv_.data()),
                                RawArgument(environment_.data()));
  Fail(exec_error_, Step::kExec, executed);
}

absl::Status WhyNotExecuted(const Failure& failure, const RankCommand& command) {
  const std::string cause = std::strerror(failure.error);
  switch (failure.step) {
    case Step::kWorkingDirectory:
      return absl::InternalError("can't enter the working directory " + command.working_directory + ": " + cause);
    case Step::kNullDevice:
      return WithRemedy(Remedy::kNoDev, absl::InternalError("can't open /dev/null, a rank's standard input: " + cause +
                                                            "; mount /dev"));
    case Step::kStandardStreams:
      return absl::InternalError("can't set up the standard streams: " + cause);
    case Step::kParentGone:
      return absl::AbortedError("the agent ended while the rank was being started");
    case Step::kExec:
      break;
  }
  const std::string text = "can't execute " + command.path + ": " + cause;
  const std::string trouble = failure.error == ETXTBSY ? "" : TroubleWithProgram(command.path);
  if (failure.error == ENOENT) {
    const bool there = ::access(command.path.c_str(), F_OK) == 0 && !trouble.empty();
    return absl::NotFoundError(text + (there ? "; " + trouble : " (the program, or the interpreter in its #! line)"));
  }
  if (failure.error == EACCES || failure.error == EPERM) {
    const bool may = ::access(command.path.c_str(), X_OK) == 0 && !trouble.empty();  // but its interpreter may not
    return absl::PermissionDeniedError(text + (may ? "; " + trouble : ""));
  }
  if (failure.error == ETXTBSY) {
    return WithRemedy(
        Remedy::kProgramOpenToWrite,
        absl::PermissionDeniedError(text + "; somebody has it open to write: wait for them, or start a copy"));
  }
  if (failure.error == ELOOP) {
    return WithRemedy(
        Remedy::kProgramLinksInCircles,
        absl::PermissionDeniedError(text + "; links, or #! lines, lead from one to the next: name what they mean"));
  }
  if (failure.error == ENOEXEC) {
    return absl::PermissionDeniedError(text + (trouble.empty() ? "" : "; " + trouble));
  }
  if (failure.error == E2BIG)
    return WithRemedy(Remedy::kArgumentsTooLong,
                      absl::InternalError(text + "; shorten the arguments or the environment"));
  return absl::InternalError(text);
}

}  // namespace

absl::StatusOr<RankProcess> StartRank(const RankCommand& command) {
  RankProcess process;
  Pipe input, output, error, exec_error;
  if (!output.Open() || !error.Open() || !exec_error.Open() || (command.reads_input && !input.Open())) {
    return WithRemedy(
        Remedy::kDescriptorsOfRanks,
        absl::ResourceExhaustedError(std::string("no descriptors for a rank's pipes: ") + std::strerror(errno) +
                                     "; raise ulimit -n or run fewer ranks on a node"));
  }
  process.input = std::move(input.write_end);
  process.output = std::move(output.read_end);
  process.error = std::move(error.read_end);
  process.exec_error = std::move(exec_error.read_end);
  for (const runtime::FileDescriptor* fd : {&process.output, &process.error, &process.exec_error}) {
    ::fcntl(fd->get(), F_SETFL, ::fcntl(fd->get(), F_GETFL) | O_NONBLOCK);
  }
  const int its_input = command.reads_input ? input.read_end.get() : command.input;
  const auto child = std::make_shared<const RankChild>(command, its_input, output.write_end.get(),
                                                       error.write_end.get(), exec_error.write_end.get());
  pid_t pid = StartByClone(child, command.cgroup).value_or(-1);
  if (pid < 0 && command.cgroup >= 0) pid = ForkInto(command.cgroup);
  if (pid < 0) pid = ::fork();
  if (pid == 0) child->Run();
  if (pid < 0) {
    return WithRemedy(Remedy::kProcessLimit,
                      absl::ResourceExhaustedError(std::string("no process for a rank: ") + std::strerror(errno) +
                                                   "; raise ulimit -u or the cgroup's pids.max"));
  }
  process.pid = pid;
  return process;
}

absl::Status ExecIsLate(const RankCommand& command, std::chrono::milliseconds limit) {
  std::string seconds = std::to_string(static_cast<double>(limit.count()) / 1000);
  seconds.resize(seconds.find('.') + (limit.count() % 1000 == 0 ? 0 : 2));
  return absl::DeadlineExceededError("executing " + command.path + " in " + command.working_directory + " takes over " +
                                     seconds + " s; does the file system that holds them answer?");
}

std::optional<absl::Status> ExecOutcome(const RankProcess& process, const RankCommand& command) {
  Failure failure{};
  ssize_t n = 0;
  do {
    n = ::read(process.exec_error.get(), &failure, sizeof failure);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return std::nullopt;
  return n == sizeof failure ? WhyNotExecuted(failure, command) : absl::OkStatus();
}

}  // namespace cohort::launcher
