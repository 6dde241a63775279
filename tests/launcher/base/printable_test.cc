// Text from other machines, shown to people.
#include "cohort/launcher/base/printable.h"

#include <gtest/gtest.h>

#include <string>

#include "cohort/launcher/base/say.h"
#include "cohort/launcher/machine/inventory.h"
#include "cohort/runtime/base/deadline.h"

namespace cohort::launcher {
namespace {

using std::string;

TEST(Printable, LeavesTextAndShowsControlCharacters) {
  EXPECT_EQ(Printable("caf\xc3\xa9 \xe2\x86\x92 ok"), "caf\xc3\xa9 \xe2\x86\x92 ok");
  EXPECT_EQ(Printable("a\x1b[2Jb\r\n\tc"), "a\\x1b[2Jb\\x0d\\x0a  c");
  EXPECT_EQ(Printable("\xc2\x9b\xff\xe2\x80\xae"), "\\xc2\\x9b\\xff\\xe2\\x80\\xae");
  EXPECT_EQ(Printable(string("\0", 1)), "\\x00");
  EXPECT_EQ(Printable("abcdef", 3), "abc ...");
  EXPECT_EQ(Printable("abc", 3), "abc");
}

TEST(Printable, PrintableLinesStayLines) {
  EXPECT_EQ(PrintableLines(""), "");
  EXPECT_EQ(PrintableLines("\na\x07\n\n  b"), "\na\\x07\n\n  b");
  EXPECT_EQ(PrintableLines("a\n"), "a\n");
}

TEST(Printable, MessagesCanNotSteerATerminal) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(Refuse("host evil\x1b]0;title\x07 left", 2), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "dlaunch: host evil\\x1b]0;title\\x07 left\n");
}

TEST(Printable, HostsThatJoinHaveHarmlessNames) {
  v1::NodeInventory inventory;
  inventory.set_host("evil\x1b[2J\ndlaunch: all is well");
  inventory.set_version("1\x1b");
  inventory.set_error(string(10'000, '\x1b'));
  inventory.add_devices()->set_id("GPU-\x1b");
  const auto parsed = ParseInventory(FormatInventory(inventory));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->host(), "evil\\x1b[2J\\x0adlaunch: all is well");
  EXPECT_EQ(parsed->version(), "1\\x1b");
  EXPECT_LT(parsed->error().size(), 10'000u);
  EXPECT_EQ(parsed->error().find('\x1b'), string::npos);
  EXPECT_EQ(parsed->devices(0).id(), "GPU-\\x1b");
}

TEST(Plural, CountsAsPeopleDo) {
  EXPECT_EQ(Plural(0, "rank"), "0 ranks");
  EXPECT_EQ(Plural(1, "rank"), "1 rank");
  EXPECT_EQ(Plural(2, "simulated GPU"), "2 simulated GPUs");
}

}  // namespace
}  // namespace cohort::launcher
