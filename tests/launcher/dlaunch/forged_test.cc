// Data from another machine cannot pass for another rank's output, nor for dlaunch's own words. The tests use an ssh
// that is a script, and agents that are none.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "cohort/launcher/agent/agent.h"
#include "cohort/launcher/base/message_pipe.h"
#include "cohort/v1/rendezvous.pb.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using std::string;

// Reads the beginning of a message.
constexpr char kUntilTold[] = "head -c 1 >/dev/null";

// Answers as a host when it is asked what it has; runs `agent` in place of one.
string AddSsh(const TemporaryFolder& folder, const string& agent) {
  return folder.AddScript("ssh",
                          "#!/bin/sh\n"
                          "for word; do host=$last; last=$word; done\n"
                          "case \"$last\" in *--inventory) eval \"$last\";; esac\n" +
                              agent + "\n");
}

TEST(Forged, ALineOfOutputIsOneLine) {
  const TemporaryFolder folder;
  v1::FromNode message;
  message.mutable_output()->set_text("a line\n[1] forged");
  string said = kAgentPreamble;
  AppendDelimited(message, &said);
  std::ofstream(folder.path() + "/said", std::ios::binary) << said;
  DlaunchProcess job({"--ssh", AddSsh(folder, "[ $host = a ] && cat " + folder.path() + "/said; " + kUntilTold),
                      "--hosts", "a,b", "true"});
  EXPECT_EQ(job.Wait(), 125) << job.err();
  EXPECT_EQ(job.out().find("forged"), string::npos) << job.out();
  EXPECT_NE(job.err().find("it sent a line of output with another in it"), string::npos) << job.err();
}

// Neither while it is asked for nor later: dlaunch prints the words of ssh, and of agents behind it, as its own.
TEST(Forged, WordsOfSshCanNotSteerATerminal) {
  const TemporaryFolder folder;
  const string words = "printf '\\033]0;title\\007 no route\\nlast words' >&2; ";
  DlaunchProcess job({"--ssh",
                      AddSsh(folder, string("[ $host = b ] && ") + kUntilTold + " && exit; " + words + "exit 255"),
                      "--hosts", "a,b", "true"});
  EXPECT_EQ(job.Wait(), 125) << job.err();
  EXPECT_NE(job.err().find("dlaunch: a: \\x1b]0;title\\x07 no route\n"), string::npos) << job.err();
  const size_t last = job.err().find("dlaunch: a: last words\n");
  EXPECT_NE(last, string::npos) << job.err();
  EXPECT_LT(last, job.err().find("the agent of a (pid ")) << job.err();
  EXPECT_EQ(job.err().find('\033'), string::npos) << job.err();
}

}  // namespace
}  // namespace cohort::launcher
