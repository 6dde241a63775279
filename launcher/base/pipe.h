// A pipe whose ends are owned.
#pragma once

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

struct Pipe {
  runtime::FileDescriptor read_end;
  runtime::FileDescriptor write_end;

  // Makes the pipe. Returns false, with errno, if there are no descriptors left. Both ends close on exec and lie above
  // the standard streams. dup2 calls of a child can then neither run into each other nor leave one closed on exec.
  bool Open();
};

}  // namespace cohort::launcher
