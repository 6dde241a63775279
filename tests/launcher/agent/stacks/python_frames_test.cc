// Stacks as people read them.
#include "cohort/launcher/agent/stacks/python_frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const PythonThread kLoader = {
    .is_main = false,
    .cut = false,
    .frames = {{"/usr/lib/python3.11/threading.py", 324, "wait"}, {"/me/data.py", 7, "load"}}};
const PythonThread kMain = {.is_main = true,
                            .cut = false,
                            .frames = {{"/usr/lib/python3.11/threading.py", 320, "wait"},
                                       {"/usr/lib/python3.11/queue.py", 171, "get"},
                                       {"/opt/site-packages/torch/utils/data/dataloader.py", 1133, "_try_get_data"},
                                       {"/data/me/a \"b\".py", 88, "step"},
                                       {"/data/me/train.py", 120, "main"}}};

TEST(PythonFrames, APlaceIsTheInnermostFramesAndTheFirstOfTheProgramItself) {
  EXPECT_THAT(InnermostFrames({kLoader, kMain}),
              ElementsAre("/usr/lib/python3.11/threading.py:320 in wait", "/usr/lib/python3.11/queue.py:171 in get",
                          "/data/me/a \"b\".py:88 in step"));
  EXPECT_THAT(InnermostFrames({kLoader}), IsEmpty());
  EXPECT_THAT(InnermostFrames({{.is_main = true, .cut = false, .frames = {{"<string>", 1, "<module>"}}}}),
              ElementsAre("<string>:1 in <module>"));
}

TEST(PythonFrames, APlaceIsShortAndPrintable) {
  const PythonFrame frame = {std::string(5000, 'p'), 0, std::string(5000, 'f')};
  const auto frames = InnermostFrames({{.is_main = true, .cut = false, .frames = {frame, frame, frame, frame}}});
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_LT(frames[0].size(), 300u);
  EXPECT_NE(frames[0].find(":? in "), std::string::npos);
  EXPECT_THAT(InnermostFrames({{.is_main = true, .cut = false, .frames = {{"a\x1b\xed\xb2\x80", 1, "f\n"}}}}),
              ElementsAre("a\\x1b\\xed\\xb2\\x80:1 in f\\x0a"));
}

TEST(PythonFrames, TheMainThreadComesFirst) {
  EXPECT_EQ(FormatThreads({{.is_main = false, .cut = false, .frames = {}},
                           {.is_main = true, .cut = true, .frames = {{"a", 1, "f"}, {"b", 2, "g"}}}}),
            "  Python thread (most recent call first):\n      File \"a\", line 1 in f\n      File \"b\", line 2 in g\n"
            "      ...\n"
            "  Python thread (most recent call first):\n      <no Python frame>\n");
}

}  // namespace
}  // namespace cohort::launcher
