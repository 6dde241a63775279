// Files as torch.distributed.elastic's @record writes them, and others.
#include "cohort/launcher/agent/rank/error_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace cohort::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ErrorFile, LinesAreTheTracebackThatRecordWrote) {
  EXPECT_THAT(LinesOfErrorFile(R"({"message": {"message": "ValueError: no \u2764", "extraInfo": {"py_callstack": )"
                               R"("Traceback (most recent call last):\n  File \"train.py\", line 3, in main\n    f()\n)"
                               R"(ValueError: no \u2764\n", "timestamp": "1700000000"}, "errorCode": 1}})"),
              ElementsAre("Traceback (most recent call last):", "  File \"train.py\", line 3, in main", "    f()",
                          "ValueError: no \u2764"));
}

TEST(ErrorFile, LinesAreTheMessageWhereThereIsNoTraceback) {
  EXPECT_THAT(LinesOfErrorFile(R"({"message": "signal 11"})"), ElementsAre("signal 11"));
  EXPECT_THAT(LinesOfErrorFile(R"({"message": {"message": "lost a disk", "extraInfo": {"py_callstack": 3}}})"),
              ElementsAre("lost a disk"));
  EXPECT_THAT(LinesOfErrorFile(R"({"message": {"message": "why", "extraInfo": {"py_callstack": "NoneType: None\n"}}})"),
              ElementsAre("why"));
}

TEST(ErrorFile, AFileOfAnythingElseHasNoLines) {
  for (const std::string text :
       {"", "{", "[]", "3", R"({"message": 4})", R"({"massage": "x"})", R"({"message": ["x"]})", "\xff\xfe"}) {
    EXPECT_THAT(LinesOfErrorFile(text), IsEmpty()) << text;
  }
  EXPECT_THAT(LinesOfErrorFile(std::string(200'000, '[')), IsEmpty());  // deeper than a stack
}

TEST(ErrorFile, AnErrorFileIsWrittenByItsPathAndIsNoFileOfTheDisk) {
  const ErrorFile file = ErrorFile::Make();
  ASSERT_TRUE(file.valid());
  EXPECT_THAT(file.Lines(), IsEmpty());
  std::ofstream(file.path()) << R"({"message": "a longer one"})";
  std::ofstream(file.path()) << R"({"message": "two"})";
  EXPECT_THAT(file.Lines(), ElementsAre("two"));
  std::filesystem::resize_file(file.path(), uint64_t{1} << 33);
  EXPECT_THAT(file.Lines(), IsEmpty());
  EXPECT_THAT(ErrorFile().Lines(), IsEmpty());
}

}  // namespace
}  // namespace cohort::launcher
