#include "cohort/launcher/agent/watch/keeper.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <utility>

#include "cohort/launcher/agent/watch/open_mpi_folder.h"
#include "cohort/launcher/agent/watch/process_name.h"
#include "cohort/runtime/process/open_descriptors.h"

namespace cohort::launcher {
namespace {

constexpr int kMaxRestarts = 10;
// For what is in the cgroup to die. The kernel may take seconds to give back a large process' memory.
constexpr std::chrono::seconds kKillLimit{10};
constexpr std::chrono::hours kForLong{24};

}  // namespace

void Keeper::Start() {
  runtime::ProcessWatch agent(agent_);
  if (!agent.valid() || ::getppid() != agent_) return;  // the number may be somebody else's
  const pid_t pid = ::fork();
  if (pid == 0) Guard(&agent);
  if (pid < 0) return;
  pid_ = pid;
  watch_ = runtime::ProcessWatch(pid);
}

// The standard streams are the sentinel's, which are /dev/null.
void Keeper::Guard(runtime::ProcessWatch* agent) {
  NameProcess(kKeeperName, kKeeperName);
  ::setsid();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  (void)!::chdir("/");
  constexpr int kAgent = 3;
  agent->MoveDescriptorTo(kAgent);
  runtime::CloseFrom(agent->fd() == kAgent ? kAgent + 1 : kAgent);
  while (!agent->WaitForEnd(kForLong)) {
  }
  cgroup_->Remove(kKillLimit);
  RemoveOpenMpiFolders(address_);
  ::_exit(0);
}

void Keeper::OnEnded() {
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  watch_ = runtime::ProcessWatch();
  if (restarts_++ < kMaxRestarts) Start();
}

void Keeper::End() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  watch_ = runtime::ProcessWatch();
}

}  // namespace cohort::launcher
