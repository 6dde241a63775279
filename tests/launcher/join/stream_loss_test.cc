// The network between the first machine and one that has joined is cut: both sides of their connection know it soon,
// the one that sends and the one that only hears.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "cohort/launcher/base/net/dial.h"
#include "cohort/launcher/join/gate.h"
#include "cohort/launcher/join/secure_stream.h"
#include "cohort/launcher/join/token.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/support/linked_namespaces.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::chrono::seconds;
using testing::LinkedNamespaces;

constexpr int kPort = 4711;
constexpr seconds kPatience{60};

// True when its carrier has found the connection lost.
bool Receive(const JoinKey& key) {
  absl::StatusOr<JoinGate> gate = JoinGate::Open({kPort, kPort});
  if (!gate.ok()) return false;
  auto nodes = gate->Await(key, {.count = 1, .deadline = Deadline::After(kPatience), .say = [](const std::string&) {}});
  if (!nodes.ok()) return false;
  const AgentProcess& carrier = nodes->front().agent;
  (void)!::write(carrier.input.get(), "x", 1);  // lets it begin
  ::fcntl(carrier.output.get(), F_SETFL, 0);
  char buffer[65536];
  while (::read(carrier.output.get(), buffer, sizeof buffer) > 0) {
  }
  int status = 0;
  return ::waitpid(carrier.pid, &status, 0) == carrier.pid && WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

// True when it has found the connection lost.
bool Send(const JoinKey& key) {
  const std::string address = LinkedNamespaces::AddressOf(0) + ":" + std::to_string(kPort);
  absl::StatusOr<Connection> connection = absl::UnavailableError("not yet");
  for (const Deadline deadline = Deadline::After(kPatience); !connection.ok() && !deadline.passed();) {
    connection = ConnectToFirst(address, deadline);
  }
  if (!connection.ok()) return false;
  const std::string knock = KnockOf(key);
  if (::send(connection->socket.get(), knock.data(), knock.size(), MSG_NOSIGNAL) < 0) return false;
  auto stream = SecureStream::Connect(std::move(connection->socket), key, Deadline::After(kPatience));
  if (!stream.ok()) return false;
  if (!stream->Write(FormatJoinHello(-1, TakeInventory()), Deadline::After(kPatience)).ok()) return false;
  if (!stream->AwaitBytes().ok()) return false;
  runtime::FileDescriptor zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  return !stream->Pump(std::move(zeros), runtime::FileDescriptor(::open("/dev/null", O_WRONLY | O_CLOEXEC)), {}).ok();
}

TEST(StreamLoss, ALostConnectionIsReportedToSenderAndReceiver) {
  const auto made = LinkedNamespaces::Create();
  if (!made.ok()) GTEST_SKIP() << made.status().message();
  LinkedNamespaces& namespaces = **made;
  ::signal(SIGPIPE, SIG_IGN);
  const JoinKey key = MakeJoinKey("shared");
  pid_t sides[2];
  for (const int node : {0, 1}) {
    sides[node] = ::fork();
    if (sides[node] != 0) continue;
    if (!namespaces.Enter(node).ok()) ::_exit(2);
    ::_exit((node == 0 ? Receive(key) : Send(key)) ? 0 : 1);
  }
  const auto wait_until = [](const auto& condition) {
    for (const Deadline deadline = Deadline::After(kPatience); !condition() && !deadline.passed();) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return condition();
  };
  EXPECT_TRUE(wait_until([&] { return namespaces.settings().bytes_carried > (4u << 20); }));
  const auto cut = std::chrono::steady_clock::now();
  namespaces.settings().cut = true;
  for (const pid_t side : sides) {
    int status = -1;
    const bool ended = wait_until([&] { return ::waitpid(side, &status, WNOHANG) == side || status != -1; });
    EXPECT_TRUE(ended);
    EXPECT_EQ(status, 0);
    if (ended) continue;
    ::kill(side, SIGKILL);
    ::waitpid(side, nullptr, 0);
  }
  const auto took = std::chrono::steady_clock::now() - cut;
  EXPECT_GE(took, seconds(5)) << "a connection that was only slow for a moment must last";
  EXPECT_LT(took, seconds(40));
}

}  // namespace
}  // namespace cohort::launcher
