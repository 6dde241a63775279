#include "cohort/launcher/base/text_file.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

constexpr size_t kMaxBytes = 16 << 20;
constexpr auto kPatience = std::chrono::seconds(30);  // for what comes through a pipe

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path, const std::string& origin) {
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(origin + ": " + path + ": " + why);
  };
  // Opening a pipe that nobody writes to must not block, and it reads as empty; one that somebody writes to is waited
  // for.
  const runtime::FileDescriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) return refuse(std::strerror(errno));
  const runtime::Deadline deadline = runtime::Deadline::After(kPatience);
  std::string text;
  std::vector<char> part(64 << 10);
  while (true) {
    const ssize_t got = read(file.get(), part.data(), part.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
      if (deadline.passed()) return refuse("a pipe whose writer has not come to an end within 30 s");
      pollfd readable{file.get(), POLLIN, 0};
      poll(&readable, 1, 100);
      continue;
    }
    if (got < 0) return refuse("can't be read: " + std::string(std::strerror(errno)));
    if (got == 0) return text;
    text.append(part.data(), static_cast<size_t>(got));
    if (text.size() > kMaxBytes) return refuse("has more than 16 MiB");
  }
}

}  // namespace cohort::launcher
