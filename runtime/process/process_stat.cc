#include "cohort/runtime/process/process_stat.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::runtime {

namespace {

// The fields of a line, by their numbers in proc_pid_stat(5), in rising order. A field that is no number fails.
class Fields {
 public:
  Fields(std::string_view text, int first) : rest_(text), next_(first) {}

  std::string_view Text(int field) {
    std::string_view found;
    for (; next_ <= field; ++next_) {
      rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n"), rest_.size()));
      found = rest_.substr(0, rest_.find_first_of(" \n"));
      rest_.remove_prefix(found.size());
    }
    failed_ = failed_ || found.empty();
    return found;
  }
  template <typename T>
  void Read(int field, T* number) {
    const std::string_view text = Text(field);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    failed_ = failed_ || error != std::errc() || end != text.data() + text.size();
  }
  bool failed() const { return failed_; }

 private:
  std::string_view rest_;
  int next_;
  bool failed_ = false;
};

}  // namespace

std::optional<ProcessState> ParseProcessStat(const std::string& text) {
  // The name may hold spaces and parentheses; the fields begin after the last ')'.
  const size_t name_end = text.rfind(')');
  const size_t name_begin = text.find('(');
  if (name_end == std::string::npos || name_begin >= name_end) return std::nullopt;
  Fields fields(std::string_view(text).substr(name_end + 1), /*first=*/3);
  ProcessState result;
  result.name = text.substr(name_begin + 1, name_end - name_begin - 1);
  const std::string_view state = fields.Text(3);
  if (state.empty()) return std::nullopt;
  result.state = state[0];
  fields.Read(4, &result.parent);
  fields.Read(5, &result.group);
  fields.Read(7, &result.terminal);
  fields.Read(9, &result.flags);
  fields.Read(12, &result.major_faults);
  uint64_t user = 0;
  uint64_t system = 0;
  fields.Read(14, &user);
  fields.Read(15, &system);
  fields.Read(20, &result.threads);
  fields.Read(22, &result.start_time);
  int64_t pages = 0;
  fields.Read(24, &pages);
  if (fields.failed()) return std::nullopt;
  int status = 0;
  fields.Read(52, &status);
  if (!fields.failed()) result.exit_status = status;
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
