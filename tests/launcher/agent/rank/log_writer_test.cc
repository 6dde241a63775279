// Files that are written beside a loop which never waits for them: real files, and pipes that nobody reads.
#include "cohort/launcher/agent/rank/log_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cohort/launcher/agent/rank/rank_output.h"
#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using runtime::FileDescriptor;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class LogWriterTest : public ::testing::Test {
 protected:
  LogWriterTest() {
    char folder[] = "/tmp/cohort-log-writer-XXXXXX";
    folder_ = ::mkdtemp(folder);
    ::signal(SIGPIPE, SIG_IGN);  // as in an agent
  }
  ~LogWriterTest() override {
    pipe_.Close();  // a thread that is stuck in it goes on
    std::filesystem::remove_all(folder_);
  }
  // A file there that takes a pipe's worth and then nothing, as a file system that hangs.
  std::string AddPipe(const std::string& name) {
    const std::string path = folder_ + "/" + name;
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    pipe_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    return path;
  }
  // False where nothing comes.
  bool AwaitBytes(const Deadline& deadline) {
    pollfd readable{pipe_.get(), POLLIN, 0};
    return ::poll(&readable, 1, static_cast<int>(deadline.left() / milliseconds(1))) > 0;
  }
  // Reads until `end` has come, and perhaps some of what follows.
  std::string ReadPipe(const std::string& end) {
    std::string text;
    char buffer[64 << 10];
    for (const Deadline deadline = Deadline::After(seconds(30)); AwaitBytes(deadline);) {
      const ssize_t n = ::read(pipe_.get(), buffer, sizeof buffer);
      const size_t seen = text.size() - std::min(text.size(), end.size());
      if (n > 0) text.append(buffer, static_cast<size_t>(n));
      if (text.find(end, seen) != std::string::npos) break;
    }
    return text;
  }

  std::string folder_;
  FileDescriptor pipe_;
  EventLoop loop_;
  std::vector<std::string> problems_;
  std::unique_ptr<LogWriter> writer_ =
      std::make_unique<LogWriter>(&loop_, [this](const std::string& problem) { problems_.push_back(problem); });
};

TEST_F(LogWriterTest, WritesFilesInOrderAndMakesTheirFolder) {
  const std::string path = folder_ + "/deep/rank-0.out";
  std::string expected;
  auto file = writer_->Open(path);
  for (int i = 0; i < 1000; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    writer_->Write(file, line);
    expected += line;
  }
  writer_->Close(file);
  file = writer_->Open(folder_ + "/deep/rank-1.out");  // an epoch later
  writer_->Write(file, "two\n");
  writer_->Close(file);
  writer_->Finish(seconds(30));
  EXPECT_EQ(ReadFile(path), expected);
  EXPECT_EQ(ReadFile(folder_ + "/deep/rank-1.out"), "two\n");
  EXPECT_EQ(problems_, std::vector<std::string>());
}

TEST_F(LogWriterTest, ReportsOnceThatAFileCanNotBeWritten) {
  const auto file = writer_->Open("/dev/full");
  for (int i = 0; i < 3; ++i) writer_->Write(file, std::string(100'000, 'x'));
  writer_->Close(file);
  writer_->Finish(seconds(30));
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_NE(problems_[0].find("/dev/full: No space left"), std::string::npos) << problems_[0];
}

// No call waits for a disk that takes nothing; what did not fit is counted where it is missing.
TEST_F(LogWriterTest, CountsWhatAStalledDiskDoesNotTake) {
  const auto file = writer_->Open(AddPipe("rank-0.out"));
  const std::string block(64 << 10, 'x');
  size_t written = 0;
  writer_->Write(file, block);
  ASSERT_TRUE(AwaitBytes(Deadline::After(seconds(60)))) << "its thread does not begin";
  written += block.size();
  const Deadline limit = Deadline::After(LogWriter::kStalledAfter + seconds(60));
  while ((writer_->working() || written < (1u << 20)) && !limit.passed()) {
    if (writer_->full(file)) {
      ::poll(nullptr, 0, 2);
      continue;
    }
    writer_->Write(file, block);
    written += block.size();
  }
  EXPECT_LE(written, LogWriter::kFileBytes) << "who asks whether it is full loses nothing";
  EXPECT_FALSE(writer_->full(file)) << "to wait for it does not help";
  for (; written < (8u << 20); written += block.size()) writer_->Write(file, block);
  writer_->Close(file);
  const std::string end = "bytes left out: the disk was too slow]\n";
  const std::string text = ReadPipe(end);
  const size_t notice = text.rfind("\n[");
  ASSERT_NE(notice, std::string::npos) << text.size();
  EXPECT_EQ(notice + std::stoul(text.substr(notice + 2)), written);
  EXPECT_GE(notice, LogWriter::kFileBytes - block.size());
  writer_->Finish(seconds(30));
  ASSERT_EQ(problems_.size(), 2u);
  EXPECT_NE(problems_[0].find("rank-0.out is a named pipe, and nobody reads it in time"), std::string::npos)
      << problems_[0];
  EXPECT_NE(problems_[1].find("are missing in " + folder_ + "/rank-0.out"), std::string::npos) << problems_[1];
}

// A rank that waits for room need not look for it.
TEST_F(LogWriterTest, ReportsWhenThereIsRoomAgain) {
  int told = 0;
  const auto file = writer_->Open(AddPipe("rank-0.out"), [&] {
    ++told;
    loop_.Quit();
  });
  writer_->Write(file, std::string(LogWriter::kHighWater + (64 << 10), 'x'));
  ASSERT_TRUE(writer_->full(file));
  writer_->Write(file, "the end");
  ReadPipe("the end");
  const EventLoop::TimerId limit = loop_.After(seconds(30), [this] { loop_.Quit(); });
  loop_.Run();
  loop_.Cancel(limit);
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(writer_->full(file));
  writer_->Close(file);
  writer_->Finish(seconds(30));
}

// A restart has files of its own, and those before it may still wait.
TEST_F(LogWriterTest, BoundsWhatWaitsOfAllFilesTogether) {
  const std::string path = AddPipe("rank-0.out");
  const std::string half(LogWriter::kFileBytes / 2, 'x');
  constexpr size_t kFiles = 2 * LogWriter::kAllBytes / (LogWriter::kFileBytes / 2);
  for (size_t i = 0; i < kFiles; ++i) {
    const auto file = writer_->Open(path);
    writer_->Write(file, half);
    writer_->Close(file);
  }
  writer_->Finish(milliseconds(100));
  size_t slow = 0;
  for (const std::string& problem : problems_)
    slow += problem.find("the disk is too slow") != std::string::npos ? 1 : 0;
  EXPECT_GE(slow, kFiles / 2 - 1) << "files that nothing more of was kept";
  EXPECT_LE(slow, kFiles / 2 + 1);
  writer_.reset();  // its thread is stuck in a write
}

// Lines are missing in a file that can't be written for another reason than a slow disk, and that was said.
TEST_F(LogWriterTest, BlamesNoSlowDiskForAFileThatCanNotBeWritten) {
  const std::string pipe = AddPipe("rank-0.out");
  const std::string block(1 << 20, 'x');
  const auto first = writer_->Open(pipe);
  writer_->Write(first, block + "the end of the first");
  const auto full = writer_->Open("/dev/full");
  writer_->Write(full, "x");
  const auto second = writer_->Open(pipe);
  writer_->Write(second, block);
  writer_->Write(full, block);
  ReadPipe("the end of the first");
  ASSERT_TRUE(AwaitBytes(Deadline::After(seconds(30)))) << "of the second, whose turn it is after the full one";
  writer_->Finish(milliseconds(100));
  ASSERT_EQ(problems_.size(), 2u);
  EXPECT_NE(problems_[0].find("/dev/full: No space left"), std::string::npos) << problems_[0];
  EXPECT_NE(problems_[1].find("are missing in " + pipe + ": its disk"), std::string::npos) << problems_[1];
  writer_.reset();  // its thread is stuck in a write
}

TEST_F(LogWriterTest, WaitsForADiskAtTheEndNoLongerThanItMay) {
  const auto file = writer_->Open(AddPipe("rank-0.out"));
  writer_->Write(file, std::string(1 << 20, 'x'));
  const auto before = Deadline::Clock::now();
  writer_->Finish(milliseconds(100));
  EXPECT_LT(Deadline::Clock::now() - before, seconds(10));
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_NE(problems_[0].find("bytes of what ranks have printed are missing"), std::string::npos) << problems_[0];
  writer_.reset();  // its thread is stuck in a write
}

// The loop gets everything that a rank prints, and its timers, while the rank's log takes nothing.
TEST_F(LogWriterTest, ALoopGoesOnWhileALogTakesNothing) {
  AddPipe("rank-0.out");
  constexpr int kLines = 4000;
  const std::string line(999, 'y');
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
  FileDescriptor in(fds[1]);
  int lines = 0;
  int ticks = 0;
  RankOutput output(&loop_,
                    {.logs = writer_.get(),
                     .log_directory = folder_,
                     .on_line = [&](const v1::OutputLine& part) { lines += part.goes_on() ? 0 : 1; }},
                    runtime::FileDescriptor(fds[0]), runtime::FileDescriptor());
  std::string text;
  for (int i = 0; i < kLines; ++i) text += line + "\n";
  std::function<void()> tick = [&] {  // the rank: blocked while its pipe is full
    ++ticks;
    const ssize_t n = ::write(in.get(), text.data(), text.size());
    if (n > 0) text.erase(0, static_cast<size_t>(n));
    if (lines == kLines) return loop_.Quit();
    loop_.After(milliseconds(1), tick);
  };
  tick();
  const EventLoop::TimerId limit = loop_.After(seconds(60), [this] { loop_.Quit(); });
  loop_.Run();
  loop_.Cancel(limit);
  EXPECT_EQ(lines, kLines);
  EXPECT_GT(ticks, 100) << "it waited for the disk";
}

}  // namespace
}  // namespace cohort::launcher
