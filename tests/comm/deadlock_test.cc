// Ranks of one node that wait for each other, where no agent looks after them. Under dlaunch: tests/job.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "cohort/comm/communicator.h"
#include "cohort/runtime/base/sanitizer.h"
#include "tests/support/all_well.h"
#include "tests/support/process_cluster.h"

namespace cohort::testing {
namespace {

using comm::Communicator;
using comm::ReduceOp;

// Empty: the error is what it should be. The promise is 1 s, ten times that is asserted, and the timeout is 10 minutes.
std::string WhyNotADeadlock(const absl::Status& status, std::chrono::steady_clock::time_point start,
                            const std::vector<std::string>& words) {
  const std::string text(status.message());
  if (status.code() != absl::StatusCode::kFailedPrecondition) return "another error: " + status.ToString();
  for (const std::string& word : words) {
    if (text.find(word) == std::string::npos) return "the error does not say '" + word + "': " + text;
  }
  if (text.find("deadlock_test.cc:") == std::string::npos) return "the error names no call site: " + text;
  return std::chrono::steady_clock::now() - start > std::chrono::seconds(10) ? "it came late" : "";
}

TEST(DeadlockTest, RanksThatBothReceiveFirstAreToldOfTheDeadlock) {
  if (COHORT_THREAD_SANITIZER) GTEST_SKIP() << "the sanitizer's thread counts as one that may yet make the call";
  ExpectAllWell(RunProcesses({.ranks = 3}, [](ProcessRank& self) -> std::string {
    if (self.rank == 2) return self.meet("end", 3) ? "" : "nobody came";
    float value = 0;
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = self.world->Recv({&value, 1}, 1 - self.rank).Wait();
    const std::string why =
        WhyNotADeadlock(status, start, {"ranks 0,1 wait for each other", "rank 0 is in recv(", "rank 1 is in recv("});
    return self.meet("end", 3) ? why : "nobody came";
  }));
}

TEST(DeadlockTest, RanksThatBothSendSomethingLargeFirstAreToldOfTheDeadlock) {
  if (COHORT_THREAD_SANITIZER) GTEST_SKIP() << "the sanitizer's thread counts as one that may yet make the call";
  ExpectAllWell(RunProcesses({.ranks = 2}, [](ProcessRank& self) -> std::string {
    std::vector<float> data(1 << 20, 1.0f);
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = self.world->Send({data.data(), 1 << 20}, 1 - self.rank).Wait();
    const std::string why = WhyNotADeadlock(status, start, {"rank 0 is in send(", "rank 1 is in send("});
    return self.meet("end", 2) ? why : "nobody came";
  }));
}

TEST(DeadlockTest, CallsOfTwoGroupsInOppositeOrderAreADeadlock) {
  if (COHORT_THREAD_SANITIZER) GTEST_SKIP() << "the sanitizer's thread counts as one that may yet make the call";
  ExpectAllWell(RunProcesses({.ranks = 3}, [](ProcessRank& self) -> std::string {
    auto other = self.world->Duplicate();
    if (!other.ok()) return other.status().ToString();
    float value = 1;
    const auto start = std::chrono::steady_clock::now();
    Communicator& first = self.rank == 1 ? **other : *self.world;
    absl::Status status = first.AllReduce({&value, 1}, {&value, 1}, ReduceOp::kSum).Wait();
    const std::string why = WhyNotADeadlock(status, start, {"rank 1 is in all_reduce(", " of group ", "for rank 1"});
    return self.meet("end", 3) ? why : "nobody came";
  }));
}

TEST(DeadlockTest, ASlowRankIsNoDeadlock) {
  ExpectAllWell(RunProcesses({.ranks = 3}, [](ProcessRank& self) -> std::string {
    float value = 1;
    if (self.rank == 2) {  // the others have waited for longer than a verdict takes
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      while (std::chrono::steady_clock::now() < end) {
      }
    }
    const absl::Status summed = self.world->AllReduce({&value, 1}, {&value, 1}, ReduceOp::kSum).Wait();
    if (!summed.ok()) return summed.ToString();
    const int from = (self.rank + 2) % 3;
    const absl::Status got = self.rank == 0 ? absl::OkStatus() : self.world->Recv({&value, 1}, from).Wait();
    if (!got.ok()) return got.ToString();
    const absl::Status sent = self.rank == 2 ? absl::OkStatus() : self.world->Send({&value, 1}, self.rank + 1).Wait();
    return sent.ok() ? "" : sent.ToString();
  }));
}

}  // namespace
}  // namespace cohort::testing
