// A pipe whose ends are owned.
#pragma once

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {

struct Pipe {
  runtime::FileDescriptor read_end;
  runtime::FileDescriptor write_end;

  // False, with errno, where there are no descriptors left. Both ends close on exec and lie above the standard streams,
  // so that dup2 calls of a child can neither run into each other nor leave one closed on exec.
  bool Open();
};

}  // namespace cohort::launcher
