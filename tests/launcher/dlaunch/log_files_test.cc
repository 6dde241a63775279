// --log-dir on a file system that does not answer.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

// A named pipe that nobody reads stands for it: opening it blocks for ever, as on a file server that is gone.
TEST(LogFiles, ADiskThatHangsKeepsNobodyFromTheJob) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() + "/rank-1.out").c_str(), 0600), 0);
  DlaunchProcess job({"--simulate-nodes", "2", "--log-dir", folder.path(), "sh", "-c",
                      "yes $(printf %01000d 0) | head -n 6000; echo the end"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.out().find("[0] the end\n"), std::string::npos);
  EXPECT_NE(job.out().find("[1] the end\n"), std::string::npos);
  EXPECT_NE(job.err().find("rank-1.out: the disk is too slow"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("bytes of what ranks have printed are missing in " + folder.path() + "/rank-1.out"),
            std::string::npos)
      << job.err();
  EXPECT_EQ(job.err().find("lost"), std::string::npos) << job.err();
}

// A folder that can't be made is refused before anybody is asked, or waited for.
TEST(LogFiles, AFolderThatCanNotBeMadeIsRefusedFirst) {
  const auto start = std::chrono::steady_clock::now();
  DlaunchProcess waits({"--nnodes", "2", "--wait", "600", "--log-dir", "/dev/null/logs", "true"});
  EXPECT_EQ(waits.Wait(), 2) << waits.err();
  EXPECT_NE(waits.err().find("--log-dir /dev/null/logs"), std::string::npos) << waits.err();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));  // the promise is one

  const TemporaryFolder folder;
  const std::string asked = folder.path() + "/asked";
  DlaunchProcess asks({"--ssh", folder.AddScript("ssh", "#!/bin/sh\ntouch " + asked + "\nexit 1\n"), "--hosts", "a,b",
                       "--log-dir", "/dev/null/logs", "true"});
  EXPECT_EQ(asks.Wait(), 2) << asks.err();
  EXPECT_NE(asks.err().find("--log-dir /dev/null/logs"), std::string::npos) << asks.err();
  EXPECT_FALSE(std::filesystem::exists(asked)) << "a host was asked before";
}

}  // namespace
}  // namespace cohort::launcher
