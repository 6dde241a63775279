#include "cohort/launcher/agent/agent_life.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace cohort::launcher {
namespace {

TEST(NodeLife, OnlyTheListedTransitionsAreLegal) {
  using enum NodeLife;
  const std::set<std::pair<NodeLife, NodeLife>> legal = {
      {kIdle, kRunning}, {kIdle, kDone}, {kRunning, kDone}, {kDone, kRunning}};
  for (const NodeLife from : {kIdle, kRunning, kDone}) {
    for (const NodeLife to : {kIdle, kRunning, kDone}) {
      EXPECT_EQ(MayFollow(from, to), legal.contains({from, to}))
          << static_cast<int>(from) << " -> " << static_cast<int>(to);
    }
  }
}

TEST(JobLife, OnlyTheListedTransitionsAreLegal) {
  using enum JobLife;
  const std::set<std::pair<JobLife, JobLife>> legal = {
      {kGoesOn, kStopping}, {kStopping, kGoesOn}, {kGoesOn, kOver}, {kStopping, kOver}, {kOver, kLingering}};
  for (const JobLife from : {kGoesOn, kStopping, kOver, kLingering}) {
    for (const JobLife to : {kGoesOn, kStopping, kOver, kLingering}) {
      EXPECT_EQ(MayFollow(from, to), legal.contains({from, to}))
          << static_cast<int>(from) << " -> " << static_cast<int>(to);
    }
  }
}

}  // namespace
}  // namespace cohort::launcher
