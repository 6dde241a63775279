// Two network namespaces as two machines, with a network between them that delays, loses, is slow, and is cut: results
// are right, or the error is clear and comes in time.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/comm/transport/net/net_interface.h"
#include "cohort/comm/transport/tcp/tcp_transport.h"
#include "cohort/comm/transport/ucx/ucx_transport.h"
#include "tests/support/linked_namespaces.h"
#include "tests/support/process_cluster.h"

namespace cohort::comm {
namespace {

using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using testing::LinkedNamespaces;
using testing::ProcessRank;

class NetNamespaces : public ::testing::Test {
 protected:
  void SetUp() override {
    static const std::string reason = testing::WhyHostsCannotTalk();
    if (!reason.empty()) GTEST_SKIP() << reason;
    auto made = LinkedNamespaces::Create();
    if (!made.ok()) GTEST_SKIP() << made.status().message();
    link_ = *std::move(made);
    options_.ranks = options_.nodes = 2;
    options_.deadline = seconds(100);
    options_.enter_node = [this](int node) -> std::string {
      const absl::Status entered = link_->Enter(node);
      if (!entered.ok()) return std::string(entered.message());
      setenv("COHORT_DATA_ADDRESS", LinkedNamespaces::AddressOf(node).c_str(), 1);
      return "";
    };
  }

  void ExpectAllRight(const std::function<std::string(ProcessRank&)>& program) {
    for (const testing::RankResult& result : testing::RunProcesses(options_, program)) {
      EXPECT_EQ(result.text, "");
      EXPECT_TRUE(result.exited);
      EXPECT_FALSE(result.hung);
    }
  }

  std::unique_ptr<LinkedNamespaces> link_;
  testing::ProcessClusterOptions options_;
};

// One all-reduce of small whole numbers, whose sum is exact; "" when it is right.
std::string AllReduceIsRight(ProcessRank& self, size_t count, int round) {
  std::vector<float> in(count), out(count);
  for (size_t i = 0; i < count; ++i) in[i] = static_cast<float>((i + static_cast<size_t>(round)) % 1000 + self.rank);
  const auto elements = static_cast<int64_t>(count);
  const absl::Status status =
      self.world->AllReduce(ConstBuffer(in.data(), elements), Buffer(out.data(), elements), ReduceOp::kSum).Wait();
  if (!status.ok()) return std::string(status.message());
  for (size_t i = 0; i < count; ++i) {
    const auto expected = static_cast<float>(2 * ((i + static_cast<size_t>(round)) % 1000) + 1);
    if (out[i] != expected) return "element " + std::to_string(i) + " is wrong in round " + std::to_string(round);
  }
  return "";
}

TEST_F(NetNamespaces, ResultsAreRightOverALinkThatDelaysAndLoses) {
  link_->settings().delay_us = 1000;
  link_->settings().lost_per_million = 10'000;
  ExpectAllRight([](ProcessRank& self) -> std::string {
    for (int round = 0; round < 40; ++round) {
      for (const size_t count : {size_t{2}, size_t{5000}, size_t{200'000}}) {
        if (count > 5000 && round % 10 != 0) continue;
        if (std::string problem = AllReduceIsRight(self, count, round); !problem.empty()) return problem;
      }
    }
    return "";
  });
  EXPECT_GT(link_->settings().bytes_carried.load(), 40u * 5000 * 4);
}

TEST_F(NetNamespaces, ASlowLinkIsUsedFullyAndNeverOverrun) {
  link_->settings().bits_per_second = 1'000'000'000;
  const Clock::time_point begin = Clock::now();
  ExpectAllRight([](ProcessRank& self) -> std::string {
    for (int round = 0; round < 3; ++round) {
      if (std::string problem = AllReduceIsRight(self, size_t{4} << 20, round); !problem.empty()) return problem;
    }
    return "";
  });
  const std::chrono::duration<double> took = Clock::now() - begin;
  // Half of a 16 MiB vector travels each way twice, three times: 48 MiB each way take 0.4 s. All bytes went this way.
  EXPECT_GT(took.count(), 0.4);
  EXPECT_GT(link_->settings().bytes_carried.load(), uint64_t{96} << 20);
}

TEST_F(NetNamespaces, APartitionEndsInAClearErrorInTime) {
  ExpectAllRight([this](ProcessRank& self) -> std::string {
    if (std::string problem = AllReduceIsRight(self, 1000, 0); !problem.empty()) return problem;
    if (!self.meet("connected", 2)) return "the other rank is absent";
    link_->settings().cut = true;
    std::vector<float> in(1000), out(1000);
    CallOptions options;
    options.timeout = seconds(2);
    const Clock::time_point begin = Clock::now();
    const absl::Status status =
        self.world->AllReduce(ConstBuffer(in.data(), 1000), Buffer(out.data(), 1000), ReduceOp::kSum, options).Wait();
    if (Clock::now() - begin > seconds(20)) return "the error came too late";
    if (!absl::IsDeadlineExceeded(status) && !absl::IsUnavailable(status)) return "no error: " + status.ToString();
    const std::string other = "rank " + std::to_string(1 - self.rank);
    const std::string text(status.message());
    return text.find(other) != std::string::npos ? "" : "the error does not name " + other + ": " + text;
  });
}

TEST_F(NetNamespaces, AShortOutageIsAbsorbed) {
  ExpectAllRight([this](ProcessRank& self) -> std::string {
    if (std::string problem = AllReduceIsRight(self, 1000, 0); !problem.empty()) return problem;
    if (!self.meet("connected", 2)) return "the other rank is absent";
    link_->settings().cut = true;
    std::thread repair([this] {
      std::this_thread::sleep_for(std::chrono::seconds(1));  // the outage itself, no wait for anything
      link_->settings().cut = false;
    });
    std::string problem = AllReduceIsRight(self, 100'000, 1);
    repair.join();
    return problem;
  });
}

// A store for one process.
class OwnStore : public runtime::KeyValueStore {
 public:
  absl::Status Put(std::string_view, std::string_view) override { return absl::OkStatus(); }
  absl::StatusOr<std::string> Get(std::string_view, runtime::Deadline) override {
    return absl::DeadlineExceededError("nobody is there");
  }
};

TEST_F(NetNamespaces, TheInterfaceOfTheAddressIsChosenAndNamedThoughThereIsADecoy) {
  ExpectAllRight([](ProcessRank& self) -> std::string {
    const auto decoy = net::InterfaceOf("10.99.0." + std::to_string(self.rank + 1));
    if (!decoy.ok() || *decoy != "decoy0") return "there is no decoy";
    runtime::Identity identity = self.runtime->identity();
    identity.data_interface_ip = LinkedNamespaces::AddressOf(self.rank);
    OwnStore store;
    std::string by_ucx, by_tcp;
    const auto ucx = MakeUcxTransport(identity, &store, {}, &by_ucx);
    if (!ucx.ok() && !absl::IsUnimplemented(ucx.status())) return std::string(ucx.status().message());
    const auto tcp = MakeTcpTransport(identity, &store, {}, &by_tcp);
    if (!tcp.ok()) return std::string(tcp.status().message());
    const std::string expected = "wire0 (" + LinkedNamespaces::AddressOf(self.rank) + ")";
    if (ucx.ok() && by_ucx.find(expected) == std::string::npos) return "printed: " + by_ucx;
    if (by_tcp.find(expected) == std::string::npos) return "printed: " + by_tcp;
    // And the job's own traffic goes there.
    return AllReduceIsRight(self, 100, 0);
  });
  EXPECT_GT(link_->settings().bytes_carried.load(), 800u);
}

}  // namespace
}  // namespace cohort::comm
