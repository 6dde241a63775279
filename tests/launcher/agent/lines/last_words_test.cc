#include "cohort/launcher/agent/lines/last_words.h"

#include <gtest/gtest.h>

namespace cohort::launcher {
namespace {

TEST(LastWords, TheMeaningOfALineIsTheTextThatAReaderSees) {
  EXPECT_EQ(Meaning("\x1b[1;31m  no licence file \x1b[0m\x1b[K"), "no licence file");
  EXPECT_EQ(Meaning("\x1b]0;a title\a\x1b]8;;http://x\x1b\\see here\x1b]8;;\x1b\\"), "see here");
  EXPECT_EQ(Meaning("Fehler: größer"), "Fehler: größer");
  EXPECT_EQ(Meaning("\x01\x02 42"), "42");
  for (const char* nothing : {"", "  \t ", "\x1b[0m", "\x1b[", "\x1b", "-----", "}", "═══════", "│  ▌", "\x7f"}) {
    EXPECT_EQ(Meaning(nothing), "") << nothing;
  }
}

TEST(LastWords, OnlyTheTextBehindAProgressBarHasMeaning) {
  EXPECT_EQ(MeaningOfDrawn(" 50%|#####     | 5/10 [00:01<00:01,  4.9it/s]"), "");
  EXPECT_EQ(MeaningOfDrawn("[===>   ] 30%"), "");
  EXPECT_EQ(MeaningOfDrawn(" 50%|#####     | 5/10 [00:01<00:01,  4.9it/s]no licence file"), "no licence file");
  EXPECT_EQ(MeaningOfDrawn("\x1b[Kno licence file"), "no licence file");
  EXPECT_EQ(Meaning("step 5/10"), "step 5/10") << "a line of its own";
}

TEST(LastWords, NamesTheExceptionOfCpp) {
  EXPECT_EQ(UncaughtException({"step 1", "terminate called after throwing an instance of 'std::runtime_error'",
                               "  what():  no tensor", "frame #0: main"}),
            "std::runtime_error: no tensor");
  EXPECT_EQ(UncaughtException({"terminate called after throwing an instance of 'int'"}), "int");
  EXPECT_EQ(UncaughtException({"  what():  is this"}), "");
}

TEST(LastWords, WarningsAreRemarksAndErrorsAreNot) {
  EXPECT_TRUE(IsRemark("[W socket.cpp:601] Warning: retrying"));
  EXPECT_TRUE(IsRemark("x.py:3: DeprecationWarning: old"));
  EXPECT_FALSE(IsRemark("no licence file"));
  EXPECT_FALSE(IsRemark("warnings are errors"));
}

}  // namespace
}  // namespace cohort::launcher
