// The hosts of the last jobs, for completion.
#include "cohort/launcher/jobs/recent_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

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

// The state of a user in a folder of its own.
class RecentHostsFile : public testing::Test {
 protected:
  RecentHostsFile() {
    std::filesystem::create_directories(folder_ + "/dlaunch");
    ::setenv("XDG_STATE_HOME", folder_.c_str(), 1);
  }
  ~RecentHostsFile() override {
    ::unsetenv("XDG_STATE_HOME");
    std::filesystem::remove_all(folder_);
  }

  const std::string folder_ = testing::TempDir() + "recent_hosts_" + std::to_string(::getpid());
  const std::string file_ = folder_ + "/dlaunch/hosts";
};

TEST_F(RecentHostsFile, RemembersTheLatestHosts) {
  RememberHosts({"node1", "node2"});
  RememberHosts({"node2"});
  EXPECT_THAT(RecentHosts(), ElementsAre("node2", "node1"));
}

TEST_F(RecentHostsFile, APipeInItsPlaceHasNoHosts) {
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  EXPECT_THAT(RecentHosts(), IsEmpty());
}

TEST_F(RecentHostsFile, ALongFileIsReadUpToItsLimit) {
  std::ofstream(file_) << "node1\n" << std::string(1 << 20, '\n') << "node2\n";
  EXPECT_THAT(RecentHosts(), ElementsAre("node1"));
}

}  // namespace
}  // namespace cohort::launcher
