#include "cohort/runtime/engine/other_threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>

#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/sanitizer.h"

namespace cohort::runtime {
namespace {

constexpr std::string_view kOurs = "cohort-";
constexpr std::string_view kUcx = "async\n";
// ThreadSanitizer has one of its own, which bears the program's name.
constexpr int kOfTheSanitizer = COHORT_THREAD_SANITIZER;

bool CallsNothing(const std::string& thread) {
  const std::string path = "/proc/self/task/" + thread + "/comm";
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return true;  // it has just ended
  char name[32];
  const ssize_t bytes = read(file.get(), name, sizeof name);
  const std::string_view text(name, bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return bytes <= 0 || text.starts_with(kOurs) || text == kUcx;
}

}  // namespace

bool HasOtherThreads() {
  const auto close = [](DIR* opened) { closedir(opened); };
  const std::unique_ptr<DIR, decltype(close)> tasks(opendir("/proc/self/task"), close);
  if (tasks == nullptr) return true;
  const std::string self = std::to_string(syscall(SYS_gettid));
  int others = 0;
  while (const dirent* const entry = ::readdir(tasks.get())) {
    if (entry->d_name[0] == '.' || self == entry->d_name || CallsNothing(entry->d_name)) continue;
    if (++others > kOfTheSanitizer) return true;
  }
  return false;
}

}  // namespace cohort::runtime
