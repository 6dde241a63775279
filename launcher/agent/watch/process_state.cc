#include "cohort/launcher/agent/watch/process_state.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <sstream>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

constexpr unsigned long kExitingFlag = 0x4;       // PF_EXITING of the kernel's task flags
constexpr unsigned long kKilledBySignal = 0x400;  // PF_SIGNALED

std::string ReadFile(const std::string& path) {
  const runtime::FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  while (fd.valid()) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

}  // namespace

std::optional<ProcessState> ParseProcessStat(const std::string& text) {
  // The name may hold spaces and parentheses; the fields begin after the last ')'.
  const size_t name_end = text.rfind(')');
  const size_t name_begin = text.find('(');
  if (name_end == std::string::npos || name_begin >= name_end) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcessState result;
  result.name = text.substr(name_begin + 1, name_end - name_begin - 1);
  unsigned long flags = 0;
  std::string skipped;
  fields >> result.state >> result.parent >> result.group >> skipped >> result.terminal >> skipped >> flags;
  for (int field = 10; field < 14; ++field) fields >> skipped;
  unsigned long long user = 0;
  unsigned long long system = 0;
  fields >> user >> system;
  for (int field = 16; field < 20; ++field) fields >> skipped;
  long pages = 0;
  fields >> result.threads >> skipped >> result.start_time >> skipped >> pages;
  if (!fields) return std::nullopt;
  for (int field = 25; field < 52; ++field) fields >> skipped;
  int status = 0;
  if (fields >> status) result.exit_status = status;
  result.resident_bytes = pages * ::sysconf(_SC_PAGESIZE);
  result.cpu_ticks = user + system;
  // A leader thread that merely left shows the exiting flag too, while other threads live on.
  result.exiting =
      result.state == 'Z' || result.state == 'X' || ((flags & kExitingFlag) != 0 && (flags & kKilledBySignal) != 0);
  return result;
}

std::optional<ProcessState> ReadProcessState(pid_t pid) {
  return ParseProcessStat(ReadFile("/proc/" + std::to_string(pid) + "/stat"));
}

bool DescendsFrom(pid_t pid, pid_t ancestor) {
  for (int depth = 0; depth < 64 && pid > 1; ++depth) {
    if (pid == ancestor) return true;
    const auto state = ReadProcessState(pid);
    if (!state) return false;
    if (state->group == ancestor) return true;
    pid = state->parent;
  }
  return false;
}

pid_t TracerOf(pid_t pid) {
  const std::string status = ReadFile("/proc/" + std::to_string(pid) + "/status");
  const size_t at = status.find("TracerPid:");
  const long tracer = at == std::string::npos ? 0 : std::strtol(status.c_str() + at + 10, nullptr, 10);
  const bool is_own = tracer != 0 && ::access(("/proc/self/task/" + std::to_string(tracer)).c_str(), F_OK) == 0;
  return is_own ? 0 : static_cast<pid_t>(tracer);
}

pid_t WrappedProgram(pid_t pid) {
  pid_t program = 0;
  for (int depth = 0; depth < 64; ++depth) {
    const pid_t wrapper = program == 0 ? pid : program;
    const std::string folder = "/proc/" + std::to_string(wrapper);
    // The next two files describe its first thread alone. Where there are others, one of them may be at work.
    const auto state = ReadProcessState(wrapper);
    if (!state || state->threads != 1) break;
    if (ReadFile(folder + "/wchan") != "do_wait") break;
    std::istringstream children(ReadFile(folder + "/task/" + std::to_string(wrapper) + "/children"));
    pid_t child = 0;
    pid_t other = 0;
    if (!(children >> child) || children >> other) break;
    program = child;
  }
  return program;
}

std::vector<pid_t> ListProcesses() {
  std::vector<pid_t> pids;
  DIR* const proc = ::opendir("/proc");
  if (proc == nullptr) return pids;
  while (const dirent* const entry = ::readdir(proc)) {
    const std::string name = entry->d_name;
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc() && end == name.data() + name.size()) pids.push_back(pid);
  }
  ::closedir(proc);
  return pids;
}

std::string ReadProcessEnvironment(pid_t pid) { return ReadFile("/proc/" + std::to_string(pid) + "/environ"); }

}  // namespace cohort::launcher
