#include "cohort/launcher/agent/rank/rank_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cohort::launcher {
namespace {

using Lines = std::vector<std::pair<std::string, bool>>;  // text, and whether the line goes on

// A rank that stays for another epoch prints there as before.
TEST(RankOutput, UnfinishedLinesGoOnInTheNextEpoch) {
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
  const runtime::FileDescriptor rank(fds[1]);
  EventLoop loop;
  Lines lines;
  RankOutput::Options options;
  options.on_line = [&](const v1::OutputLine& line) {
    lines.emplace_back(line.text(), line.goes_on());
    loop.Quit();
  };
  RankOutput output(&loop, options, runtime::FileDescriptor(fds[0]), runtime::FileDescriptor());
  const auto print = [&](std::string_view text) {
    ASSERT_EQ(::write(rank.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  print("first\nlast");
  output.Drain(true);
  output.GoOn(options);
  output.Resume();
  print("Name? ");
  loop.After(std::chrono::seconds(20), [&] { loop.Quit(); });
  loop.Run();
  print("Bob\n");
  loop.Run();
  EXPECT_EQ(lines, (Lines{{"first", false}, {"last", false}, {"Name? ", true}, {"Bob", false}}));
}

}  // namespace
}  // namespace cohort::launcher
