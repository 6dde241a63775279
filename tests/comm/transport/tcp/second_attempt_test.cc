// A connection that the acceptor closes amid the handshake costs another attempt, not the job.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "cohort/comm/transport/tcp/handshake.h"
#include "cohort/comm/transport/tcp/socket/sockets.h"
#include "cohort/comm/transport/tcp/tcp_transport.h"
#include "cohort/comm/transport/tcp/wire.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/support/transport_world.h"

namespace cohort::comm {
namespace {

using runtime::Deadline;
using std::chrono::seconds;

runtime::FileDescriptor AcceptOne(int listener) {
  pollfd wait = {listener, POLLIN, 0};
  int error = 0;
  if (poll(&wait, 1, 30'000) != 1) return runtime::FileDescriptor();
  return tcp::AcceptFrom(listener, &error);
}

// False: the connection has ended.
bool ReadAll(int socket, void* to, size_t bytes) {
  pollfd wait = {socket, POLLIN, 0};
  for (size_t at = 0; at < bytes;) {
    if (poll(&wait, 1, 30'000) != 1) return false;
    const ssize_t got = recv(socket, static_cast<char*>(to) + at, bytes - at, 0);
    if (got <= 0) return false;
    at += static_cast<size_t>(got);
  }
  return true;
}

// Takes a connection as the rank of `terms` would, and closes it after `frames` frames of the other side. All of them,
// if there is no end before: a socket that carries frames.
runtime::FileDescriptor Take(int listener, const tcp::HandshakeTerms& terms, int frames) {
  runtime::FileDescriptor socket = AcceptOne(listener);
  auto handshake = tcp::Handshake::Accept(terms);
  for (int i = 0; i < frames && handshake.ok(); ++i) {
    tcp::HandshakeFrame frame;
    if (!socket.valid() || !ReadAll(socket.get(), &frame, sizeof frame)) return runtime::FileDescriptor();
    const auto reply = handshake->Take(frame);
    if (!reply.ok() || !reply->has_value()) return runtime::FileDescriptor();
    (void)!send(socket.get(), &**reply, sizeof **reply, MSG_NOSIGNAL);
  }
  return socket;
}

std::string ActAsRank(TransportRank& self, int closed_after) {
  const tcp::HandshakeTerms terms = {
      self.identity.job_secret, self.identity.job_id, 2, self.identity.rank, 2, tcp::ConfigurationOf(tcp::LimitsOf(2))};
  const auto listener = tcp::Listen("127.0.0.1", "", 0);
  if (!listener.ok()) return listener.status().ToString();
  const tcp::Published published = {terms.configuration, *tcp::AddressesOf(listener->get())};
  if (const absl::Status put = self.store->Put("tcp/address/2/" + std::to_string(terms.rank), tcp::ToText(published));
      !put.ok()) {
    return put.ToString();
  }
  for (int i = 0; i < 3; ++i) Take(listener->get(), terms, closed_after);
  const runtime::FileDescriptor socket = Take(listener->get(), terms, 2);
  tcp::FrameHeader header;
  if (!socket.valid() || !ReadAll(socket.get(), &header, sizeof header)) return "no frame came";
  if (header.message_bytes != 8) return "another frame came";
  return self.store->Get("sent", Deadline::After(seconds(30))).ok() ? "" : "the send did not end";
}

TEST(TcpSecondAttempt, ASecondAttemptFollowsAConnectionClosedAmidTheHandshake) {
  SetTransport([](const runtime::Identity& identity, runtime::KeyValueStore* store) {
    return MakeTcpTransport(identity, store);
  });
  for (const int initiator : {0, 1}) {
    for (const int closed_after : {0, 1}) {
      const std::vector<int> codes = RunRanks(2, [&](TransportRank& self) -> std::string {
        self.transport.reset();
        self.identity.epoch = 2;
        if (self.identity.rank != initiator) return ActAsRank(self, closed_after);
        auto transport = self.Make(self.identity);
        if (!transport.ok()) return transport.status().ToString();
        self.transport = *std::move(transport);
        const uint64_t value = 5;
        const absl::Status status = self.Send(*self.Connect(1 - initiator), &value, sizeof value);
        (void)self.store->Put("sent", "1");
        return status.ToString() == "OK" ? "" : status.ToString();
      });
      EXPECT_EQ(codes, std::vector<int>({0, 0})) << "rank " << initiator << ", after " << closed_after << " frames";
    }
  }
}

}  // namespace
}  // namespace cohort::comm
