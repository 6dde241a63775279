// Messages to groups that end or fail before they have made the links that the messages came for: they are not kept,
// and their sender, who may be in more groups than links are kept for, stays a peer.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/communicator.h"
#include "tests/support/process_cluster.h"

namespace cohort::comm {
namespace {

using testing::ProcessRank;
using testing::RunProcesses;

// More in all than a transport keeps links for (4,096).
constexpr int kRounds = 50;
constexpr int kGroups = 100;  // in each round

// The message comes after its group has ended, or before.
enum class When : char { kEndFirst, kMessageFirst };

std::string Round(ProcessRank& self, When when, std::vector<std::unique_ptr<Communicator>>* failed) {
  std::vector<std::unique_ptr<Communicator>> groups;
  for (int i = 0; i < kGroups; ++i) {
    auto group = self.world->Duplicate();
    if (!group.ok()) return group.status().ToString();
    groups.push_back(*std::move(group));
  }
  const auto end = [&] {
    // Every tenth fails and stays; the others go.
    for (int i = 0; i < kGroups; i += 10) {
      groups[static_cast<size_t>(i)]->Abort("a test");
      failed->push_back(std::move(groups[static_cast<size_t>(i)]));
    }
    groups.clear();
  };
  if (self.rank == 1 && when == When::kEndFirst) end();
  int32_t value = 5;
  if (const absl::Status status = self.world->Barrier().Wait(); !status.ok()) return "before: " + status.ToString();
  std::vector<Work> sent;
  if (self.rank == 0) {
    for (const auto& group : groups) sent.push_back(group->Send({&value, 1}, 1));
  }
  // On a connection messages come one after another, so those to the groups are there when this one is.
  const absl::Status status =
      self.rank == 0 ? self.world->Send({&value, 1}, 1).Wait() : self.world->Recv({&value, 1}, 0).Wait();
  if (!status.ok()) return "the world: " + status.ToString();
  if (self.rank == 1 && when == When::kMessageFirst) end();
  return "";
}

TEST(NetGroupEndTest, MessagesToGroupsThatHaveEndedAreNotKept) {
  if (const std::string why = testing::WhyHostsCannotTalk(); !why.empty()) GTEST_SKIP() << why;
  for (const When when : {When::kEndFirst, When::kMessageFirst}) {
    SCOPED_TRACE(when == When::kEndFirst ? "the end comes first" : "the message comes first");
    const auto results = RunProcesses({.ranks = 2, .nodes = 2}, [when](ProcessRank& self) -> std::string {
      std::vector<std::unique_ptr<Communicator>> failed;
      for (int round = 0; round < kRounds; ++round) {
        if (std::string problem = Round(self, when, &failed); !problem.empty()) {
          return "round " + std::to_string(round) + ": " + problem;
        }
      }
      return std::string(self.world->Barrier().Wait().message());
    });
    for (const auto& result : results) EXPECT_EQ(result.text, "");
  }
}

}  // namespace
}  // namespace cohort::comm
