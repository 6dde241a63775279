#include "cohort/launcher/agent/watch/keeper.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

#include "cohort/launcher/agent/watch/process_name.h"

namespace cohort::launcher {
namespace {

constexpr int kMaxRestarts = 10;
// For what is in the cgroup to die. The kernel may take seconds to give back a large process' memory.
constexpr std::chrono::seconds kKillLimit{10};

runtime::FileDescriptor OpenProcess(pid_t pid) {
  return runtime::FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

void Keeper::Start() {
  const runtime::FileDescriptor agent = OpenProcess(agent_);
  if (!agent.valid() || ::getppid() != agent_) return;  // the number may be somebody else's
  const pid_t pid = ::fork();
  if (pid == 0) Guard(agent.get());
  if (pid < 0) return;
  pid_ = pid;
  pidfd_ = OpenProcess(pid);
}

// The standard streams are the sentinel's, which are /dev/null.
void Keeper::Guard(int agent) {
  NameProcess(kKeeperName, kKeeperName);
  ::setsid();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  (void)!::chdir("/");
  constexpr int kAgent = 3;
  if (agent != kAgent) ::dup2(agent, kAgent);
  ::syscall(SYS_close_range, kAgent + 1, ~0U, 0);
  pollfd ended{kAgent, POLLIN, 0};
  while (::poll(&ended, 1, -1) < 0 && errno == EINTR) {
  }
  cgroup_->Remove(kKillLimit);
  ::_exit(0);
}

void Keeper::OnEnded() {
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  pidfd_.Close();
  if (restarts_++ < kMaxRestarts) Start();
}

void Keeper::End() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  pidfd_.Close();
}

}  // namespace cohort::launcher
