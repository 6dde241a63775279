#include "cohort/launcher/agent/launcher_orders.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace cohort::launcher {

LauncherOrders::LauncherOrders(EventLoop* loop, Handler handle) : loop_(loop), handle_(std::move(handle)) {}

bool LauncherOrders::Watch() {
  return loop_->Watch(STDIN_FILENO, EPOLLIN, [this](uint32_t) { Read(); });
}

void LauncherOrders::TakeWaiting() {
  pollfd ready{STDIN_FILENO, POLLIN, 0};
  if (!ended_ && ::poll(&ready, 1, 0) > 0) Read();
}

void LauncherOrders::Read() {
  char buffer[64u << 10];
  const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) return End();
  reader_.Append(buffer, static_cast<size_t>(n));
  for (v1::ToNode message; !ended_;) {  // a handler may end it
    const absl::StatusOr<bool> next = reader_.Next(&message);
    if (!next.ok()) return handle_(Broken{std::string(next.status().message())});
    if (!*next) return;
    handle_(Order{&message});
  }
}

void LauncherOrders::End() {
  if (ended_) return;
  Close();
  handle_(Ended{});
}

void LauncherOrders::Close() {
  ended_ = true;
  loop_->Unwatch(STDIN_FILENO);
}

}  // namespace cohort::launcher
