// The choice of a rank's processes that get a signal.
#include "cohort/launcher/agent/watch/signal_targets.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

uint64_t Bit(int signal) { return uint64_t{1} << (signal - 1); }

struct Tree {
  RankMember& Add(pid_t pid, pid_t parent, const std::string& program) {
    members.push_back({.pid = pid, .parent = parent, .program = program});
    return members.back();
  }
  std::vector<pid_t> ToEnd(bool late = false) const {
    const auto is_told = [this](const RankMember& member) { return member.pid == told; };
    return Pids(WhoIsToEnd(members, is_told, late));
  }
  std::vector<pid_t> ToNotice(int signal) const { return Pids(WhoTakesNotice(members, signal)); }
  static std::vector<pid_t> Pids(const std::vector<const RankMember*>& found) {
    std::vector<pid_t> pids;
    for (const RankMember* member : found) pids.push_back(member->pid);
    return pids;
  }
  RankMembers members;
  pid_t told = 0;
};
using Pids = std::vector<pid_t>;

TEST(SignalTargets, AProgramThatDiesOfTheSignalDoesNotPassItOn) {
  Tree tree;
  tree.Add(10, 1, "bash");
  tree.Add(11, 10, "sh");
  tree.Add(12, 11, "python3.11").caught = Bit(SIGTERM);
  EXPECT_EQ(tree.ToEnd(), (Pids{10, 11, 12}));
}

TEST(SignalTargets, AProgramThatHoldsAChildsTerminalEndsWithTheChild) {
  Tree tree;
  tree.Add(10, 1, "bash");
  tree.Add(11, 10, "expect");
  RankMember& program = tree.Add(12, 11, "python3.11");
  program.caught = Bit(SIGTERM);
  program.terminal = 34816;
  EXPECT_EQ(tree.ToEnd(), (Pids{10, 12}));
}

TEST(SignalTargets, AProgramThatHandlesTheSignalDecidesAboutItsHelpers) {
  Tree tree;
  tree.Add(10, 1, "python3.11").caught = Bit(SIGTERM);
  tree.Add(11, 10, "python3.11");
  tree.Add(12, 10, "python3.11").ignored = Bit(SIGTERM);
  EXPECT_EQ(tree.ToEnd(), (Pids{10}));
}

TEST(SignalTargets, AProgramThatIgnoresTheSignalIsPassedOver) {
  Tree tree;
  tree.Add(10, 1, "bash").ignored = Bit(SIGTERM);
  tree.Add(11, 10, "python3.11").caught = Bit(SIGTERM);
  EXPECT_EQ(tree.ToEnd(), (Pids{11}));
}

TEST(SignalTargets, AShellsTrapWaitsForTheForegroundProgram) {
  Tree tree;
  tree.Add(10, 1, "dash").caught = Bit(SIGTERM);
  tree.Add(11, 10, "python3.11").caught = Bit(SIGTERM);
  tree.Add(12, 10, "python3.11").ignored = Bit(SIGINT) | Bit(SIGQUIT);  // `program &`
  EXPECT_EQ(tree.ToEnd(), (Pids{10, 11}));
  tree.told = 10;
  EXPECT_EQ(tree.ToEnd(), (Pids{10})) << "later children are the trap's";
}

TEST(SignalTargets, AProgramThatReadsTheOutputOfAnotherEndsWithThat) {
  Tree tree;
  tree.Add(10, 1, "bash");
  tree.Add(11, 10, "python3.11").outputs = {PipeId{7, 70}, PipeId{7, 70}};
  tree.members.back().caught = Bit(SIGTERM);
  tree.Add(12, 10, "tee").input = {7, 70};
  EXPECT_EQ(tree.ToEnd(), (Pids{10, 11}));
  std::erase_if(tree.members, [](const RankMember& member) { return member.pid == 11; });
  EXPECT_EQ(tree.ToEnd(), (Pids{10, 12})) << "nobody prints what it reads";
}

TEST(SignalTargets, AProgramThatReadsFromAPipeAndHandlesTheSignalGetsIt) {
  Tree tree;
  tree.Add(10, 1, "bash");
  tree.Add(11, 10, "yes").outputs[0] = {7, 70};
  RankMember& reader = tree.Add(12, 10, "python3.11");
  reader.input = {7, 70};
  reader.caught = Bit(SIGTERM);
  EXPECT_EQ(tree.ToEnd(), (Pids{10, 11, 12}));
}

TEST(SignalTargets, ALateSignalReachesTheChildOfAScriptThatOnlyWaits) {
  Tree tree;
  RankMember& script = tree.Add(10, 1, "python3.11");
  script.caught = Bit(SIGTERM);
  script.waits = true;
  tree.Add(11, 10, "train").caught = Bit(SIGTERM);
  EXPECT_EQ(tree.ToEnd(), (Pids{10}));
  EXPECT_EQ(tree.ToEnd(/*late=*/true), (Pids{10, 11}));
  tree.Add(12, 10, "helper");
  EXPECT_EQ(tree.ToEnd(/*late=*/true), (Pids{10})) << "a program with helpers";
}

TEST(SignalTargets, OrphansGetTheSignalThemselves) {
  Tree tree;
  tree.Add(11, 1, "python3.11").caught = Bit(SIGTERM);
  tree.Add(12, 11, "helper");
  tree.Add(20, 1, "sleep");
  EXPECT_EQ(tree.ToEnd(), (Pids{11, 20}));
}

TEST(SignalTargets, ANoticeReachesProgramsThatHandleIt) {
  Tree tree;
  tree.Add(10, 1, "bash");
  EXPECT_TRUE(tree.ToNotice(SIGUSR1).empty());
  tree.Add(11, 10, "python3.11").caught = Bit(SIGUSR1);
  tree.Add(12, 11, "python3.11").caught = Bit(SIGUSR1);
  EXPECT_EQ(tree.ToNotice(SIGUSR1), (Pids{11}));
  EXPECT_TRUE(tree.ToNotice(SIGUSR2).empty());
}

}  // namespace
}  // namespace cohort::launcher
