// The hosts of the last jobs, for completion.
#include "cohort/launcher/jobs/recent_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

using testing::ElementsAre;

TEST(RecentHosts, TheLatestComeFirstAndEachOnce) {
  EXPECT_THAT(MergeHosts({"c", "a"}, {"a", "b"}), ElementsAre("c", "a", "b"));
}

TEST(RecentHosts, NamesThatAShellWouldActOnAreLeftOut) {
  EXPECT_THAT(MergeHosts({"a b", "$(id)", "-o", "user@n1", "[fe80::1%eth0]", "", "x\n"}, {"`id`"}),
              ElementsAre("user@n1", "[fe80::1%eth0]"));
}

TEST(RecentHosts, TheListIsBounded) {
  std::vector<std::string> many;
  for (size_t i = 0; i < 2 * kMostRecentHosts; ++i) many.push_back("n" + std::to_string(i));
  EXPECT_EQ(MergeHosts(many, many).size(), kMostRecentHosts);
}

}  // namespace
}  // namespace cohort::launcher
