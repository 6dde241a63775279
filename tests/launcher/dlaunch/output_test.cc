// Ranks' output on its way through dlaunch: byte for byte without prefixes, one prefix a line with them, prompts at
// once, and the culprit's last words in every report.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tests/launcher/dlaunch/dlaunch_process.h"
#include "tests/launcher/dlaunch/job_text.h"

namespace cohort::launcher {
namespace {

using std::string;
using std::vector;

// Ranks that go on when the test says so.
class Gate {
 public:
  string wait() const { return "until [ -e " + path() + " ]; do sleep 0.01; done; "; }
  void Open() { std::ofstream(path()) << "go\n"; }

 private:
  string path() const { return folder_.path() + "/gate"; }

  const TemporaryFolder folder_;
};

// All bytes, lines of MiBs, returns, and no newline at the end.
string Anything() {
  std::mt19937 random(7);
  string text = "a\rb\r\n\r\r\n\n" + string(3 << 20, 'x') + "\n" + string(100'000, 'y');
  for (int i = 0; i < 1'000'000; ++i) text += static_cast<char>(random());
  return text + string("\0\r", 2);
}

TEST(Output, OutputWithoutPrefixesIsByteForByte) {
  const TemporaryFolder folder;
  const string text = Anything();
  std::ofstream(folder.path() + "/text", std::ios::binary) << text;
  DlaunchProcess job({"--no-prefix", "--log-dir", folder.path() + "/logs", "sh", "-c",
                      "cat " + folder.path() + "/text; printf '\\000err\\rfoo' >&2"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_TRUE(job.out() == text) << job.out().size() << " of " << text.size();
  EXPECT_TRUE(job.err().ends_with(string("\0err\rfoo", 8))) << job.err();
  EXPECT_TRUE(ReadFile(folder.path() + "/logs/rank-0.out") == text);
  EXPECT_EQ(ReadFile(folder.path() + "/logs/rank-0.err"), string("\0err\rfoo", 8));
}

TEST(Output, OutputOfManyRanksWithoutPrefixesHasWholeLines) {
  DlaunchProcess job({"--no-prefix", "-n", "2", "sh", "-c",
                      "for i in 1 2 3 4; do head -c 300000 /dev/zero | tr '\\0' $RANK; echo; done; printf foo"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.out().size(), 2 * (4 * 300'001u + 3));
  for (const char* digit : {"0", "1"}) EXPECT_EQ(CountOf(job.out(), string(300'000, *digit) + "\n"), 4u);
}

TEST(Output, LinesHaveOnePrefixHoweverLong) {
  DlaunchProcess job({"-n", "2", "sh", "-c", "head -c 1048576 /dev/zero | tr '\\0' $RANK; echo; printf 'the end'"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  for (const string rank : {"0", "1"}) {
    EXPECT_EQ(CountOf(job.out(), "[" + rank + "] " + string(1'048'576, rank[0]) + "\n"), 1u);
    EXPECT_EQ(CountOf(job.out(), "[" + rank + "] the end\n"), 1u);
    EXPECT_EQ(CountOf(job.out(), "[" + rank + "] "), 2u);
  }
}

TEST(Output, APromptIsShownBeforeItsLineEnds) {
  for (const bool prefix : {true, false}) {
    Gate gate;
    vector<string> arguments = {"sh", "-c", "printf 'Name? '; " + gate.wait() + "echo hello; printf bye"};
    if (!prefix) arguments.insert(arguments.begin(), "--no-prefix");
    DlaunchProcess job(arguments);
    const string shown = prefix ? "[0] Name? " : "Name? ";
    EXPECT_TRUE(job.WaitUntil([&] { return job.out() == shown; })) << job.out();
    gate.Open();
    EXPECT_EQ(job.Wait(), 0) << job.err();
    EXPECT_EQ(job.out(), prefix ? "[0] Name? hello\n[0] bye\n" : "Name? hello\nbye");
  }
}

TEST(Output, APromptIsNotGluedToTheLineOfAnother) {
  Gate gate;
  DlaunchProcess job({"-n", "2", "sh", "-c",
                      "if [ $RANK = 0 ]; then printf 'Name? '; " + gate.wait() + "echo hello; else " + gate.wait() +
                          "echo of another; fi"});
  EXPECT_TRUE(job.WaitForOutput("[0] Name? ")) << job.out();
  gate.Open();
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(CountOf(job.out(), "[1] of another\n"), 1u) << job.out();
  EXPECT_EQ(CountOf("\n" + job.out(), "\n[1] of another\n"), 1u) << job.out();
  EXPECT_EQ(CountOf(job.out(), "hello\n"), 1u) << job.out();
}

TEST(Output, AProgressBarIsShownInItsLastStateOnce) {
  DlaunchProcess job({"sh", "-c", "printf '\\r10 %%|#  |\\r50 %%|## |'; echo warning >&2; printf '\\r100 %%|###|\\n'"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] 100 %|###|\n");
}

struct Culprit {
  const char* name;
  const char* script;
  const char* words;
  int status;
};

class LastWords : public ::testing::TestWithParam<Culprit> {};

TEST_P(LastWords, LastWordsAreInTheHeadlineAndInTheRecord) {
  const TemporaryFolder folder;
  DlaunchProcess job({"-n", "2", "--log-dir", folder.path() + "/logs", "sh", "-c",
                      string("if [ $RANK = 0 ]; then sleep 1000; fi; ") + GetParam().script});
  EXPECT_EQ(job.Wait(), GetParam().status) << job.err();
  const string words = GetParam().words;
  EXPECT_NE(job.err().find(words), string::npos) << job.err();
  const string record = ReadFile(folder.path() + "/logs/report.json");
  const size_t text = record.find("\"text\": \"rank 1 (");
  ASSERT_NE(text, string::npos) << record;
  EXPECT_NE(record.substr(text, record.find('\n', text) - text).find("; its last line: \\\"" + words), string::npos)
      << record;
  EXPECT_NE(record.find("\"last_line\": \"" + words), string::npos) << record;
}

INSTANTIATE_TEST_SUITE_P(
    Of, LastWords,
    ::testing::Values(
        Culprit{"ALongLine", "head -c 1048576 /dev/zero | tr '\\0' x; echo; echo giving up; exit 6", "giving up", 6},
        Culprit{"AFlood", "seq -f 'warning %.0f' 200000; echo no licence file >&2; exit 6", "no licence file", 6},
        Culprit{"AFloodOfErrors", "seq -f 'retry %.0f' 200000 >&2; echo no licence file; exit 6", "no licence file", 6},
        Culprit{"AFewWords", "echo no licence file >&2; exit 6", "no licence file", 6},
        Culprit{"NoNewline", "printf 'no licence file'; exit 6", "no licence file", 6},
        Culprit{"BlanksAndColours", "printf '\\033[31mno licence file\\033[0m\\n\\n  \\n\\033[0m\\n' >&2; exit 6",
                "no licence file", 6},
        Culprit{"ABar", "echo no licence file; printf '\\r10 %%|# |\\r20 %%|##|'; exit 6", "no licence file", 6},
        Culprit{"ASignal", "echo no licence file >&2; kill -ABRT $$", "no licence file", 134}),
    [](const ::testing::TestParamInfo<Culprit>& info) { return string(info.param.name); });

TEST(Output, StatusShowsLastWordsWhileTheJobEnds) {
  Gate failing, ending;
  DlaunchProcess job({"-n", "2", "sh", "-c",
                      "if [ $RANK = 1 ]; then " + failing.wait() +
                          "echo no licence file; exit 6; fi; trap 'echo asked; " + ending.wait() +
                          "exit 0' TERM; echo up; while :; do sleep 0.05; done"});
  ASSERT_TRUE(job.WaitForOutput("[0] up")) << job.err();
  failing.Open();
  ASSERT_TRUE(job.WaitForOutput("[0] asked")) << job.err();
  const size_t id = job.err().find(", as job-");
  ASSERT_NE(id, string::npos) << job.err();
  DlaunchProcess status({"status", job.err().substr(id + 5, 20)});
  EXPECT_EQ(status.Wait(), 0) << status.err();
  EXPECT_NE(status.out().find("exited with code 6; its last line: \"no licence file\"\n"), string::npos)
      << status.out();
  ending.Open();
  EXPECT_EQ(job.Wait(), 6) << job.err();
}

}  // namespace
}  // namespace cohort::launcher
