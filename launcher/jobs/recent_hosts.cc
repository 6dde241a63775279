#include "cohort/launcher/jobs/recent_hosts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "cohort/launcher/base/bounded_call.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/whole_file.h"

namespace cohort::launcher {
namespace {

constexpr size_t kLongestHost = 255;
constexpr size_t kLongestFile = kMostRecentHosts * (kLongestHost + 1);
constexpr std::chrono::seconds kPatience{1};  // with a file system that does not answer

// Empty: this user has no folder for it.
std::string HostsFile() {
  std::string folder = GetVariable("XDG_STATE_HOME").value_or("");
  if (!folder.starts_with('/')) {
    folder = GetVariable("HOME").value_or("");
    if (!folder.starts_with('/')) return "";
    folder += "/.local/state";
  }
  return folder + "/dlaunch/hosts";
}

bool IsHost(const std::string& name) {
  constexpr std::string_view kOthers = "-_.:@[]%";
  return !name.empty() && name.size() <= kLongestHost && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), [&](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  kOthers.find(c) != std::string_view::npos;
         });
}

// None where it is no regular file: a pipe has no end. Blocks.
std::vector<std::string> ReadHosts(const std::string& path) {
  const runtime::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat found{};
  if (!file.valid() || ::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode)) return {};
  std::string text(kLongestFile, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = ::read(file.get(), text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    size += static_cast<size_t>(n);
  }
  text.resize(size);
  return MergeHosts(absl::StrSplit(text, '\n'), {});
}

absl::Status WriteHosts(const std::string& path, const std::vector<std::string>& latest) {
  std::error_code error;
  const std::vector<std::string> before = ReadHosts(path);
  const std::vector<std::string> hosts = MergeHosts(latest, before);
  if (hosts == before) return absl::OkStatus();
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return absl::UnavailableError(error.message());
  std::string text;
  for (const std::string& host : hosts) text += host + "\n";
  return runtime::WriteWholeFile(path, text);
}

}  // namespace

std::vector<std::string> MergeHosts(const std::vector<std::string>& latest, const std::vector<std::string>& before) {
  std::vector<std::string> hosts;
  for (const std::vector<std::string>* const list : {&latest, &before}) {
    for (const std::string& host : *list) {
      if (hosts.size() == kMostRecentHosts) return hosts;
      if (IsHost(host) && std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
    }
  }
  return hosts;
}

void RememberHosts(const std::vector<std::string>& hosts) {
  const std::string path = HostsFile();
  if (path.empty() || hosts.empty()) return;
  BoundedCall call([path, hosts] { return WriteHosts(path, hosts); });
  call.Await(runtime::Deadline::After(kPatience));
}

std::vector<std::string> RecentHosts() {
  const std::string path = HostsFile();
  if (path.empty()) return {};
  const auto hosts = std::make_shared<std::vector<std::string>>();  // of the call, which may outlive this one
  BoundedCall call([path, hosts] {
    *hosts = ReadHosts(path);
    return absl::OkStatus();
  });
  const std::optional<absl::Status> read = call.Await(runtime::Deadline::After(kPatience));
  return read && read->ok() ? *hosts : std::vector<std::string>();
}

}  // namespace cohort::launcher
