#include "cohort/runtime/process/process_stat.h"

#include <fcntl.h>
#include <unistd.h>

#include <sstream>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::runtime {

std::optional<ProcessState> ParseProcessStat(const std::string& text) {
  // The name may hold spaces and parentheses; the fields begin after the last ')'.
  const size_t name_end = text.rfind(')');
  const size_t name_begin = text.find('(');
  if (name_end == std::string::npos || name_begin >= name_end) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcessState result;
  result.name = text.substr(name_begin + 1, name_end - name_begin - 1);
  std::string skipped;
  fields >> result.state >> result.parent >> result.group >> skipped >> result.terminal >> skipped >> result.flags;
  fields >> skipped >> skipped >> result.major_faults >> skipped;
  uint64_t user = 0;
  uint64_t system = 0;
  fields >> user >> system;
  for (int field = 16; field < 20; ++field) fields >> skipped;
  int64_t pages = 0;
  fields >> result.threads >> skipped >> result.start_time >> skipped >> pages;
  if (!fields) return std::nullopt;
  for (int field = 25; field < 52; ++field) fields >> skipped;
  int status = 0;
  if (fields >> status) result.exit_status = status;
  result.resident_bytes = pages * ::sysconf(_SC_PAGESIZE);
  result.cpu_ticks = user + system;
  // A leader thread that merely left shows the exiting flag too, while other threads live on.
  result.exiting = result.ended() || ((result.flags & kExitingFlag) != 0 && (result.flags & kKilledBySignalFlag) != 0);
  return result;
}

std::optional<ProcessState> ReadProcessState(pid_t pid) {
  const FileDescriptor fd(::open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[1024];
  while (fd.valid()) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return ParseProcessStat(text);
}

}  // namespace cohort::runtime
