#include "cohort/runtime/process/open_descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "cohort/runtime/process/raw_call.h"

namespace cohort::runtime {
namespace {

constexpr int kCloseOnExec = 4;  // CLOSE_RANGE_CLOEXEC, which headers of old kernels lack

void CloseOne(int fd) { RawCall(SYS_close, fd); }
void MarkOne(int fd) { RawCall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC); }

// An entry that getdents64 writes, up to the name.
struct EntryHead {
  uint64_t inode;
  int64_t offset;
  uint16_t bytes;
  uint8_t type;
};
constexpr size_t kNameAt = 19;

// -1 where it is no number: "." and "..".
int NumberOf(const char* name) {
  int number = 0;
  for (; *name != '\0'; ++name) {
    if (*name < '0' || *name > '9') return -1;
    number = number * 10 + (*name - '0');
  }
  return number;
}

// The list may change while it is read: the kernel's place in it is a number of a descriptor. False without /proc.
bool ChangeListed(int first, void (*change)(int)) {
  const auto folder =
      static_cast<int>(RawCall(SYS_openat, AT_FDCWD, RawArgument("/proc/self/fd"), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder < 0) return false;
  alignas(EntryHead) char entries[1024];
  for (;;) {
    const auto bytes = RawCall(SYS_getdents64, folder, RawArgument(entries), sizeof entries);
    if (bytes <= 0) break;
    for (const char* at = entries; at < entries + bytes;) {
      EntryHead head;
      std::memcpy(&head, at, sizeof head);
      const int fd = NumberOf(at + kNameAt);
      if (fd >= first && fd != folder) change(fd);
      at += head.bytes;
    }
  }
  RawCall(SYS_close, folder);
  return true;
}

void ChangeFrom(int first, int flags, void (*change)(int)) {
  if (RawCall(SYS_close_range, first, std::numeric_limits<unsigned>::max(), flags) == 0) return;
  if (ChangeListed(first, change)) return;
  rlimit limit{};
  if (RawCall(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, RawArgument(&limit)) != 0) return;
  for (int fd = first; static_cast<rlim_t>(fd) < limit.rlim_cur; ++fd) change(fd);
}

}  // namespace

void CloseFrom(int first) { ChangeFrom(first, 0, CloseOne); }

void CloseOnExecFrom(int first) { ChangeFrom(first, kCloseOnExec, MarkOne); }

}  // namespace cohort::runtime
