// UCX's transport in its process: releases that fit, ports, signals, descriptors.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "cohort/comm/transport/ucx/session.h"
#include "cohort/comm/transport/ucx/ucx_transport.h"
#include "cohort/comm/transport/ucx/wire.h"
#include "tests/support/transport_world.h"

namespace cohort::comm {
namespace {

class UcxProcess : public testing::Test {
 protected:
  void SetUp() override {
    const NetKind kind = NetKinds().front();
    if (const std::string reason = WhyNot(kind); !reason.empty()) GTEST_SKIP() << reason;
    SetTransport(kind.make);
  }
};

// By default UCX catches SIGHUP, for debugging: a rank whose terminal is gone would live on.
TEST_F(UcxProcess, ARankThatUsesUcxStillDiesOfSighup) {
  const std::vector<int> codes = RunRanks(1, [](TransportRank&) -> std::string {
    raise(SIGHUP);
    return "it lives on";
  });
  EXPECT_EQ(codes, std::vector<int>{128 + SIGHUP});
}

// Strangers' connections take some, and where none is left UCX stops listening.
TEST_F(UcxProcess, DescriptorsAreNotBoundByTheSoftLimit) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{.rlim_cur = 256, .rlim_max = before.rlim_max};
  if (before.rlim_max <= low.rlim_cur) GTEST_SKIP() << "the hard limit is " << before.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const std::vector<int> codes = RunRanks(2, [&low](TransportRank& self) -> std::string {
    auto link = self.Connect(1 - self.identity.rank);
    rlimit now{};
    if (getrlimit(RLIMIT_NOFILE, &now) != 0 || now.rlim_cur <= low.rlim_cur) {
      return "it is " + std::to_string(now.rlim_cur);
    }
    return "";
  });
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(codes, (std::vector<int>{0, 0}));
}

// Returns the error of sending to rank 1 of epoch 2 when that has published `text`.
std::string FailureWhenPeerPublishes(TransportRank& self, const std::string& text, bool any_version) {
  self.transport.reset();
  runtime::Identity identity = TestIdentity(0, 2);
  identity.epoch = 2;
  (void)self.store->Put("ucx/address/2/1", text);
  UcxOptions options;
  options.any_version = any_version;
  auto transport = MakeUcxTransport(identity, self.store, options);
  if (!transport.ok()) return transport.status().ToString();
  self.transport = *std::move(transport);
  auto link = self.Connect(1);
  uint64_t value = 0;
  const absl::Status status = self.Send(*link, &value, 8);
  return absl::IsFailedPrecondition(status) ? std::string(status.message()) : status.ToString();
}

TEST_F(UcxProcess, PeersThatDoNotFitAreRefusedInOneLine) {
  const std::string configuration = ucx::ConfigurationOf(ucx::kStreamLimits);
  const std::string other = ucx::ConfigurationOf(ucx::kRdmaLimits);
  struct Case {
    std::string text, names;
    bool any_version = false;
  };
  const std::vector<Case> cases = {
      {ucx::ToText({"9.9", configuration, {}, "address"}), "it uses UCX 9.9, this rank"},
      {ucx::ToText({"9.9", other, {}, "address"}), other, true},
      {"1.13 what an older build publishes", "another version of Cohort"},
  };
  for (const Case& one : cases) {
    const std::vector<int> codes = RunRanks(1, [&one](TransportRank& self) -> std::string {
      const std::string failure = FailureWhenPeerPublishes(self, one.text, one.any_version);
      const bool one_line = failure.find('\n') == std::string::npos;
      const bool clear = failure.find("rank 1") == 0 && failure.find(one.names) != std::string::npos;
      return one_line && clear ? "" : failure;
    });
    EXPECT_EQ(codes, std::vector<int>({0})) << one.names;
  }
}

// Whether some socket of this machine listens on a port from `first` to `last`.
bool SomebodyListens(int first, int last) {
  std::ifstream table("/proc/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    unsigned port = 0, state = 0;
    if (std::sscanf(line.c_str(), " %*d: %*8x:%4x %*8x:%*4x %2x", &port, &state) != 2) continue;
    if (state == 0x0a && port >= static_cast<unsigned>(first) && port <= static_cast<unsigned>(last)) return true;
  }
  return false;
}

TEST_F(UcxProcess, ListensInThePortRangeThatIsGiven) {
  const std::vector<int> codes = RunRanks(1, [](TransportRank& self) -> std::string {
    self.transport.reset();
    runtime::Identity identity = TestIdentity(0, 2);
    identity.epoch = 2;
    const int first = 20000 + getpid() % 20000;
    if (SomebodyListens(first, first + 9)) return "";  // somebody else's ports: nothing can be seen here
    UcxOptions options;
    options.port_range = std::to_string(first) + "-" + std::to_string(first + 9);
    const auto transport = MakeUcxTransport(identity, self.store, options);
    if (!transport.ok()) return transport.status().ToString();
    return SomebodyListens(first, first + 9) ? "" : "nobody listens in " + options.port_range;
  });
  EXPECT_EQ(codes, std::vector<int>({0}));
}

}  // namespace
}  // namespace cohort::comm
