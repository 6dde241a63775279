// Machines that come to a job by themselves and can't be used.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "cohort/launcher/base/net/own_addresses.h"
#include "cohort/launcher/join/token.h"
#include "cohort/launcher/options/options.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/join_line.h"
#include "tests/support/linked_namespaces.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::chrono::seconds;
using testing::LinkedNamespaces;

TEST(LeftOut, AnUnusableNodeIsLeftOutWhereTheOthersAreEnough) {
  if (OwnAddresses().empty()) GTEST_SKIP() << "this machine has no address that others may reach";
  DlaunchProcess first({"--nnodes", "2:2", "--wait", "60", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE"});
  const string line = TokenOf(&first);
  const auto token = ParseToken(line);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_TRUE(OfferOldMachine(token->addresses, token->secret).starts_with("host relic has dlaunch 0.0.1"));
  DlaunchProcess second({"join", line});
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_NE(first.err().find("left out: host relic has dlaunch 0.0.1, here it is "), string::npos) << first.err();
  EXPECT_NE(first.err().find(" joined: 2 of 2 nodes"), string::npos) << first.err();
  EXPECT_NE(first.out().find("[1] rank 1 of 2"), string::npos) << first.out();
}

TEST(LeftOut, NoNodeIsLeftOutWhereAllAreNeeded) {
  if (OwnAddresses().empty()) GTEST_SKIP() << "this machine has no address that others may reach";
  DlaunchProcess first({"--nnodes", "3", "--wait", "60", "--", "true"});
  const auto token = ParseToken(TokenOf(&first));
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_TRUE(OfferOldMachine(token->addresses, token->secret).starts_with("host relic has dlaunch 0.0.1"));
  EXPECT_EQ(first.Wait(seconds(20)), kExitUsage) << first.err();
  EXPECT_NE(first.err().find("host relic has dlaunch 0.0.1, here it is "), string::npos) << first.err();
}

// The other has no address in the network that --iface names.
TEST(LeftOut, ANodeThatIsLeftOutIsToldWhy) {
  const auto namespaces = LinkedNamespaces::Create();
  if (!namespaces.ok()) GTEST_SKIP() << namespaces.status().message();
  const auto in = [&](int node) {
    return DlaunchSurroundings{.enter = [&namespaces, node] { return (*namespaces)->Enter(node).ok(); }};
  };
  DlaunchProcess first({"--nnodes", "1:2", "--iface", LinkedNamespaces::AddressOf(0) + "/32", "--wait", "8", "--", "sh",
                        "-c", "echo rank $RANK of $WORLD_SIZE"},
                       in(0));
  const string token = TokenOf(&first);
  ASSERT_NE(token, "") << first.err();
  DlaunchProcess second({"join", token}, in(1));
  EXPECT_EQ(second.Wait(), kExitLauncher) << second.err();
  EXPECT_NE(second.err().find("this machine is not used; the job's first machine says: host "), string::npos)
      << second.err();
  EXPECT_NE(second.err().find(" has no address on --iface 10.77."), string::npos) << second.err();
  EXPECT_TRUE(second.err().ends_with(" [no-interface]\n")) << second.err();
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_NE(first.err().find("left out: host "), string::npos) << first.err();
  EXPECT_NE(first.out().find("rank 0 of 1"), string::npos) << first.out();
}

}  // namespace
}  // namespace cohort::launcher
