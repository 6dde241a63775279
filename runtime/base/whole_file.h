// Files that are there whole or not at all: every program and library of ours publishes files by these calls.
//
// Programs that write them ignore SIGXFSZ, so that the limit on a file's size is an error like any other.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cohort::runtime {

struct WholeFileOptions {
  bool replace = true;   // false: a file of that name that is there already stays, and is kAlreadyExists
  mode_t mode = 0666;    // of a new file, less the umask
  bool durable = false;  // true: the text and its name survive a power failure once the call has returned OK
  // How long a named pipe may have no reader, and the reader of a pipe or terminal that does not block take nothing.
  std::chrono::milliseconds patience = std::chrono::minutes(10);
};

// Text that comes in pieces: the next one, valid until the next call; empty at the end.
using TextSource = std::function<absl::StatusOr<std::string_view>()>;

// Puts the text under this name: written beside it under another one first, so that a full disk, a limit or a killed
// program leaves what was there before. What is no regular file (a pipe, a device) and what is one of this process'
// descriptors (/dev/stdout, whatever it is) is written to directly, whether to be replaced or not. The system's error
// with the name, or the source's own; kDeadlineExceeded where the patience with a reader is at its end.
absl::Status WriteWholeFile(const std::string& path, const TextSource& source, const WholeFileOptions& options = {});
absl::Status WriteWholeFile(const std::string& path, std::string_view text, const WholeFileOptions& options = {});

// Writes a new file in its place, for a folder that is renamed when all its files are complete. The text survives a
// power failure; its name does once SyncFolder has returned. kAlreadyExists where the name is taken: that file stays.
// Removes what it made where it fails with the system's error or the source's own.
absl::Status WriteNewFile(const std::string& path, const TextSource& source);

// Makes names in a folder (new, renamed or removed ones) survive a power failure. The system's error with the name.
absl::Status SyncFolder(const std::string& folder);
// The same for the folder that holds `path`.
absl::Status SyncFolderOf(const std::string& path);

// Whether WriteWholeFile could write there now, as far as one can tell without the text: to be asked before hours of
// work. Leaves nothing behind. The system's error with the name.
absl::Status CheckWritable(const std::string& path);

}  // namespace cohort::runtime
