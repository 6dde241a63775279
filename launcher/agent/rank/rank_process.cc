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
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/launcher/agent/watch/limit_mark.h"
#include "cohort/launcher/base/open_files.h"
#include "cohort/launcher/base/pipe.h"

namespace cohort::launcher {
namespace {

enum class Step : int { kWorkingDirectory, kNullDevice, kStandardStreams, kParentGone, kExec };

struct Failure {
  Step step;
  int error;
};

// Everything the child needs, prepared before the fork: the parent has threads, so the child may only make system
// calls.
struct ChildPlan {
  std::vector<char*> argv;
  std::vector<char*> environment;
  const char* path = nullptr;
  const char* working_directory = nullptr;
  cpu_set_t* cpus = nullptr;
  size_t cpu_bytes = 0;
  rlimit open_files{};
  rlim_t limit_mark = 0;  // 0: none
  int input = -1;         // none: /dev/null
  int output = -1;
  int error = -1;
  int exec_error = -1;
  pid_t parent = 0;
};

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void Fail(const ChildPlan& plan, Step step) {
  const Failure failure{step, errno};
  (void)!::write(plan.exec_error, &failure, sizeof failure);
  ::_exit(127);
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) Fail(plan, Step::kParentGone);  // it died before the line above
  sigset_t none;
  ::sigemptyset(&none);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan.cpus != nullptr) ::sched_setaffinity(0, plan.cpu_bytes, plan.cpus);  // a hint: cpusets may have changed
  const int input = plan.input >= 0 ? plan.input : ::open("/dev/null", O_RDONLY);
  if (input < 0) Fail(plan, Step::kNullDevice);
  if (::dup2(input, 0) < 0 || ::dup2(plan.output, 1) < 0 || ::dup2(plan.error, 2) < 0) {
    Fail(plan, Step::kStandardStreams);
  }
  constexpr unsigned kCloexec = 4;  // CLOSE_RANGE_CLOEXEC: exec_error must live until then
  ::syscall(SYS_close_range, 3, ~0U, kCloexec);
  ::setrlimit(RLIMIT_NOFILE, &plan.open_files);
  if (plan.limit_mark != 0) CarryLimitMark(plan.limit_mark);
  if (::chdir(plan.working_directory) != 0) Fail(plan, Step::kWorkingDirectory);
  ::execve(plan.path, plan.argv.data(), plan.environment.data());
  Fail(plan, Step::kExec);
}

absl::Status WhyNotExecuted(const Failure& failure, const RankCommand& command) {
  const std::string cause = std::strerror(failure.error);
  switch (failure.step) {
    case Step::kWorkingDirectory:
      return absl::InternalError("can't enter the working directory " + command.working_directory + ": " + cause);
    case Step::kNullDevice:
      return absl::InternalError("can't open /dev/null, a rank's standard input: " + cause + "; mount /dev");
    case Step::kStandardStreams:
      return absl::InternalError("can't set up the standard streams: " + cause);
    case Step::kParentGone:
      return absl::AbortedError("the agent ended while the rank was being started");
    case Step::kExec:
      break;
  }
  const std::string text = "can't execute " + command.path + ": " + cause;
  if (failure.error == ENOENT) return absl::NotFoundError(text + " (the program, or the interpreter in its #! line)");
  if (failure.error == EACCES || failure.error == EPERM) return absl::PermissionDeniedError(text);
  if (failure.error == ETXTBSY) {
    return absl::PermissionDeniedError(text + "; somebody has it open to write: wait for them, or start a copy");
  }
  if (failure.error == ELOOP) {
    return absl::PermissionDeniedError(text + "; links, or #! lines, lead from one to the next: name what they mean");
  }
  if (failure.error == ENOEXEC) {
    return absl::PermissionDeniedError(text + "; a script needs a first line such as #!/bin/sh");
  }
  if (failure.error == E2BIG) return absl::InternalError(text + "; shorten the arguments or the environment");
  return absl::InternalError(text);
}

}  // namespace

absl::StatusOr<RankProcess> StartRank(const RankCommand& command) {
  RankProcess process;
  Pipe input, output, error, exec_error;
  if (!output.Open() || !error.Open() || !exec_error.Open() || (command.reads_input && !input.Open())) {
    return absl::ResourceExhaustedError(std::string("no descriptors for a rank's pipes: ") + std::strerror(errno) +
                                        "; raise ulimit -n or run fewer ranks on a node");
  }
  process.input = std::move(input.write_end);
  process.output = std::move(output.read_end);
  process.error = std::move(error.read_end);
  process.exec_error = std::move(exec_error.read_end);
  for (const runtime::FileDescriptor* fd : {&process.output, &process.error, &process.exec_error}) {
    ::fcntl(fd->get(), F_SETFL, ::fcntl(fd->get(), F_GETFL) | O_NONBLOCK);
  }
  ChildPlan plan;
  plan.argv = Pointers(command.argv);
  plan.environment = Pointers(command.environment);
  plan.path = command.path.c_str();
  plan.working_directory = command.working_directory.c_str();
  plan.input = input.read_end.get();
  plan.output = output.write_end.get();
  plan.error = error.write_end.get();
  plan.exec_error = exec_error.write_end.get();
  plan.parent = ::getpid();
  plan.open_files = UsersOpenFileLimit();
  for (const std::string& variable : command.environment) {
    if (variable.starts_with("COHORT_AGENT=")) plan.limit_mark = LimitMark(variable);
  }
  if (!command.cpus.empty()) {
    const int limit = *std::max_element(command.cpus.begin(), command.cpus.end()) + 1;
    plan.cpus = CPU_ALLOC(limit);
    plan.cpu_bytes = CPU_ALLOC_SIZE(limit);
    CPU_ZERO_S(plan.cpu_bytes, plan.cpus);
    for (const int cpu : command.cpus) CPU_SET_S(cpu, plan.cpu_bytes, plan.cpus);
  }
  pid_t pid = command.cgroup >= 0 ? ForkInto(command.cgroup) : -1;
  if (pid < 0) pid = ::fork();
  if (pid == 0) RunChild(plan);
  const int fork_errno = errno;
  if (plan.cpus != nullptr) CPU_FREE(plan.cpus);
  if (pid < 0) {
    return absl::ResourceExhaustedError(std::string("no process for a rank: ") + std::strerror(fork_errno) +
                                        "; raise ulimit -u or the cgroup's pids.max");
  }
  ::setpgid(pid, pid);  // here too, so that the group exists before either side goes on
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
