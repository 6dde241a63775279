// The file of a trace, opened and written by a thread of its own: a file system that does not answer must not keep
// dlaunch from its job. The queue to the disk is bounded. Pieces are written whole or not at all, so that the file can
// be read at any time.
#pragma once

#include <cstddef>
#include <cstdint>
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

  enum class Parts : uint8_t { kOne, kMany };  // kMany: BeginPart may be called

  // Begins to empty the file, or to make it. Does not block. kResourceExhausted: there can't be a thread.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Begin(const std::string& path, Parts parts = Parts::kOne);
  // Gives up what is not written yet.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  const std::string& path() const { return path_; }
  // Waits until the file is open, until the deadline at the most. kInvalidArgument names what is wrong, such as another
  // trace that is written there, or a file in its place or in that of a part that is no trace. kDeadlineExceeded: its
  // file system has not answered yet.
  absl::Status AwaitOpen(runtime::Deadline deadline);
  // False: the piece is left out, since the disk does not keep up or has failed.
  bool Write(std::string piece);
  // Begins another part. The file holds it and the part before, and none of earlier ones: until
  // Finish the one before lies in a file of the same name with .before. The trace ends where that is another file.
  // False: the disk does not keep up.
  bool BeginPart();
  // Why nothing more is written; OK: all is well.
  absl::Status problem() const;
  // Waits until all is written, until the deadline at the most. What is missing then is a problem.
  absl::Status Finish(runtime::Deadline deadline);

 private:
  enum class State : uint8_t { kOpening, kOpen, kClosed };  // each may follow those before it
  enum class Kind : uint8_t { kWrite, kBeginPart, kJoinParts };
  struct Piece {
    Kind kind = Kind::kWrite;
    std::string bytes;
  };
  struct Shared;  // outlives this where the thread is stuck in a call

  TraceFile(std::string path, std::shared_ptr<Shared> shared) : path_(std::move(path)), shared_(std::move(shared)) {}
  bool Put(Piece piece);
  // kResourceExhausted: the trace ends, and why.
  static absl::Status Perform(Shared* shared, const Piece& piece);
  // False: it can't be opened, or is not wanted any more.
  static bool OpenFile(Shared* shared);
  static void Run(const std::shared_ptr<Shared>& shared);

  const std::string path_;
  const std::shared_ptr<Shared> shared_;
  bool finished_ = false;  // nothing more may be written
};

}  // namespace cohort::launcher
