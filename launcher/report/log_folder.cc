#include "cohort/launcher/report/log_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <system_error>

#include "absl/status/status.h"
#include "cohort/launcher/base/bounded_call.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{5};

absl::Status Refusal(const std::string& folder, const std::string& why) {
  return InvalidArgumentError(Remedy::kLogFolder,
                              "--log-dir " + folder + ": " + why + "; give a folder where files can be made");
}

// Lists `path` and the folders above it that are not there.
std::vector<fs::path> Missing(fs::path path) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (; path.has_relative_path() && !fs::exists(path, error); path = path.parent_path()) missing.push_back(path);
  return missing;
}

}  // namespace

absl::StatusOr<LogFolder> LogFolder::Make(const std::string& folder) {
  struct Found {
    fs::path path;
    std::vector<fs::path> made;
    bool has_others = false;
    runtime::FileDescriptor lock;
  };
  const auto found = std::make_shared<Found>();
  BoundedCall making([folder, found] {
    std::error_code error;
    found->path = fs::absolute(folder, error);
    found->made = Missing(found->path);
    fs::create_directories(found->path, error);
    std::error_code none;
    if (error && fs::is_symlink(found->path, none) && !fs::exists(found->path, none)) {
      return Refusal(folder, "a link to " + fs::read_symlink(found->path, none).string() + ", which is not there");
    }
    if (error) return Refusal(folder, error.message());
    found->has_others = fs::exists(found->path / "report.json", error);
    if (!fs::is_directory(found->path, error) || ::access(found->path.c_str(), W_OK | X_OK) != 0) {
      return Refusal(folder, "not a folder that can be written");
    }
    // Some file systems have no locks, or none of folders: there nobody knows.
    found->lock = runtime::FileDescriptor(::open(found->path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!found->lock.valid() || ::flock(found->lock.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
      return absl::OkStatus();
    }
    found->made.clear();  // they are the other's now
    return InvalidArgumentError(Remedy::kLogFolderInUse,
                                "--log-dir " + folder +
                                    ": another job that runs writes there, and files of the same names would be lost; "
                                    "give each job a folder of its own");
  });
  const std::optional<absl::Status> made = making.Await(runtime::Deadline::After(kPatience));
  if (!made) {
    return Refusal(folder, "its file system has not answered for " + std::to_string(kPatience.count()) + " s");
  }
  LogFolder result(found->path.string(), std::move(found->made), std::move(found->lock));
  COHORT_RETURN_IF_ERROR(*made);
  result.has_others_ = found->has_others;
  return result;
}

LogFolder::~LogFolder() {
  std::error_code error;
  for (const fs::path& path : made_) fs::remove(path, error);
}

std::string LogFolder::Keep() {
  made_.clear();
  std::error_code error;
  const fs::path report = fs::path(path_) / "report.json";
  if (fs::symlink_status(report, error).type() == fs::file_type::regular) fs::remove(report, error);
  (void)lock_.Release();  // as long as this process lives
  return path_;
}

}  // namespace cohort::launcher
