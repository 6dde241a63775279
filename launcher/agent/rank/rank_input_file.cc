#include "cohort/launcher/agent/rank/rank_input_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "cohort/launcher/base/piped_process.h"

namespace cohort::launcher {

RankInputFile RankInputFile::Inherited(int argc, char** argv) {
  RankInputFile file;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], kRankInputArgument) == 0) file.fd_ = runtime::FileDescriptor(kInheritedDescriptor);
  }
  if (!file.fd_.valid() || ::fcntl(file.fd_.get(), F_SETFD, FD_CLOEXEC) != 0) return {};
  file.begin_ = ::lseek(file.fd_.get(), 0, SEEK_CUR);
  return file;
}

int RankInputFile::OfEpoch(uint64_t epoch) const {
  if (fd_.valid() && epoch > 1 && begin_ >= 0) ::lseek(fd_.get(), begin_, SEEK_SET);
  return fd_.valid() ? fd_.get() : -1;
}

}  // namespace cohort::launcher
