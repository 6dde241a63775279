// Ranks with several interfaces, which are addresses of the loopback interface here: what travels over which.
#include <gtest/gtest.h>
#include <linux/tcp.h>  // the C library's tcp_info lacks the bytes
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/comm/transport/tcp/socket/sockets.h"
#include "cohort/comm/transport/tcp/tcp_transport.h"
#include "tests/support/transport_world.h"

namespace cohort::comm {
namespace {

void UseTcp() {
  SetTransport([](const runtime::Identity& identity, runtime::KeyValueStore* store) {
    return MakeTcpTransport(identity, store);
  });
}

constexpr uint8_t kListening = 10;  // the kernel's TCP_LISTEN

using Ips = std::vector<std::string>;

// Makes a rank's transport on 127.0.0.1 and `further`.
std::string Make(TransportRank& self, const Ips& further, runtime::KeyValueStore* store, bool encrypt = false) {
  TcpOptions options;
  options.further_ips = further;
  options.encrypt = encrypt;
  self.transport.reset();
  self.identity.epoch = 2;
  auto transport = MakeTcpTransport(self.identity, store, options);
  if (!transport.ok()) return transport.status().ToString();
  self.transport = *std::move(transport);
  return "";
}

// Bytes that this process' connections have moved, by their own address ("127.0.0.1").
std::map<std::string, uint64_t> BytesByAddress() {
  std::map<std::string, uint64_t> bytes;
  for (int descriptor = 0; descriptor < 256; ++descriptor) {
    tcp::SocketAddress address;
    address.bytes = sizeof address.storage;
    tcp_info info = {};
    socklen_t size = sizeof info;
    const bool tcp = getsockname(descriptor, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) == 0 &&
                     address.storage.ss_family == AF_INET &&
                     getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
    if (!tcp || info.tcpi_state == kListening) continue;
    const std::string text = tcp::ToText(address);
    bytes[text.substr(0, text.find(':'))] += info.tcpi_bytes_acked + info.tcpi_bytes_received;
  }
  return bytes;
}

// Sends a message of `bytes` to the other rank and back `times` times.
std::string PingPong(TransportRank& self, Link& link, size_t bytes, int times) {
  std::vector<uint8_t> data(bytes), got(bytes);
  for (int time = 0; time < times; ++time) {
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(i * 31 + i / 251 + static_cast<size_t>(time));
    absl::Status status;
    if (self.identity.rank == 0) status = self.Send(link, data.data(), bytes);
    if (status.ok()) status = self.Recv(link, got.data(), bytes);
    if (status.ok() && self.identity.rank == 1) status = self.Send(link, data.data(), bytes);
    if (!status.ok()) return status.ToString();
    if (got != data) return "other bytes came";
  }
  return "";
}

// Until `ip` carries half of a message in both directions.
std::string Warm(TransportRank& self, Link& link, const std::string& ip) {
  constexpr size_t kBytes = 1 << 20;
  for (int i = 0; i < 300; ++i) {
    const uint64_t before = BytesByAddress()[ip];
    if (const std::string wrong = PingPong(self, link, kBytes, 1); !wrong.empty()) return wrong;
    // Rank 0, whose bytes are all acknowledged by now, tells the other one whether to go on.
    uint8_t there = BytesByAddress()[ip] - before >= kBytes ? 1 : 0;
    const absl::Status status = self.identity.rank == 0 ? self.Send(link, &there, 1) : self.Recv(link, &there, 1);
    if (!status.ok()) return status.ToString();
    if (there == 1) return "";
  }
  return ip + " does not carry its half";
}

// "" where all connections have one address. No rank ends, and so closes its own, before the other has looked.
std::string OneAddress(TransportRank& self, Link& link) {
  const size_t addresses = BytesByAddress().size();
  uint8_t looked = 1;
  const absl::Status status = self.identity.rank == 0 ? self.Send(link, &looked, 1) : self.Recv(link, &looked, 1);
  if (!status.ok()) return status.ToString();
  return addresses == 1 ? "" : "connections of " + std::to_string(addresses) + " addresses";
}

TEST(TcpSeveralInterfaces, SeveralInterfacesCarryLongMessagesTogether) {
  UseTcp();
  const std::vector<int> codes = RunRanks(2, [](TransportRank& self) -> std::string {
    // The first that both have.
    const Ips further = self.identity.rank == 0 ? Ips{"127.0.0.2", "127.0.0.3"} : Ips{"127.0.0.2"};
    if (const std::string wrong = Make(self, further, self.store); !wrong.empty()) return wrong;
    const auto link = self.Connect(1 - self.identity.rank);
    if (const std::string wrong = PingPong(self, *link, 10'000, 20); !wrong.empty()) return wrong;
    if (BytesByAddress().size() != 1) return "short messages have made connections";
    if (const std::string wrong = Warm(self, *link, "127.0.0.2"); !wrong.empty()) return wrong;
    auto before = BytesByAddress();
    if (const std::string wrong = PingPong(self, *link, 8 << 20, 4); !wrong.empty()) return wrong;
    auto after = BytesByAddress();
    if (after.size() != 2) return std::to_string(after.size()) + " interfaces carry data";
    for (const char* ip : {"127.0.0.1", "127.0.0.2"}) {
      // Half of 64 MiB; what the kernel has not acknowledged at the end is missing.
      const uint64_t moved = after[ip] - before[ip];
      if (moved < (24u << 20) || moved > (40u << 20)) return ip + (": " + std::to_string(moved)) + " bytes";
    }
    before = after;
    if (const std::string wrong = PingPong(self, *link, 100'000, 20); !wrong.empty()) return wrong;
    after = BytesByAddress();
    // An acknowledgement of what was on its way before may come late.
    if (after["127.0.0.1"] - before["127.0.0.1"] < 3'500'000) return "short messages went elsewhere";
    return "";
  });
  EXPECT_EQ(codes, std::vector<int>({0, 0}));
}

TEST(TcpSeveralInterfaces, OneInterfaceOnOneSideMeansOneOnBoth) {
  UseTcp();
  const std::vector<int> codes = RunRanks(2, [](TransportRank& self) -> std::string {
    const Ips further = self.identity.rank == 0 ? Ips{} : Ips{"127.0.0.2"};
    if (const std::string wrong = Make(self, further, self.store); !wrong.empty()) return wrong;
    const auto link = self.Connect(1 - self.identity.rank);
    if (const std::string wrong = PingPong(self, *link, 4 << 20, 10); !wrong.empty()) return wrong;
    return OneAddress(self, *link);
  });
  EXPECT_EQ(codes, std::vector<int>({0, 0}));
}

TEST(TcpSeveralInterfaces, OneInterfaceCarriesAllEncryptedData) {
  UseTcp();
  const std::vector<int> codes = RunRanks(2, [](TransportRank& self) -> std::string {
    if (const std::string wrong = Make(self, {"127.0.0.2"}, self.store, /*encrypt=*/true); !wrong.empty()) return wrong;
    const auto link = self.Connect(1 - self.identity.rank);
    if (const std::string wrong = PingPong(self, *link, 4 << 20, 10); !wrong.empty()) return wrong;
    return OneAddress(self, *link);
  });
  EXPECT_EQ(codes, std::vector<int>({0, 0}));
}

// Gives the port 1, on which nobody listens, for each further interface.
class Misleading : public runtime::KeyValueStore {
 public:
  explicit Misleading(runtime::KeyValueStore* store) : store_(store) {}
  absl::Status Put(std::string_view key, std::string_view value) override { return store_->Put(key, value); }
  absl::StatusOr<std::string> Get(std::string_view key, runtime::Deadline deadline) override {
    auto value = store_->Get(key, deadline);
    const size_t rail = value.ok() ? value->find(" rail=127.0.0.2:") : std::string::npos;
    if (rail == std::string::npos) return value;
    const size_t port = value->find(':', rail) + 1;
    return value->replace(port, value->find(' ', port) - port, "1");
  }

 private:
  runtime::KeyValueStore* const store_;
};

TEST(TcpSeveralInterfaces, AnInterfaceThatIsNotReachedIsLeftOutAndLoggedOnce) {
  UseTcp();
  const std::vector<int> codes = RunRanks(2, [](TransportRank& self) -> std::string {
    Misleading store(self.store);
    if (const std::string wrong = Make(self, {"127.0.0.2", "127.0.0.3"}, &store); !wrong.empty()) return wrong;
    auto link = self.Connect(1 - self.identity.rank);
    ::testing::internal::CaptureStderr();
    std::string wrong = Warm(self, *link, "127.0.0.3");
    if (wrong.empty()) wrong = PingPong(self, *link, 4 << 20, 10);
    const bool there = BytesByAddress().contains("127.0.0.2");
    link.reset();
    self.transport.reset();
    const std::string said = ::testing::internal::GetCapturedStderr();
    if (!wrong.empty()) return wrong;
    if (there) return "127.0.0.2 is used";
    const std::string text = "cohort: rank " + std::to_string(self.identity.rank) + " can't reach rank " +
                             std::to_string(1 - self.identity.rank) + " over lo (127.0.0.2)";
    const size_t first = said.find(text);
    if (first == std::string::npos) return "it was not told: " + said;
    return said.find(text, first + 1) == std::string::npos ? "" : "told twice: " + said;
  });
  EXPECT_EQ(codes, std::vector<int>({0, 0}));
}

TEST(TcpSeveralInterfaces, AnInterfaceThatThisHostLacksIsRefused) {
  UseTcp();
  const std::vector<int> codes = RunRanks(1, [](TransportRank& self) -> std::string {
    const std::string wrong = Make(self, {"192.0.2.77"}, self.store);
    return wrong.find("192.0.2.77") != std::string::npos && wrong.find("COHORT_DATA_ADDRESS") != std::string::npos
               ? ""
               : "'" + wrong + "'";
  });
  EXPECT_EQ(codes, std::vector<int>({0}));
}

}  // namespace
}  // namespace cohort::comm
