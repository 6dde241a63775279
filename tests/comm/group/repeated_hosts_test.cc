// Short messages between more hosts than a rank reads from without asking for events (comm/transport/tcp).
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/all_well.h"
#include "tests/support/process_cluster.h"

namespace cohort::testing {
namespace {

using comm::Buffer;
using comm::Communicator;
using comm::ConstBuffer;
using runtime::Work;

constexpr auto kBound = std::chrono::seconds(10);
constexpr int kHosts = 7;

// One call site a direction, so that all messages but the first of a peer repeat one.
Work SendTo(Communicator& world, int peer, const int32_t* value) { return world.Send(ConstBuffer(value, 1), peer); }
Work ReceiveFrom(Communicator& world, int peer, int32_t* value) { return world.Recv(Buffer(value, 1), peer); }

// Rank 0 hears from every other one.
std::string Greet(ProcessRank& self) {
  int32_t value = 0;
  for (int peer = 1; peer < kHosts; ++peer) {
    for (int i = 0; i < (peer == 1 ? 50 : 1); ++i) {
      if (self.rank != 0 && self.rank != peer) continue;
      const absl::Status status =
          (self.rank == 0 ? ReceiveFrom(*self.world, peer, &value) : SendTo(*self.world, 0, &value)).Wait(kBound);
      if (!status.ok()) return status.ToString();
    }
  }
  return "";
}

// Rank 0 waits for all others, and then for two messages that rank 1 has sent at once. One system call reads both, so
// the second lies in the connection's buffer when the first is taken. `count`: the elements of the second that it
// expects.
std::string ReceiveTwo(ProcessRank& self, int64_t count, std::vector<Work>* others) {
  static std::array<int32_t, kHosts> values;
  for (int peer = 2; peer < kHosts; ++peer) others->push_back(ReceiveFrom(*self.world, peer, &values[peer]));
  int32_t value = 0;
  if (absl::Status first = ReceiveFrom(*self.world, 1, &value).Wait(kBound); !first.ok()) return first.ToString();
  if (value != 100) return "another message";
  std::array<int32_t, 2> second{};
  const absl::Status status = self.world->Recv(Buffer(second.data(), count), 1).Wait(kBound);
  if (count == 1) return status.ok() && second[0] == 101 ? "" : "the second: " + status.ToString();
  return status.code() == absl::StatusCode::kFailedPrecondition ? "" : "no mismatch: " + status.ToString();
}

std::string TwoAtOnce(ProcessRank& self, int64_t count) {
  if (std::string wrong = Greet(self); !wrong.empty()) return wrong;
  for (int32_t value = 100; value < 102 && self.rank == 1; ++value) {
    if (absl::Status sent = SendTo(*self.world, 0, &value).Wait(kBound); !sent.ok()) return sent.ToString();
  }
  if (self.rank < 2 && !self.meet("sent", 2)) return "rank 1 did not send";
  std::vector<Work> others;
  std::string wrong;
  if (self.rank == 0) wrong = ReceiveTwo(self, count, &others);
  if (!self.meet("go", kHosts)) return "they did not meet";
  const int32_t value = 0;
  if (self.rank >= 2) others.push_back(SendTo(*self.world, 0, &value));
  for (Work& work : others) {
    const absl::Status status = work.Wait(kBound);
    if (count == 1 && !status.ok()) wrong += status.ToString();
  }
  return wrong;
}

TEST(RepeatedHostsTest, AMessageBehindAShortOneIsFound) {
  if (const std::string why = WhyHostsCannotTalk(); !why.empty()) GTEST_SKIP() << why;
  ExpectAllWell(RunProcesses({.ranks = kHosts, .nodes = kHosts}, [](ProcessRank& self) { return TwoAtOnce(self, 1); }));
}

TEST(RepeatedHostsTest, AMismatchBehindAShortOneIsFound) {
  if (const std::string why = WhyHostsCannotTalk(); !why.empty()) GTEST_SKIP() << why;
  ExpectAllWell(RunProcesses({.ranks = kHosts, .nodes = kHosts}, [](ProcessRank& self) { return TwoAtOnce(self, 2); }));
}

}  // namespace
}  // namespace cohort::testing
