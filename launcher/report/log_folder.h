// The folder of --log-dir: made before anything else is done for the job, and taken away again where there is none.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

class LogFolder {
 public:
  // Makes it and those above it that are missing, and locks it. kInvalidArgument: it can't be made or written, another
  // dlaunch that lives has it, or its file system does not answer for five seconds.
  static absl::StatusOr<LogFolder> Make(const std::string& folder);
  // Removes what was made, unless there is something in it or it is kept.
  ~LogFolder();
  LogFolder(LogFolder&& other) noexcept
      : path_(std::move(other.path_)),
        made_(std::exchange(other.made_, {})),
        lock_(std::move(other.lock_)),
        has_others_(other.has_others_) {}
  LogFolder& operator=(LogFolder&&) = delete;

  // There is a job, which will write there, alone until this process ends. Another job's report goes, so that there is
  // none until this one's is written. Returns the absolute path.
  std::string Keep();
  // Another job has written there, whose files of the same names this one will replace.
  bool has_others() const { return has_others_; }

 private:
  LogFolder(std::string path, std::vector<std::filesystem::path> made, runtime::FileDescriptor lock)
      : path_(std::move(path)), made_(std::move(made)), lock_(std::move(lock)) {}

  std::string path_;
  std::vector<std::filesystem::path> made_;  // the innermost first
  runtime::FileDescriptor lock_;             // of a file system that has locks
  bool has_others_ = false;
};

}  // namespace cohort::launcher
