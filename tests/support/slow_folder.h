// A file server that answers late.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/fanotify.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace cohort::testing {

// While it lives, opening a file of the folder blocks.
class SlowFolder {
 public:
  explicit SlowFolder(const std::string& path) : fd_(::fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY)) {
    if (fd_ >= 0 &&
        ::fanotify_mark(fd_, FAN_MARK_ADD, FAN_OPEN_PERM | FAN_EVENT_ON_CHILD, AT_FDCWD, path.c_str()) != 0) {
      ::close(std::exchange(fd_, -1));
    }
  }
  ~SlowFolder() {  // allows what waits
    if (fd_ >= 0) ::close(fd_);
  }
  SlowFolder(const SlowFolder&) = delete;
  SlowFolder& operator=(const SlowFolder&) = delete;

  // False: see why_not().
  bool works() const { return fd_ >= 0; }
  static const char* why_not() { return "opening files can't be delayed here: no CAP_SYS_ADMIN, or no fanotify"; }
  // Waits until a file is being opened.
  void AwaitOpening() const {
    pollfd opening{.fd = fd_, .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&opening, 1, 20'000), 1);
    fanotify_event_metadata event{};
    ASSERT_EQ(::read(fd_, &event, sizeof event), static_cast<ssize_t>(sizeof event));
    ::close(event.fd);
  }

 private:
  int fd_;
};

}  // namespace cohort::testing
