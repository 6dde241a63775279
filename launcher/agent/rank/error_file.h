// The file in which a rank's Python program leaves the exception that ends it, as torchrun's do:
// TORCHELASTIC_ERROR_FILE names it, and torch.distributed.elastic's @record writes it, as JSON:
//
//   {"message": {"message": "ValueError: no such file", "extraInfo": {"py_callstack": "Traceback (most ...", ...}}}
//
// Handlers of others write {"message": "text"}. It is nameless memory of the agent's, which the rank opens through the
// agent's entry in /proc: nothing is left on disk, whatever ends first.
#pragma once

#include <string>
#include <vector>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

// The variable that names it to the rank.
inline constexpr char kErrorFileVariable[] = "TORCHELASTIC_ERROR_FILE";

class ErrorFile {
 public:
  // No file: where it can't be made, the program does without.
  ErrorFile() = default;
  static ErrorFile Make();

  bool valid() const { return memory_.valid(); }
  // The path by which processes of this user open it, as long as this process lives.
  std::string path() const;
  // The lines of the traceback that was written to it, or the message. Empty where nothing was, or nothing that is
  // understood. The rank is not trusted: what is longer than 256 KiB is not read. Never blocks.
  std::vector<std::string> Lines() const;

 private:
  runtime::FileDescriptor memory_;
};

// The same, of a text. Pure.
std::vector<std::string> LinesOfErrorFile(const std::string& text);

}  // namespace cohort::launcher
