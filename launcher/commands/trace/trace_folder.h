// The place of a trace that the job's dlaunch writes for this process alone.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "cohort/launcher/trace/trace_reader.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

// A folder for one file that another process writes. Both go with it, also where a signal ends this process first
// (SIGINT, SIGTERM, SIGHUP or SIGQUIT, unless it is ignored or handled already). One at a time.
class TraceFolder {
 public:
  // Makes it in TMPDIR. `owner`: the process that writes there, whose user gets the folder. kUnavailable: it can't be
  // made; kPermissionDenied: it can't be given to that user.
  static absl::StatusOr<TraceFolder> Make(pid_t owner);
  ~TraceFolder() { Remove(); }
  TraceFolder(TraceFolder&& other) noexcept;
  TraceFolder& operator=(TraceFolder&&) = delete;

  // Whether the file of a trace lies in a folder of this kind: only the process that made it can read it.
  static bool Holds(const std::string& file);

  const std::string& file() const { return file_; }
  // Opens the file and takes its name away, so that nothing of it stays however this process ends. Nothing happens
  // while nobody has made it yet.
  void TakeNameAway();
  // Reads as much as was written. Errors as ReadTraceFile.
  absl::StatusOr<TraceContents> Read() const;

 private:
  explicit TraceFolder(const std::string& name) : name_(name), file_(name + "/job.pftrace") {}
  void Remove();

  std::string name_;  // empty: it is gone
  const std::string file_;
  runtime::FileDescriptor opened_;
};

}  // namespace cohort::launcher
