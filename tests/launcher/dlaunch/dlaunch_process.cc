#include "tests/launcher/dlaunch/dlaunch_process.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "cohort/launcher/agent/watch/process_state.h"

extern char** environ;

namespace cohort::launcher {
namespace {

using Clock = std::chrono::steady_clock;

std::string ReadCommandLine(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  std::ostringstream read;
  read << file.rdbuf();  // unlike the buffer's iterators it throws nothing where the process ends meanwhile
  std::string text = read.str();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

// In place of the user's own, in which dlaunch remembers hosts. Removed when the test program ends.
class StateFolder {
 public:
  StateFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "dlaunch_state_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    variable_ = "XDG_STATE_HOME=" + name;
  }
  ~StateFolder() {
    std::error_code error;
    if (::getpid() == owner_) std::filesystem::remove_all(variable_.substr(variable_.find('=') + 1), error);
  }
  const std::string& variable() const { return variable_; }

 private:
  const pid_t owner_ = ::getpid();  // a forked child leaves it alone
  std::string variable_;
};

bool HasVariable(pid_t pid, const std::string& variable) {
  const std::string environment = std::string(1, '\0') + ReadProcessEnvironment(pid);
  return environment.find(std::string(1, '\0') + variable + std::string(1, '\0')) != std::string::npos;
}

// Its two ends, as of a pipe: what is written to [1] is read from [0] as it is.
bool OpenTerminal(int ends[2]) {
  termios raw{};
  ::cfmakeraw(&raw);
  const winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  if (::openpty(&ends[0], &ends[1], nullptr, &raw, &size) != 0) return false;
  for (const int* end : {&ends[0], &ends[1]}) ::fcntl(*end, F_SETFD, FD_CLOEXEC);
  return true;
}

}  // namespace

std::string ProgramFolder() {
  const char* const folder = std::getenv("COHORT_TEST_BIN_DIR");
  return folder != nullptr ? folder : "build/release/bin";
}

DlaunchProcess::DlaunchProcess(const std::vector<std::string>& arguments, const DlaunchSurroundings& surroundings) {
  static std::atomic<int> count{0};
  mark_ = "COHORT_DLAUNCH_TEST=" + std::to_string(::getpid()) + "." + std::to_string(++count);
  const std::string program = ProgramFolder() + "/dlaunch";
  std::vector<std::string> strings = {program};
  strings.insert(strings.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : strings) argv.push_back(text.data());
  argv.push_back(nullptr);
  static const StateFolder state;
  const auto names_state = [](const std::string& one) { return one.starts_with("XDG_STATE_HOME="); };
  std::vector<std::string> given = surroundings.environment;
  if (std::none_of(given.begin(), given.end(), names_state)) given.push_back(state.variable());
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string name = std::string(*variable).substr(0, std::string(*variable).find('=') + 1);
    const auto replaces = [&](const std::string& other) { return other.starts_with(name); };
    if (std::none_of(given.begin(), given.end(), replaces)) {
      variables.emplace_back(*variable);
    }
  }
  variables.insert(variables.end(), given.begin(), given.end());
  variables.push_back(mark_);
  std::vector<char*> envp;
  for (std::string& text : variables) envp.push_back(text.data());
  envp.push_back(nullptr);
  int out[2];
  int err[2];
  const auto open = [&](int ends[2]) {
    return surroundings.on_terminal ? OpenTerminal(ends) : ::pipe2(ends, O_CLOEXEC) == 0;
  };
  if (!open(out) || !open(err)) std::abort();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(surroundings.input >= 0 ? surroundings.input : ::open("/dev/null", O_RDONLY), 0);
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    if (surroundings.without_output) ::close(1);
    if (surroundings.enter && !surroundings.enter()) ::_exit(kNotPermitted);
    if (!surroundings.working_directory.empty() && ::chdir(surroundings.working_directory.c_str()) != 0) ::_exit(99);
    ::execve(program.c_str(), argv.data(), envp.data());
    ::_exit(98);
  }
  ::close(out[1]);
  ::close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
  if (surroundings.close_output_at_once) {
    ::close(out_fd_);
    out_fd_ = -1;
  }
}

DlaunchProcess::~DlaunchProcess() {
  if (!reaped_) ::kill(pid_, SIGKILL);
  for (const auto& [pid, command] : Processes()) {
    if (pid != ::getpid()) ::kill(pid, SIGKILL);
  }
  if (!reaped_) ::waitpid(pid_, nullptr, 0);
  if (out_fd_ >= 0) ::close(out_fd_);
  if (err_fd_ >= 0) ::close(err_fd_);
}

void DlaunchProcess::Collect(int timeout_ms) {
  pollfd fds[] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  if (::poll(fds, 2, timeout_ms) <= 0) return;
  char buffer[1 << 16];
  for (int* fd : {&out_fd_, &err_fd_}) {
    const pollfd& ready = fds[fd == &out_fd_ ? 0 : 1];
    if (*fd < 0 || ready.revents == 0) continue;
    const ssize_t n = ::read(*fd, buffer, sizeof buffer);
    if (n > 0) {
      (fd == &out_fd_ ? out_ : err_).append(buffer, static_cast<size_t>(n));
    } else {
      ::close(*fd);
      *fd = -1;
    }
  }
}

bool DlaunchProcess::WaitUntil(const std::function<bool()>& condition, std::chrono::seconds timeout) {
  const auto end = Clock::now() + timeout;
  while (!condition()) {
    if (Clock::now() >= end) return false;
    Collect(10);
    if (out_fd_ < 0 && err_fd_ < 0) ::usleep(5000);
  }
  return true;
}

bool DlaunchProcess::WaitForOutput(const std::string& text) {
  return WaitUntil([&] { return out_.find(text) != std::string::npos; });
}

int DlaunchProcess::Wait(std::chrono::seconds timeout) {
  const bool ended = WaitUntil(
      [this] {
        if (!reaped_) reaped_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
        return reaped_;
      },
      timeout);
  if (!ended) return -1;
  // Collects output that was written before its end; others may hold the pipes still if something went wrong.
  WaitUntil([this] { return out_fd_ < 0 && err_fd_ < 0; }, std::chrono::seconds(2));
  return WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
}

std::map<pid_t, std::string> DlaunchProcess::Processes() const {
  std::map<pid_t, std::string> found;
  for (const pid_t pid : ListProcesses()) {
    if (!HasVariable(pid, mark_)) continue;
    const auto state = ReadProcessState(pid);
    if (state && state->state != 'Z' && state->state != 'X') found[pid] = ReadCommandLine(pid);
  }
  return found;
}

std::vector<pid_t> DlaunchProcess::ProcessesWith(const std::string& text) const {
  std::vector<pid_t> found;
  for (const auto& [pid, command] : Processes()) {
    if (command.find(text) != std::string::npos) found.push_back(pid);
  }
  return found;
}

pid_t DlaunchProcess::AgentProcess(int node) const {
  for (const pid_t pid : ProcessesWith("dlaunch agent --node=" + std::to_string(node) + " ")) {
    const auto state = ReadProcessState(pid);
    if (state && state->parent == pid_) return pid;
  }
  throw std::out_of_range("no agent of node " + std::to_string(node));
}

pid_t DlaunchProcess::RankProcess(int rank) const {
  for (const auto& [pid, command] : Processes()) {
    const auto state = ReadProcessState(pid);
    if (state && state->group == pid && HasVariable(pid, "RANK=" + std::to_string(rank))) return pid;
  }
  return 0;
}

std::string DlaunchProcess::WaitUntilGone(std::chrono::seconds timeout) {
  std::map<pid_t, std::string> left;
  WaitUntil([&] { return (left = Processes()).empty(); }, timeout);
  std::ostringstream text;
  for (const auto& [pid, command] : left) text << pid << " " << command << "\n";
  return text.str();
}

}  // namespace cohort::launcher
