// Two TLS streams and a wire between them, on which this test reads and changes bytes.
#include "cohort/comm/transport/tcp/tls_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::comm::tcp {
namespace {

std::vector<std::byte> Pattern(size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 31 + i / 251);
  return data;
}

net::Mac KeyOf(uint8_t first) {
  net::Mac key = {};
  key[0] = first;
  return key;
}

// One end: its socket, and the other end of that, which the test holds.
struct End {
  runtime::FileDescriptor own, wire;
  std::unique_ptr<TlsStream> stream;
  std::vector<std::byte> seen;  // that this end has sent on the wire
  size_t passed_on = 0;
};

class TcpTlsStream : public ::testing::Test {
 protected:
  static constexpr uint64_t kRecordsPerKey = 3;

  void SetUp() override { Make(KeyOf(1), KeyOf(1)); }
  void Make(const net::Mac& client_key, const net::Mac& server_key) {
    auto context = TlsContext::Make();
    ASSERT_TRUE(context.ok()) << context.status();
    client_ = {};
    server_ = {};
    context_ = *std::move(context);
    MakeEnd(client_, true, client_key);
    MakeEnd(server_, false, server_key);
  }
  void MakeEnd(End& end, bool client, const net::Mac& key) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    end.own = runtime::FileDescriptor(pair[0]);
    end.wire = runtime::FileDescriptor(pair[1]);
    auto stream = TlsStream::Make(*context_, end.own.get(), client, key, kRecordsPerKey);
    ASSERT_TRUE(stream.ok()) << stream.status();
    end.stream = *std::move(stream);
  }
  // Carries what is on the wire from one end to the other.
  static void Carry(End& from, End& to) {
    std::byte buffer[4096];
    for (ssize_t got; (got = recv(from.wire.get(), buffer, sizeof buffer, 0)) > 0;) {
      from.seen.insert(from.seen.end(), buffer, buffer + got);
    }
    while (from.passed_on < from.seen.size()) {
      const ssize_t sent =
          send(to.wire.get(), from.seen.data() + from.passed_on, from.seen.size() - from.passed_on, MSG_NOSIGNAL);
      if (sent <= 0) return;
      from.passed_on += static_cast<size_t>(sent);
    }
  }
  // Greets until both ends are done or one has failed.
  bool Greet() {
    std::byte none;
    bool more = false;
    for (int i = 0; i < 100 && (client_.stream->greeting() || server_.stream->greeting()); ++i) {
      client_.stream->Receive(&none, 1, &more);
      Carry(client_, server_);
      server_.stream->Receive(&none, 1, &more);
      Carry(server_, client_);
      if (!client_.stream->status().ok() || !server_.stream->status().ok()) return false;
    }
    return !client_.stream->greeting() && !server_.stream->greeting();
  }
  // Sends `data` with a head of 100 bytes before it, until all has come or the receiver sees an error. What has come.
  static std::vector<std::byte> Move(End& from, End& to, const std::vector<std::byte>& data,
                                     const std::function<void()>& on_wire = nullptr) {
    std::vector<std::byte> got(data.size());
    size_t sent = 0, received = 0;
    bool more = false;
    while (received < data.size() && to.stream->status().ok()) {
      const size_t head = sent < 100 ? 100 - sent : 0;
      const ssize_t taken =
          from.stream->Send(data.data() + sent, head, data.data() + sent + head, data.size() - sent - head);
      if (taken > 0) sent += static_cast<size_t>(taken);
      if (on_wire != nullptr) on_wire();
      Carry(from, to);
      for (ssize_t bytes; (bytes = to.stream->Receive(got.data() + received, got.size() - received, &more)) > 0;) {
        received += static_cast<size_t>(bytes);
        if (received == data.size()) break;
      }
    }
    got.resize(received);
    return got;
  }

  std::unique_ptr<TlsContext> context_;
  End client_, server_;
};

TEST_F(TcpTlsStream, CarriesBytesBothWaysWhileKeysChange) {
  ASSERT_TRUE(Greet());
  const std::vector<std::byte> data = Pattern(3 << 20);
  EXPECT_EQ(Move(client_, server_, data), data);
  EXPECT_EQ(Move(server_, client_, data), data);
  EXPECT_EQ(Move(client_, server_, Pattern(101)), Pattern(101));
  client_.own.Close();
  client_.wire.Close();
}

TEST_F(TcpTlsStream, DataDoesNotAppearOnTheWire) {
  ASSERT_TRUE(Greet());
  const std::string secret = "weights that are nobody's business";
  std::vector<std::byte> data;
  for (int i = 0; i < 1000; ++i) {
    for (const char letter : secret) data.push_back(static_cast<std::byte>(letter));
  }
  EXPECT_EQ(Move(client_, server_, data), data);
  const std::string seen(reinterpret_cast<const char*>(client_.seen.data()), client_.seen.size());
  EXPECT_GT(seen.size(), data.size());
  EXPECT_EQ(seen.find("nobody"), std::string::npos);
}

TEST_F(TcpTlsStream, AChangedByteIsAnErrorAndNoWrongData) {
  for (const size_t place : {0u, 3u, 10u, 16'000u, 50'000u}) {
    Make(KeyOf(1), KeyOf(1));
    ASSERT_TRUE(Greet());
    const std::vector<std::byte> data = Pattern(100'000);
    Carry(client_, server_);
    const size_t begin = client_.seen.size();
    bool changed = false;
    // Takes from the wire before Carry passes it on.
    const auto change = [&] {
      std::byte buffer[4096];
      for (ssize_t got; (got = recv(client_.wire.get(), buffer, sizeof buffer, 0)) > 0;) {
        client_.seen.insert(client_.seen.end(), buffer, buffer + got);
      }
      if (changed || client_.seen.size() <= begin + place) return;
      client_.seen[begin + place] ^= std::byte{1};
      changed = true;
    };
    const std::vector<std::byte> got = Move(client_, server_, data, change);
    EXPECT_LT(got.size(), data.size()) << place;
    EXPECT_TRUE(std::equal(got.begin(), got.end(), data.begin())) << place;
    EXPECT_EQ(server_.stream->status().code(), absl::StatusCode::kUnavailable) << place;
  }
}

TEST_F(TcpTlsStream, AnotherKeyIsRefused) {
  Make(KeyOf(1), KeyOf(2));
  EXPECT_FALSE(Greet());
  const std::byte data = {};
  EXPECT_LE(client_.stream->Send(&data, 1, nullptr, 0), 0);
  EXPECT_LE(server_.stream->Send(&data, 1, nullptr, 0), 0);
}

TEST_F(TcpTlsStream, GarbageIsAnError) {
  const std::string garbage(1000, 'x');
  for (End* end : {&client_, &server_}) {
    ASSERT_EQ(send(end->wire.get(), garbage.data(), garbage.size(), 0), 1000);
    std::byte to;
    bool more = false;
    EXPECT_EQ(end->stream->Receive(&to, 1, &more), -1);
    EXPECT_EQ(errno, EBADMSG);
    EXPECT_EQ(end->stream->status().code(), absl::StatusCode::kUnavailable) << end->stream->status();
  }
}

TEST_F(TcpTlsStream, TheEndIsReportedAfterTheLastByte) {
  ASSERT_TRUE(Greet());
  const std::vector<std::byte> data = Pattern(1000);
  ASSERT_EQ(client_.stream->Send(data.data(), data.size(), nullptr, 0), 1000);
  Carry(client_, server_);
  server_.wire.Close();  // which an event tells a connection
  std::vector<std::byte> got(2000);
  bool more = false;
  EXPECT_EQ(server_.stream->Receive(got.data(), got.size(), &more), 1000);
  EXPECT_EQ(server_.stream->Receive(got.data(), got.size(), &more), 0);
}

}  // namespace
}  // namespace cohort::comm::tcp
