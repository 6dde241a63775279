#include "cohort/launcher/base/pipe.h"

#include <fcntl.h>
#include <unistd.h>

namespace cohort::launcher {

bool Pipe::Open() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  read_end = runtime::FileDescriptor(ends[0]);
  write_end = runtime::FileDescriptor(ends[1]);
  for (runtime::FileDescriptor* end : {&read_end, &write_end}) {
    if (end->get() <= 2) *end = runtime::FileDescriptor(::fcntl(end->get(), F_DUPFD_CLOEXEC, 3));
  }
  return read_end.valid() && write_end.valid();
}

}  // namespace cohort::launcher
