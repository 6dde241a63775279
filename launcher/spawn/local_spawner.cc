#include "launcher/spawn/local_spawner.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/status/status.h"
#include "launcher/agent/agent.h"

namespace cohort::launcher {
namespace {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;

  bool Open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return false;
    // Above the standard streams, so that dup2 in the child clears close-on-exec.
    read_end.reset(::fcntl(ends[0], F_DUPFD_CLOEXEC, 3));
    write_end.reset(::fcntl(ends[1], F_DUPFD_CLOEXEC, 3));
    ::close(ends[0]);
    ::close(ends[1]);
    return read_end && write_end;
  }
};

[[noreturn]] void RunChild(pid_t parent, int input, int output, char* const* argv) {
  ::setpgid(0, 0);  // Ctrl-C is for dlaunch, which tells its agents what it means
  ::prctl(PR_SET_PDEATHSIG, kLauncherGoneSignal);
  if (::getppid() != parent) ::_exit(1);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::execv("/proc/self/exe", argv);
  ::_exit(127);
}

}  // namespace

absl::StatusOr<AgentProcess> LocalSpawner::Spawn(int index, const std::string& node) {
  Pipe input, output;
  if (!input.Open() || !output.Open()) {
    return absl::ResourceExhaustedError("no descriptors for the agent of " + node + ": " + std::strerror(errno) +
                                        "; raise ulimit -n");
  }
  // The number only tells agents apart in lists of processes; the sentinel needs the room for its own name.
  std::string number = "--node=" + std::to_string(index);
  std::string name = "dlaunch";
  std::string command = "agent";
  char* const argv[] = {name.data(), command.data(), number.data(), nullptr};
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) RunChild(parent, input.read_end.get(), output.write_end.get(), argv);
  if (pid < 0) {
    return absl::ResourceExhaustedError("no process for the agent of " + node + ": " + std::strerror(errno) +
                                        "; raise ulimit -u");
  }
  ::setpgid(pid, pid);
  return AgentProcess{pid, std::move(input.write_end), std::move(output.read_end)};
}

}  // namespace cohort::launcher
