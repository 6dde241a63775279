#include "launcher/agent/sentinel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <set>
#include <utility>

#include "launcher/agent/sweep.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::seconds kSweepLimit{5};

char* arguments_begin = nullptr;
size_t arguments_size = 0;

void Rename() {
  constexpr char kName[] = "dlaunch\0sentinel";
  ::prctl(PR_SET_NAME, "dlaunch-watch");
  if (arguments_size < sizeof kName) return;
  std::memset(arguments_begin, 0, arguments_size);
  std::memcpy(arguments_begin, kName, sizeof kName);
}

// Nothing of the agent's must stay open here, or its peers would not see its end.
void CloseEverythingBut(int keep) {
  ::syscall(SYS_close_range, 0, keep - 1, 0);
  ::syscall(SYS_close_range, keep + 1, ~0U, 0);
  for (int fd = 0; fd < 3; ++fd) {
    if (fd != keep) (void)!::open("/dev/null", O_RDWR);
  }
}

[[noreturn]] void RunSentinel(int pipe, const std::string& mark) {
  ::setsid();
  Rename();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  CloseEverythingBut(pipe);
  std::set<pid_t> groups;
  for (;;) {
    pid_t value = 0;
    const ssize_t n = ::read(pipe, &value, sizeof value);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof value) break;
    if (value > 1) groups.insert(value);
    if (value < -1) groups.erase(-value);
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  Sweep(mark, {}, false, kSweepLimit);
  ::_exit(0);
}

}  // namespace

void Sentinel::RememberArguments(int argc, char** argv) {
  arguments_begin = argv[0];
  arguments_size = static_cast<size_t>(argv[argc - 1] + std::strlen(argv[argc - 1]) + 1 - argv[0]);
}

Sentinel::Sentinel(std::string mark) : mark_(std::move(mark)) {}

Sentinel::~Sentinel() {
  pipe_.reset();
  if (pid_ <= 0) return;
  pollfd ended{pidfd_.get(), POLLIN, 0};
  if (::poll(&ended, 1, 2000) <= 0) ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool Sentinel::Start() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  const pid_t pid = ::fork();
  if (pid == 0) {
    int read_end = ends[0];
    if (read_end < 3) read_end = ::fcntl(ends[0], F_DUPFD, 3);
    RunSentinel(read_end, mark_);
  }
  ::close(ends[0]);
  if (pid < 0) {
    ::close(ends[1]);
    return false;
  }
  pipe_.reset(ends[1]);
  pid_ = pid;
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return true;
}

void Sentinel::AddGroup(pid_t group) { Tell(group); }
void Sentinel::RemoveGroup(pid_t group) { Tell(-group); }

void Sentinel::Tell(pid_t value) { (void)!::write(pipe_.get(), &value, sizeof value); }

}  // namespace cohort::launcher
