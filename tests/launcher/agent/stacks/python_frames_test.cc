#include "cohort/launcher/agent/stacks/python_frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cohort::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kDump[] =
    "Thread 0x00007f83d0000640 [loader] (most recent call first):\n"
    "  File \"/usr/lib/python3.11/threading.py\", line 324 in wait\n"
    "  File \"/data/me/data.py\", line 7 in load\n"
    "\n"
    "Current thread 0x00007f83d8f4c740 (most recent call first):\n"
    "  File \"/usr/lib/python3.11/threading.py\", line 320 in wait\n"
    "  File \"/usr/lib/python3.11/queue.py\", line 171 in get\n"
    "  File \"/opt/site-packages/torch/utils/data/dataloader.py\", line 1133 in _try_get_data\n"
    "  File \"/data/me/a \"b\", line 3.py\", line 88 in step in full\n"
    "  File \"/data/me/train.py\", line 120 in main\n";

TEST(PythonFrames, APlaceIsTheInnermostFramesAndTheFirstOfTheProgramItself) {
  EXPECT_THAT(InnermostFrames(kDump, 0x7f83d8f4c740),
              ElementsAre("/usr/lib/python3.11/threading.py:320 in wait", "/usr/lib/python3.11/queue.py:171 in get",
                          "/data/me/a \"b\", line 3.py:88 in step in full"));
  EXPECT_THAT(InnermostFrames(kDump, 0x7f83d0000640),
              ElementsAre("/usr/lib/python3.11/threading.py:324 in wait", "/data/me/data.py:7 in load"));
}

TEST(PythonFrames, TheLastThreadCountsWhereTheOneThatIsSoughtIsNotThere) {
  EXPECT_EQ(InnermostFrames(kDump, 0), InnermostFrames(kDump, 0x7f83d8f4c740));
  EXPECT_THAT(InnermostFrames("  File \"<string>\", line 1 in <module>\n", 0), ElementsAre("<string>:1 in <module>"));
}

TEST(PythonFrames, APlaceIsShort) {
  const std::string path(5000, 'p'), function(5000, 'f');
  const std::string dump = "  File \"" + path + "\", line 1 in " + function + "\n";
  const std::vector<std::string> frames = InnermostFrames(dump + dump + dump + dump, 0);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_LT(frames[0].size(), 300u);
}

TEST(PythonFrames, WhatIsNoDumpHasNoPlace) {
  for (const char* text :
       {"", "\n\n", "File", "  File \"", "  File \"a\", line ", "  File \"a\", line 1", "Thread 0x",
        "Thread 0xzz (most recent call first):\n  <no Python frame>\n", "hread 0x", "\xff\xfe  File"}) {
    EXPECT_THAT(InnermostFrames(text, 0), IsEmpty()) << text;
    (void)ReadDump(text);
  }
}

TEST(PythonFrames, AddressesOfThreadsAreLeftOut) {
  EXPECT_EQ(ReadDump("Thread 0x00007f83d0000640 [loader] (most recent call first):\n  File \"a\", line 1 in f\n\n"
                     "Current thread 0x00007f83d8f4c740 (most recent call first):\n"),
            "  Python thread [loader] (most recent call first):\n      File \"a\", line 1 in f\n"
            "  Python thread (most recent call first):\n");
}

}  // namespace
}  // namespace cohort::launcher
