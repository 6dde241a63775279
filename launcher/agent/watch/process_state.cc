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
