// The file of a trace, written by a thread of its own: a disk that takes nothing must not keep dlaunch from its job.
// The queue to the disk is bounded. Pieces are written whole or not at all, so that the file can be read at any time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::launcher {

class TraceFile {
 public:
  static constexpr size_t kMostWaiting = 16u << 20;  // bytes

  // Empties the file, or makes it. kInvalidArgument names what is wrong, such as another trace that is written there.
  // Blocks while the file system opens it.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(const std::string& path);
  // Gives up what is not written yet.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  const std::string& path() const { return path_; }
  // False: the piece is left out, since the disk does not keep up or has failed.
  bool Write(std::string piece);
  // Begins another part. The file holds it and the part before, and none of earlier ones: until
  // Finish the one before lies in a file of the same name with .before. False: the disk does not keep up.
  bool BeginPart();
  // Why nothing more is written; OK: all is well.
  absl::Status problem() const;
  // Waits until all is written, until the deadline at the most. What is missing then is a problem.
  absl::Status Finish(runtime::Deadline deadline);

 private:
  enum class Kind { kWrite, kBeginPart, kJoinParts };
  struct Piece {
    Kind kind = Kind::kWrite;
    std::string bytes;
  };
  struct Shared;  // outlives this where the thread is stuck in a call

  TraceFile(std::string path, std::shared_ptr<Shared> shared) : path_(std::move(path)), shared_(std::move(shared)) {}
  bool Put(Piece piece);
  static int Perform(Shared* shared, const Piece& piece);
  static void Run(const std::shared_ptr<Shared>& shared);

  const std::string path_;
  const std::shared_ptr<Shared> shared_;
  bool finished_ = false;  // nothing more may be written
};

}  // namespace cohort::launcher
