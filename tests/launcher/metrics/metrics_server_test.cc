// The metrics server alone; a real job is scraped in tests/launcher/dlaunch.
#include "cohort/launcher/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

bool IsListeningAt(int port) {
  const runtime::FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// They look up every two seconds, for which no job should wait. Had they been waited for, the port would be free.
TEST(MetricsServer, TheServerEndsWithoutWaitingForItsThreads) {
  auto server = MetricsServer::Start("127.0.0.1:0", [] {});
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  ASSERT_GT(port, 0);
  EXPECT_TRUE(IsListeningAt(port));
  server->reset();
  EXPECT_TRUE(IsListeningAt(port));
}

}  // namespace
}  // namespace cohort::launcher
