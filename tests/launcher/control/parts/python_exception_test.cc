#include "cohort/launcher/control/parts/python_exception.h"

#include <gtest/gtest.h>

namespace cohort::launcher {
namespace {

std::string Found(const std::vector<std::string>& lines) {
  const std::optional<PythonException> found = FindPythonException(lines);
  return found ? found->text + " at " + found->place : "none";
}

TEST(PythonException, AnExceptionIsFoundBelowItsTraceback) {
  EXPECT_EQ(Found({"step 41", "Traceback (most recent call last):", "  File \"/job/train.py\", line 12, in <module>",
                   "    main()", "    ^^^^^^", "  File \"/job/net.py\", line 7, in main",
                   "    raise ValueError('bad: 3')", "ValueError: bad: 3"}),
            "ValueError: bad: 3 at net.py:7");
}

TEST(PythonException, ThePlaceOfAnExceptionIsTheProgramsOwn) {
  EXPECT_EQ(
      Found({"  File \"train.py\", line 3, in f", "    dist.all_reduce(x)",
             "  File \"/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py\", line 81, in wrapper",
             "    return func(*args, **kwargs)", "  File \"/usr/lib/python3/dist-packages/a.py\", line 9, in g",
             "dlaunch.FailedPreconditionError: rank 0 called broadcast", "a second line of its text"}),
      "dlaunch.FailedPreconditionError: rank 0 called broadcast at train.py:3");
  EXPECT_EQ(Found({"  File \"/usr/lib/python3.11/runpy.py\", line 9, in run", "KeyboardInterrupt"}),
            "KeyboardInterrupt at runpy.py:9");
}

TEST(PythonException, AnExceptionIsFoundBehindPyTorchsPrefix) {
  EXPECT_EQ(Found({"[rank12]: Traceback (most recent call last):", "[rank12]:   File \"/job/train.py\", line 12, in f",
                   "[rank12]:     main()", "[rank12]:     ^^^^^^", "[rank12]: KeyError: 'x'", "bye"}),
            "KeyError: 'x' at train.py:12");
  EXPECT_EQ(Found({"[rank]:   File \"/job/train.py\", line 12, in f", "[rank]: KeyError: 'x'"}), "none");
}

TEST(PythonException, CodeWithoutAFileHasNoPlace) {
  const auto found = FindPythonException({"  File \"<string>\", line 1, in <module>", "KeyError: 'x'"});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->text, "KeyError: 'x'");
  EXPECT_EQ(found->place, "");
}

TEST(PythonException, TheLastOfSeveralExceptionsCounts) {
  EXPECT_EQ(Found({"Traceback (most recent call last):", "  File \"a.py\", line 1, in f", "KeyError: 'x'", "",
                   "During handling of the above exception, another exception occurred:", "",
                   "Traceback (most recent call last):", "  File \"b.py\", line 2, in g", "RuntimeError: y", "bye"}),
            "RuntimeError: y at b.py:2");
}

TEST(PythonException, AnExceptionThatPythonIgnoredDoesNotCount) {
  EXPECT_EQ(Found({"Traceback (most recent call last):", "  File \"a.py\", line 1, in f", "KeyError: 'x'",
                   "Exception ignored in: <function Net.__del__ at 0x7f>",
                   "Traceback (most recent call last):", "  File \"b.py\", line 2, in __del__", "AttributeError: y"}),
            "KeyError: 'x' at a.py:1");
  EXPECT_EQ(Found({"Exception ignored in: <function Net.__del__ at 0x7f>",
                   "Traceback (most recent call last):", "  File \"b.py\", line 2, in __del__", "AttributeError: y",
                   "Traceback (most recent call last):", "  File \"a.py\", line 1, in f", "KeyError: 'x'"}),
            "KeyError: 'x' at a.py:1");
}

TEST(PythonException, TheClassOfAnExceptionMayBeAFunctionsOwn) {
  EXPECT_EQ(Found({"  File \"a.py\", line 1, in f", "__main__.main.<locals>.Late: no data"}),
            "__main__.main.<locals>.Late: no data at a.py:1");
  EXPECT_EQ(Found({"  File \"a.py\", line 1, in f", "ValueError: main.<locals>.Late: z"}),
            "ValueError: main.<locals>.Late: z at a.py:1");
}

TEST(PythonException, OtherLinesAreNoException) {
  EXPECT_EQ(Found({}), "none");
  EXPECT_EQ(Found({"ValueError: said without a traceback"}), "none");
  EXPECT_EQ(Found({"  File \"a.py\", line 1, in f"}), "none");
  EXPECT_EQ(Found({"  File \"a.py\", line x, in f", "ValueError: y"}), "none");
  EXPECT_EQ(Found({"  File \"a.py", "ValueError: y"}), "none");
  EXPECT_EQ(Found({"  File \"a.py\", line 1, in f", "a sentence: not an exception"}), "none");
}

}  // namespace
}  // namespace cohort::launcher
