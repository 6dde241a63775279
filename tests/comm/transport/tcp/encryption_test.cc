// Ranks that differ in whether they encrypt do not talk to each other.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/transport/tcp/tcp_transport.h"
#include "tests/support/transport_world.h"

namespace cohort::comm {
namespace {

TEST(TcpEncryption, ARankThatDoesNotEncryptIsRefused) {
  SetTransport([](const runtime::Identity& identity, runtime::KeyValueStore* store) {
    TcpOptions options;
    options.encrypt = identity.rank == 0;
    return MakeTcpTransport(identity, store, options);
  });
  const std::vector<int> codes = RunRanks(2, [](TransportRank& self) -> std::string {
    const uint64_t value = 5;
    const absl::Status status = self.Send(*self.Connect(1 - self.identity.rank), &value, sizeof value);
    const std::string text(status.message());
    const std::string other = self.identity.rank == 0 ? "it does not encrypt data" : "it encrypts data";
    const bool clear = text.find(other) != std::string::npos && text.find("--encrypt-data") != std::string::npos;
    return status.code() == absl::StatusCode::kFailedPrecondition && clear ? "" : status.ToString();
  });
  EXPECT_EQ(codes, std::vector<int>({0, 0}));
}

TEST(TcpEncryption, EncryptionIsLoggedWithItsCost) {
  SetTransport([](const runtime::Identity& identity, runtime::KeyValueStore* store) {
    return MakeTcpTransport(identity, store);
  });
  const std::vector<int> codes = RunRanks(1, [](TransportRank& self) -> std::string {
    TcpOptions options;
    options.encrypt = true;
    SharedStore store;
    std::string description;
    const auto transport = MakeTcpTransport(self.identity, &store, options, &description);
    if (!transport.ok()) return transport.status().ToString();
    const bool said = description.find("encrypted by TLS 1.3, AES-256-GCM, ") != std::string::npos &&
                      description.find(" GB/s a core") != std::string::npos;
    return said ? "" : description;
  });
  EXPECT_EQ(codes, std::vector<int>({0}));
}

}  // namespace
}  // namespace cohort::comm
