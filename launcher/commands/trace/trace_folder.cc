#include "cohort/launcher/commands/trace/trace_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"

namespace cohort::launcher {
namespace {

constexpr char kFolderPrefix[] = "/dlaunch-why.";
constexpr int kEndingSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

// The folder that EndBySignal removes, and its file. Empty: none. They change while the signals are held back.
std::array<char, 4096> folder_to_remove, file_to_remove;

// Holds signals back that end this process. They come when this goes.
class HeldSignals {
 public:
  HeldSignals() {
    sigset_t ending;
    ::sigemptyset(&ending);
    for (const int signal : kEndingSignals) ::sigaddset(&ending, signal);
    ::pthread_sigmask(SIG_BLOCK, &ending, &before_);
  }
  ~HeldSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  sigset_t before_{};
};

// A handler may call it. The other process makes the file once, which may be between the two calls.
void RemoveBoth(const char* folder, const char* file) {
  for (int i = 0; i < 2; ++i) {
    ::unlink(file);
    if (::rmdir(folder) == 0) return;
  }
}

void EndBySignal(int signal) {
  RemoveBoth(folder_to_remove.data(), file_to_remove.data());
  ::raise(signal);  // its handler is gone after the first call: this one ends the process
}

// Signals are held back meanwhile. Names that are too long to be kept are too long for a file.
void RemoveAtSignals(const std::string& folder, const std::string& file) {
  if (file.size() >= file_to_remove.size()) return;
  std::memcpy(folder_to_remove.data(), folder.c_str(), folder.size() + 1);
  std::memcpy(file_to_remove.data(), file.c_str(), file.size() + 1);
  for (const int signal : kEndingSignals) {
    struct sigaction now{};
    if (::sigaction(signal, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
    struct sigaction ends{};
    ends.sa_handler = EndBySignal;
    ends.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(signal, &ends, nullptr);
  }
}

}  // namespace

absl::StatusOr<TraceFolder> TraceFolder::Make(pid_t owner) {
  std::error_code error;
  const std::filesystem::path above = std::filesystem::temp_directory_path(error);
  std::string name = above.string() + kFolderPrefix + "XXXXXX";
  const HeldSignals held;
  if (error || ::mkdtemp(name.data()) == nullptr) {
    return absl::UnavailableError("no folder can be made in " + (error ? "the one that TMPDIR names" : above.string()) +
                                  " for a trace; set TMPDIR");
  }
  TraceFolder folder(name);
  RemoveAtSignals(name, folder.file());
  struct stat process{};
  const bool known = ::stat(("/proc/" + std::to_string(owner)).c_str(), &process) == 0;
  if (known && process.st_uid != ::geteuid() && ::chown(name.c_str(), process.st_uid, process.st_gid) != 0) {
    return absl::PermissionDeniedError(name + " can't be given to the user of the job");
  }
  return folder;
}

TraceFolder::TraceFolder(TraceFolder&& other) noexcept
    : name_(std::exchange(other.name_, "")), file_(other.file_), opened_(std::move(other.opened_)) {}

bool TraceFolder::Holds(const std::string& file) { return file.find(kFolderPrefix) != std::string::npos; }

void TraceFolder::TakeNameAway() {
  if (!opened_.valid()) opened_ = runtime::FileDescriptor(::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (opened_.valid()) Remove();
}

absl::StatusOr<TraceContents> TraceFolder::Read() const {
  return ReadTraceFile(opened_.valid() ? "/proc/self/fd/" + std::to_string(opened_.get()) : file_, file_);
}

void TraceFolder::Remove() {
  if (name_.empty()) return;
  const HeldSignals held;
  RemoveBoth(name_.c_str(), file_.c_str());
  name_.clear();
  folder_to_remove[0] = file_to_remove[0] = '\0';
}

}  // namespace cohort::launcher
