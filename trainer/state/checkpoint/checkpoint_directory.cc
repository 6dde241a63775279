#include "cohort/trainer/state/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/whole_file.h"
#include "cohort/trainer/base/error.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "cohort/trainer/state/checkpoint/remove_tree.h"

namespace cohort::trainer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = ".partial";
constexpr const char* kReplaced = ".replaced";
constexpr std::chrono::hours kAbandoned(1);  // as long as ranks wait for the slowest disk, unless they are told another

enum class Lock { kTaken, kHeldByOther, kUnknown };

// Unknown where the file system has no locks: there only the checks before publishing help. (What two jobs write at
// once is never taken for one checkpoint: a rank's file must be new, so no job has another's.)
Lock TryLock(int fd) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return Lock::kTaken;
  return errno == EWOULDBLOCK ? Lock::kHeldByOther : Lock::kUnknown;
}

int OpenDirectory(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

void Close(int fd) {
  if (fd < 0) return;
  ::flock(fd, LOCK_UN);  // a child that was forked meanwhile holds it as well
  ::close(fd);
}

// Whether the entry is a file that saving writes.
bool IsOfCheckpoint(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  std::error_code none;
  return entry.is_regular_file(none) &&
         (name == kCheckpointIndex || (name.starts_with("rank-") && name.ends_with(".safetensors")));
}

struct Contents {
  bool index = false;
  bool ranks = false;
  bool others = false;
};

Contents ContentsOf(const fs::path& directory) {
  Contents contents;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (!IsOfCheckpoint(entry)) {
      contents.others = true;
    } else {
      (entry.path().filename() == kCheckpointIndex ? contents.index : contents.ranks) = true;
    }
  }
  return contents;
}

[[noreturn]] void ThrowInUse(const std::string& path) {
  throw DistributedError(absl::StatusCode::kFailedPrecondition,
                         "another job is saving in " + path + " now; give each job a directory of its own");
}

// A directory of the user's, such as a mistyped --checkpoints, must not go for a checkpoint.
void CheckReplaceable(const std::string& directory) {
  if (!fs::exists(directory)) return;
  const bool is_directory = fs::is_directory(directory);
  const Contents there = is_directory ? ContentsOf(directory) : Contents{};
  if (is_directory && (!there.others || (there.index && there.ranks))) return;
  throw DistributedError(absl::StatusCode::kFailedPrecondition,
                         directory + " is there and is no checkpoint, which saving would replace; " +
                             "name another directory or move it away");
}

void ThrowIfFailed(const absl::Status& status) {
  if (!status.ok()) throw DistributedError(status.code(), std::string(status.message()));
}

[[noreturn]] void ThrowCannotRename(const std::string& from, const std::string& to, int error) {
  throw DistributedError(absl::StatusCode::kUnavailable,
                         "can't rename " + from + " to " + to + ": " + std::strerror(error));
}

// Renames, and makes that last.
void Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) ThrowCannotRename(from, to, errno);
  ThrowIfFailed(runtime::SyncFolderOf(to));
}

// The two change places, at once and lasting. Returns false where the file system or the kernel can't.
bool Exchange(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    // NFS answers so, and kernels and their filters that don't know the call.
    if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
    ThrowCannotRename(from, to, errno);
  }
  ThrowIfFailed(runtime::SyncFolderOf(to));
  return true;
}

// So that what lies within is still found after a power failure.
void MakeWithParents(const fs::path& directory) {
  if (directory.empty() || fs::exists(directory)) return;
  const fs::path parent = directory.parent_path();
  MakeWithParents(parent);
  if (fs::create_directory(directory)) ThrowIfFailed(runtime::SyncFolderOf(directory.string()));
}

// The last time that something was written there.
fs::file_time_type LastWrite(const fs::path& directory) {
  fs::file_time_type last = fs::last_write_time(directory);
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    last = std::max(last, entry.last_write_time());
  }
  return last;
}

// Beside `own`, where there is nothing but what saving writes, nobody has written for long and nobody holds the lock.
void RemoveAbandoned(const fs::path& own) {
  const fs::file_time_type now = fs::last_write_time(own);  // by the clock that wrote the others' times
  const fs::path parent = own.parent_path().empty() ? fs::path(".") : own.parent_path();
  for (const fs::directory_entry& entry : fs::directory_iterator(parent)) {
    const fs::path& path = entry.path();
    if (path.filename() == own.filename() || path.extension() != kPartial) continue;
    if (!fs::is_directory(entry.symlink_status()) || ContentsOf(path).others || now - LastWrite(path) < kAbandoned) {
      continue;
    }
    const int fd = OpenDirectory(path.string());
    if (fd >= 0 && TryLock(fd) == Lock::kTaken) RemoveTree(path);
    Close(fd);
  }
}

// "step-1/" would be put aside as step-1/.replaced, within itself.
std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool HasIndex(const fs::path& directory) {
  std::error_code none;
  return fs::exists(directory / kCheckpointIndex, none);
}

void Remove(const std::string& directory) {
  std::error_code error;
  RemoveTree(directory, error);
  if (!error) return;
  throw DistributedError(absl::StatusCode::kUnavailable, "can't remove " + directory + ": " + error.message());
}

}  // namespace

std::string ReadablePath(const std::string& directory) {
  std::error_code none;
  const std::string aside = WithoutSlashes(directory) + kReplaced;
  return !fs::exists(directory, none) && HasIndex(aside) ? aside : directory;
}

std::string DirectoryOf(const std::string& path) {
  if (path.ends_with(kPartial)) return "";
  return path.ends_with(kReplaced) ? path.substr(0, path.size() - std::strlen(kReplaced)) : path;
}

bool IsCheckpoint(const std::string& path) {
  if (HasIndex(path)) return true;
  std::error_code error;
  for (fs::directory_iterator entry(path, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (IsOfCheckpoint(*entry)) return true;
  }
  return false;
}

void RemoveCheckpoint(const std::string& directory) {
  const std::string there = ReadablePath(directory);
  try {
    if (ContentsOf(there).others) return;
  } catch (const fs::filesystem_error& error) {
    throw DistributedError(absl::StatusCode::kUnavailable, error.what());
  }
  // At once, so that a kill leaves nothing that looks like a damaged one.
  const std::string going = WithoutSlashes(directory) + kPartial;
  Remove(::rename(there.c_str(), going.c_str()) == 0 ? going : there);
}

PartialDirectory::PartialDirectory(const std::string& directory) : directory_(directory), path_(directory + kPartial) {
  CheckReplaceable(directory_);
  MakeWithParents(fs::path(directory_).parent_path());
  const int before = OpenDirectory(path_);
  const Lock lock = before < 0 ? Lock::kUnknown : TryLock(before);
  if (lock != Lock::kHeldByOther) RemoveTree(path_);
  Close(before);
  if (lock == Lock::kHeldByOther || !fs::create_directory(path_)) ThrowInUse(path_);
  fd_ = OpenDirectory(path_);
  struct stat facts{};
  const bool held = fd_ < 0 || ::fstat(fd_, &facts) != 0 || TryLock(fd_) == Lock::kHeldByOther;
  device_ = facts.st_dev;
  inode_ = facts.st_ino;
  if (held || !IsStillOurs()) {  // another job came between
    Close(fd_);
    ThrowInUse(path_);
  }
  try {
    RemoveAbandoned(path_);
  } catch (const fs::filesystem_error&) {  // the others' affair
  }
}

PartialDirectory::~PartialDirectory() {
  std::error_code ignored;
  if (!published_ && IsStillOurs()) RemoveTree(path_, ignored);
  Close(fd_);
}

bool PartialDirectory::IsStillOurs() const {
  struct stat facts{};
  return ::lstat(path_.c_str(), &facts) == 0 && facts.st_dev == device_ && facts.st_ino == inode_;
}

void PartialDirectory::CheckStillOurs() const {
  if (IsStillOurs()) return;
  throw DistributedError(absl::StatusCode::kAborted, path_ + " was removed or replaced while it was written, as by " +
                                                         "another job; give each job a directory of its own");
}

void PartialDirectory::WriteIndex(std::string_view text) const {
  const auto source = [&text] { return absl::StatusOr<std::string_view>(std::exchange(text, std::string_view())); };
  ThrowIfFailed(runtime::WriteNewFile(path_ + "/" + kCheckpointIndex, source));
}

void PartialDirectory::ExpectFile(const std::string& name, int64_t bytes) const {
  CheckStillOurs();
  std::error_code error;
  const uintmax_t there = fs::file_size(path_ + "/" + name, error);
  if (!error && there == static_cast<uintmax_t>(bytes)) return;
  throw DistributedError(absl::StatusCode::kAborted,
                         path_ + "/" + name + (error ? " is not there: " + error.message() : " has another size") +
                             "; all ranks must save in the same directory, and no other job in it");
}

void PartialDirectory::Publish() {
  CheckStillOurs();
  ThrowIfFailed(runtime::SyncFolder(path_));
  CheckReplaceable(directory_);
  const bool replaces = fs::exists(directory_);
  const bool exchanged = replaces && Exchange(path_, directory_);
  if (!replaces) Rename(path_, directory_);
  if (replaces && !exchanged) ReplaceInSteps();
  published_ = true;
  std::error_code ignored;
  if (exchanged) RemoveTree(path_, ignored);
  // Left by this run or by one that was killed, unless a user has something of that name.
  const std::string aside = directory_ + kReplaced;
  try {
    if (fs::is_directory(aside) && !ContentsOf(aside).others) RemoveTree(aside);
  } catch (const fs::filesystem_error&) {  // the new one is there
  }
}

// There is a complete checkpoint as `directory` or aside at any time, if there was one.
void PartialDirectory::ReplaceInSteps() {
  const std::string aside = directory_ + kReplaced;
  if (!HasIndex(directory_)) {
    Remove(directory_);  // there is nothing to lose, and maybe something aside
    return Rename(path_, directory_);
  }
  CheckReplaceable(aside);
  Remove(aside);
  Rename(directory_, aside);
  try {
    Rename(path_, directory_);
  } catch (const DistributedError&) {
    std::error_code ignored;
    fs::rename(aside, directory_, ignored);
    throw;
  }
}

}  // namespace cohort::trainer
