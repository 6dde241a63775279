// A dlaunch that waits for other machines to join.
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "cohort/launcher/base/net/own_addresses.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/join_line.h"

namespace cohort::launcher {
namespace {

using std::string;

class Waiting : public ::testing::Test {
 protected:
  void SetUp() override {
    if (OwnAddresses().empty()) GTEST_SKIP() << "this machine has no address that others may reach";
  }
};

TEST_F(Waiting, NoticesEndNothingAndReachNobody) {
  // The ranks stay for a moment in which they would hear a notice that was kept for them.
  DlaunchProcess first({"--nnodes", "2", "--wait", "600", "sh", "-c",
                        "trap 'echo heard' USR1 USR2; echo rank $RANK; sleep 0.3; echo done"});
  const string token = TokenOf(&first);
  ASSERT_TRUE(token.starts_with("cohort1.")) << first.err();
  for (const int signal : {SIGUSR1, SIGUSR2, SIGUSR1}) {
    const size_t before = first.err().size();
    ASSERT_EQ(::kill(first.pid(), signal), 0);
    ASSERT_TRUE(first.WaitUntil([&] {
      return first.err().find(" came before the job had started, and there was nobody to tell", before) != string::npos;
    })) << first.err();
  }
  DlaunchProcess second({"join", token});
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_NE(first.out().find("[0] done"), string::npos) << first.out();
  EXPECT_NE(first.out().find("[1] done"), string::npos) << first.out();
  EXPECT_EQ(first.out().find("heard"), string::npos) << first.out();
}

TEST_F(Waiting, OtherSignalsEndTheWait) {
  DlaunchProcess first({"--nnodes", "2", "--wait", "600", "true"});
  ASSERT_NE(TokenOf(&first), "") << first.err();
  ASSERT_EQ(::kill(first.pid(), SIGTERM), 0);
  EXPECT_EQ(first.Wait(), 143) << first.err();
}

}  // namespace
}  // namespace cohort::launcher
