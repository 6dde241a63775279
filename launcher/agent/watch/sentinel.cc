#include "cohort/launcher/agent/watch/sentinel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "cohort/launcher/agent/watch/keeper.h"
#include "cohort/launcher/agent/watch/open_mpi_folder.h"
#include "cohort/launcher/agent/watch/process_name.h"
#include "cohort/launcher/agent/watch/sweep.h"
#include "cohort/launcher/base/pipe.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/runtime/process/open_descriptors.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::seconds kSweepLimit{5};
constexpr std::chrono::seconds kEndLimit{2};
constexpr int kStuckAfterMs = 3000;
constexpr int kMaxRestarts = 10;
constexpr int kGivenUp = kMaxRestarts + 1;
constexpr char kSentinelArgument[] = "--agent=";
constexpr pid_t kCgroupMade = 1;  // an agent's word to its sentinel; others are process groups

// The descriptors of a sentinel, however it was begun: the pipe from its agent, a pidfd of the agent's parent,
// and the agent's output. The last is never used: dlaunch sees the end of it when the sentinel has swept as well.
constexpr int kPipe = 3;
constexpr int kLauncher = 4;
constexpr int kOutput = 5;

// Nothing else of the agent's must stay open here, or its peers would not see its end. False where `launcher`, which
// may be -1, could not be kept.
bool KeepOnly(int pipe, int launcher, int output) {
  const int high_pipe = ::fcntl(pipe, F_DUPFD, 10);
  const int high_launcher = ::fcntl(launcher, F_DUPFD, 10);
  const int high_output = ::fcntl(output, F_DUPFD, 10);
  ::dup2(high_pipe, kPipe);
  const bool kept_launcher = high_launcher >= 0 && ::dup2(high_launcher, kLauncher) == kLauncher;
  const bool kept_output = high_output >= 0 && ::dup2(high_output, kOutput) == kOutput;
  runtime::CloseFrom(kept_output ? kOutput + 1 : kOutput);
  if (!kept_launcher) ::close(kLauncher);
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  if (null > kOutput) ::close(null);
  return launcher < 0 || kept_launcher;
}

// In the child, by system calls alone: the agent may have threads.
void LeaveAgent(int pipe, int launcher, int output) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, 0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  if (!KeepOnly(pipe, launcher, output)) ::_exit(1);
}

// Reads which groups there are, and keeps a keeper once there is a cgroup, until the agent has gone. Should dlaunch go
// and the agent stay, the agent is stuck.
std::set<pid_t> WatchAgent(int pipe, int launcher, pid_t agent, Keeper* keeper) {
  std::set<pid_t> groups;
  bool launcher_gone = launcher < 0;
  for (;;) {
    pollfd fds[] = {{pipe, POLLIN, 0}, {launcher_gone ? -1 : launcher, POLLIN, 0}, {keeper->watch().fd(), POLLIN, 0}};
    const bool hurry = launcher >= 0 && launcher_gone;
    const int ready = ::poll(fds, 3, hurry ? kStuckAfterMs : keeper->watch().poll_limit_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && hurry) ::kill(agent, SIGKILL);  // its end of the pipe is open, so it is still the agent
    if (fds[1].revents != 0) launcher_gone = true;
    if (keeper->watch().valid() && keeper->watch().Ended()) keeper->OnEnded();
    if (fds[0].revents == 0) continue;
    pid_t value = 0;
    const ssize_t n = ::read(pipe, &value, sizeof value);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof value) return groups;
    if (value == kCgroupMade) keeper->Start();
    if (value > 1) groups.insert(value);
    if (value < -1) groups.erase(-value);
  }
}

[[noreturn]] void Guard(int launcher, pid_t agent, const std::string& mark, Cgroup* cgroup) {
  NameProcess(kSentinelName, std::string_view("dlaunch\0sentinel", 16));
  const std::string address = mark.substr(mark.find('=') + 1);
  Keeper keeper(agent, address, cgroup);
  for (const pid_t group : WatchAgent(kPipe, launcher, agent, &keeper)) ::kill(-group, SIGKILL);
  cgroup->Kill(kSweepLimit);
  Sweep(mark, Spared(), false, kSweepLimit);
  cgroup->Remove(kSweepLimit);
  keeper.End();
  RemoveOpenMpiFolders(address);  // last: it may block for ever, on a file server that is gone
  ::_exit(0);
}

// 0 where it is no number.
pid_t AgentOf(char** argv) { return std::atoi(argv[2] + std::strlen(kSentinelArgument)); }

}  // namespace

Sentinel::Sentinel(std::string mark, Cgroup* cgroup)
    : mark_(std::move(mark)),
      cgroup_(cgroup),
      launcher_(static_cast<int>(::syscall(SYS_pidfd_open, ::getppid(), 0))),
      output_(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)) {}

Sentinel::~Sentinel() {
  pipe_.Close();
  if (pid_ <= 0) return;
  if (!watch_.WaitForEnd(kEndLimit)) ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool Sentinel::Start() {
  Pipe pipe;
  if (!pipe.Open()) return false;
  const pid_t agent = ::getpid();
  const int launcher = launcher_.valid() ? kLauncher : -1;
  const bool has_threads = std::exchange(started_, true);  // the agent has, by the time when a sentinel can have ended
  std::string number = kSentinelArgument + std::to_string(agent);
  std::string watched = std::to_string(launcher);
  std::string mark = mark_;
  std::string folder = cgroup_->folder();
  char name[] = "dlaunch", command[] = "sentinel";
  char* const arguments[] = {name, command, number.data(), watched.data(), mark.data(), folder.data(), nullptr};
  const pid_t pid = ::fork();
  if (pid == 0) {
    LeaveAgent(pipe.read_end.get(), launcher_.get(), output_.get());
    if (!has_threads) Guard(launcher, agent, mark_, cgroup_);
    ::execv("/proc/self/exe", arguments);
    ::_exit(127);
  }
  if (pid < 0) return false;
  pipe_ = std::move(pipe.write_end);
  pid_ = pid;
  watch_ = runtime::ProcessWatch(pid);
  if (cgroup_made_) Tell(kCgroupMade);
  for (const pid_t group : groups_) Tell(group);
  return true;
}

std::optional<std::string> Sentinel::OnEnded(int wait_status) {
  if (restarts_ == kGivenUp) return std::nullopt;  // the number may be somebody else's now
  const bool too_often = restarts_++ >= kMaxRestarts;
  if (!too_often && Start()) return std::nullopt;
  restarts_ = kGivenUp;
  const std::string how = WIFSIGNALED(wait_status) ? "was killed by " + SignalName(WTERMSIG(wait_status))
                                                   : "ended with status " + std::to_string(WEXITSTATUS(wait_status));
  return how + (too_often ? " again and is not started any more" : ", and no other can be started") +
         "; the job goes on, but should its agent be killed, nobody ends what its ranks leave behind";
}

bool Sentinel::watches() const { return !watch_.Ended(); }

void Sentinel::OnCgroupMade() {
  if (!std::exchange(cgroup_made_, true)) Tell(kCgroupMade);
}

void Sentinel::AddGroup(pid_t group) {
  if (groups_.insert(group).second) Tell(group);
}

void Sentinel::LeaderEnded(pid_t group) {
  if (groups_.contains(group)) leaderless_.push_back(group);
}

void Sentinel::ForgetEmptyGroups() {
  std::erase_if(leaderless_, [this](pid_t group) {
    if (::kill(-group, 0) == 0 || errno != ESRCH) return false;
    groups_.erase(group);
    Tell(-group);
    return true;
  });
}

bool IsSentinelCommand(int argc, char** argv) {
  if (argc != 6 || std::strcmp(argv[1], "sentinel") != 0) return false;
  if (std::strncmp(argv[2], kSentinelArgument, std::strlen(kSentinelArgument)) != 0 || AgentOf(argv) <= 0) return false;
  // A user's program may have that name, and options to match; but nobody else begins one with our pipe.
  struct stat pipe{};
  return std::string_view(argv[4]).starts_with("COHORT_AGENT=") && ::fstat(kPipe, &pipe) == 0 && S_ISFIFO(pipe.st_mode);
}

void RunSentinel(int, char** argv) {
  const pid_t agent = AgentOf(argv);
  const int launcher = std::atoi(argv[3]);
  const std::string mark = argv[4];
  Cgroup cgroup = Cgroup::Existing(argv[5]);
  Guard(launcher, agent, mark, &cgroup);
}

void Sentinel::Tell(pid_t value) { (void)!::write(pipe_.get(), &value, sizeof value); }

}  // namespace cohort::launcher
