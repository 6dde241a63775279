#include "cohort/launcher/agent/watch/cgroup.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/watch/clone_arguments.h"
#include "cohort/runtime/base/sanitizer.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr char kPrefix[] = "cohort-";
constexpr std::string_view kController = "cpu";

// Whether a list such as "rw,cpu,cpuacct" has the controller.
bool HasController(std::string_view list) {
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (list.substr(begin, end - begin) == kController) return true;
    begin = end + 1;
  }
  return false;
}

// `description` follows " - " in a line of mountinfo: type, source and options.
bool IsMountOf(const std::string& description, CgroupVersion version) {
  std::istringstream fields(description);
  std::string type, source, options;
  fields >> type >> source >> options;
  return version == CgroupVersion::kSecond ? type == "cgroup2" : type == "cgroup" && HasController(options);
}

// The mount that shows `path`; empty: none does. A line is "ID parent major:minor root mountpoint options [tags] - type
// source options"; blanks in names are written \040, and such a place is not used.
std::string FolderOf(const std::string& mounts_file, const std::string& path, CgroupVersion version,
                     const std::string& root) {
  std::ifstream mounts(mounts_file);
  for (std::string line; std::getline(mounts, line);) {
    const size_t separator = line.find(" - ");
    if (separator == std::string::npos || !IsMountOf(line.substr(separator + 3), version)) continue;
    std::istringstream fields(line);
    std::string unused, shown, place;
    fields >> unused >> unused >> unused >> shown >> place;
    if (shown == "/") shown.clear();
    const bool below = path.starts_with(shown) && (path.size() == shown.size() || path[shown.size()] == '/');
    if (!below || place.empty()) continue;
    std::string rest = path.substr(shown.size());
    if (rest == "/") rest.clear();
    return root + place.substr(1) + rest;
  }
  return "";
}

// The path in a line "number:controllers:path" of this version; empty: it is of another.
std::string PathIn(const std::string& line, CgroupVersion version) {
  if (version == CgroupVersion::kSecond) return line.starts_with("0::/") ? line.substr(3) : "";
  const size_t first = line.find(':');
  const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
  if (second == std::string::npos || !HasController(line.substr(first + 1, second - first - 1))) return "";
  return line.substr(second + 1);
}

bool WriteText(const std::string& path, const std::string& text) {
  const runtime::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file.valid() && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

std::vector<std::string> FoldersIn(const std::string& folder) {
  std::vector<std::string> folders;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    if (at->is_directory(gone) && !at->is_symlink(gone)) folders.push_back(at->path().string());
  }
  return folders;
}

// Whether something lives in it or below.
bool IsPopulated(const std::string& folder) {
  std::ifstream events(folder + "/cgroup.events");
  for (std::string line; std::getline(events, line);) {
    if (line.starts_with("populated ")) return line != "populated 0";
  }
  return false;
}

// For kernels without cgroup.kill (before 5.14).
void KillOneByOne(const std::string& folder) {
  for (const std::string& below : FoldersIn(folder)) KillOneByOne(below);
  std::ifstream members(folder + "/cgroup.procs");
  for (pid_t pid = 0; members >> pid;) {
    if (pid > 1 && pid != ::getpid()) ::kill(pid, SIGKILL);
  }
}

bool RemoveFolders(const std::string& folder);

void RemoveFoldersIn(const std::string& folder) {
  for (const std::string& below : FoldersIn(folder)) RemoveFolders(below);
}

// Removes the folders below first. On a read-only mount, as in most containers, it could not be made: the kernel says
// so before it looks whether it is there.
bool RemoveFolders(const std::string& folder) {
  RemoveFoldersIn(folder);
  return ::rmdir(folder.c_str()) == 0 || errno == ENOENT || errno == EROFS;
}

}  // namespace

#if COHORT_THREAD_SANITIZER
// TSan must see the fork: in the child its locks would stay as other threads hold them.
pid_t ForkInto(int cgroup) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  const int processes = ::openat(cgroup, "cgroup.procs", O_WRONLY | O_CLOEXEC);
  if (processes < 0 || ::write(processes, "0", 1) != 1) ::_exit(1);
  ::close(processes);
  return 0;
}
#else
pid_t ForkInto(int cgroup) {
  CloneArguments arguments = CloneInto(cgroup);
  return static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
}
#endif

std::string CgroupFolder(const std::string& process, CgroupVersion version, const std::string& root) {
  std::ifstream cgroups(root + "proc/" + process + "/cgroup");
  for (std::string line; std::getline(cgroups, line);) {
    const std::string path = PathIn(line, version);
    if (path.empty()) continue;
    if (path.starts_with("/..") || path.ends_with(" (deleted)")) break;
    return FolderOf(root + "proc/self/mountinfo", path, version, root);
  }
  return "";
}

absl::StatusOr<std::string> OwnCgroup(const std::string& root) {
  std::string folder = CgroupFolder("self", CgroupVersion::kSecond, root);
  if (folder.empty()) return absl::UnavailableError("no cgroup of version 2 is visible here");
  return folder;
}

Cgroup::Cgroup(const std::string& parent) {
  if (parent.empty()) return;
  std::random_device random;
  std::ostringstream name;
  name << parent << "/" << kPrefix << ::getpid() << "." << std::hex << random();
  folder_ = name.str();
}

Cgroup Cgroup::Existing(const std::string& folder) {
  Cgroup cgroup("");
  cgroup.folder_ = folder;
  return cgroup;
}

absl::Status Cgroup::MakeOuter() {
  if (outer_.valid()) return absl::OkStatus();
  for (bool again = true;; again = false) {
    if (::mkdir(folder_.c_str(), 0755) != 0) {
      return absl::UnavailableError("can't make " + folder_ + ": " + std::strerror(errno));
    }
    runtime::FileDescriptor fd(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.valid() && ::flock(fd.get(), LOCK_SH | LOCK_NB) == 0 &&
        ::access((folder_ + "/cgroup.procs").c_str(), W_OK) == 0) {
      outer_ = std::move(fd);
      return absl::OkStatus();
    }
    const int error = errno;
    ::rmdir(folder_.c_str());
    // Until it is locked, another job that removes stale ones may take it for such.
    const bool taken_away = error == ENOENT || error == EWOULDBLOCK;
    if (!taken_away || !again) return absl::UnavailableError("can't use " + folder_ + ": " + std::strerror(error));
  }
}

absl::Status Cgroup::MakeInner() {
  const std::string inner = folder_ + "/" + std::to_string(++made_);
  runtime::FileDescriptor fd;
  if (::mkdir(inner.c_str(), 0755) == 0)
    fd = runtime::FileDescriptor(::open(inner.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return absl::UnavailableError("can't make " + inner + ": " + std::strerror(errno));
  const pid_t probe = ForkInto(fd.get());
  if (probe == 0) ::_exit(0);
  int status = 0;
  if (probe < 0 || ::waitpid(probe, &status, 0) != probe || status != 0) {
    ::rmdir(inner.c_str());
    return absl::UnavailableError("processes can't be started in " + inner);
  }
  inner_ = std::move(fd);
  return absl::OkStatus();
}

absl::Status Cgroup::Make() {
  if (folder_.empty() || inner_.valid()) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(MakeOuter());
  return MakeInner();
}

void Cgroup::KillOnce() {
  inner_.Close();
  if (!WriteText(folder_ + "/cgroup.kill", "1")) KillOneByOne(folder_);
}

bool Cgroup::Kill(std::chrono::milliseconds timeout) {
  if (folder_.empty()) return true;
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (IsPopulated(folder_)) {
    KillOnce();
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!inner_.valid()) RemoveFoldersIn(folder_);
  return true;
}

bool Cgroup::Remove(std::chrono::milliseconds timeout) {
  if (folder_.empty()) return true;
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!RemoveFolders(folder_)) {
    if (std::chrono::steady_clock::now() >= end) return false;
    KillOnce();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void RemoveStaleCgroups(const std::string& parent) {
  for (const std::string& folder : FoldersIn(parent)) {
    if (!folder.substr(folder.rfind('/') + 1).starts_with(kPrefix)) continue;
    const runtime::FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.valid() && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) RemoveFolders(folder);
  }
}

}  // namespace cohort::launcher
