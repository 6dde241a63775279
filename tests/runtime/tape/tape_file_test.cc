// Tapes on disks that are full, closed to the writer, or shared with another process, and processes killed while they
// write.
#include "cohort/runtime/tape/tape_file.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <random>

#include "cohort/runtime/base/deadline.h"
#include "tests/runtime/tape/tape_folder.h"

namespace cohort::runtime {
namespace {

using std::string;
using ::testing::AllOf;
using ::testing::HasSubstr;
using TapeFileTest = TapeTest;

// Returns the text that `work` returns in a child process, which has ended.
string InChild(const std::function<string()>& work) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const string text = work();
    const bool told = ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(told ? 0 : 1);
  }
  ::close(ends[1]);
  string text(4096, '\0');
  const ssize_t bytes = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  text.resize(bytes < 0 ? 0 : static_cast<size_t>(bytes));
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0 ? text : "the child ended with status " + std::to_string(status);
}

// In a process that the modes of files hold for.
string Unprivileged(const std::function<string()>& work) {
  return InChild([&work] {
    if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return string("cannot be anybody else");
    return work();
  });
}

TEST_F(TapeFileTest, ALimitOnTheSizeEndsTheTapeAndNotTheProcess) {
  EXPECT_EQ(InChild([this] {
              const rlimit limit{20'000, 20'000};
              ::setrlimit(RLIMIT_FSIZE, &limit);
              auto writer = Create();
              const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
              for (int i = 0; i < 100; ++i) Call(*writer, group, RecordAt("a.cc:1"), string(1000, 'x'));
              writer->Finish();
              return string("ended");
            }),
            "ended");
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  EXPECT_GT((*tape)->contents().calls.size(), 10u);
  EXPECT_NE((*tape)->contents().ending, TapeEnding::kInOrder);
}

TEST_F(TapeFileTest, AProcessKilledInTheMiddleOfAWriteLeavesAllThatWasComplete) {
  constexpr size_t kResult = 700'000;
  std::mt19937 random(1);
  int cut = 0;
  for (int round = 0; round < 12; ++round) {
    std::filesystem::remove(path_);
    const pid_t child = ::fork();
    if (child == 0) {
      auto writer = Create();
      const uint32_t group = writer->AddGroup(5, std::vector<int>{0, 3});
      for (char i = 0; i < 100; ++i) Call(*writer, group, RecordAt("a.cc:1"), string(kResult, i));
      ::pause();
      ::_exit(0);
    }
    const size_t enough = 1'000'000 + random() % 4'000'000;
    const Deadline deadline = Deadline::After(std::chrono::seconds(60));
    struct stat info{};
    while ((::stat(path_.c_str(), &info) != 0 || static_cast<size_t>(info.st_size) < enough) && !deadline.passed()) {
    }
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it was too slow to be killed";
    const auto tape = OpenTape::Open(path_);
    ASSERT_TRUE(tape.ok()) << tape.status();
    const TapeContents& contents = (*tape)->contents();
    EXPECT_NE(contents.ending, TapeEnding::kInOrder);
    cut += contents.ending == TapeEnding::kCut ? 1 : 0;
    EXPECT_GE(contents.calls.size(), enough / kResult - 1);
    for (size_t i = 0; i < contents.calls.size(); ++i) {
      ASSERT_EQ(TextIn(contents.calls[i].result), string(kResult, static_cast<char>(i))) << "round " << round;
    }
  }
  std::printf("%d of 12 tapes end in the middle of an entry\n", cut);
}

TEST_F(TapeFileTest, AFolderThatMayNotBeWrittenIsNamed) {
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  const string closed = folder_ + "/closed";
  ASSERT_EQ(::mkdir(closed.c_str(), 0555), 0);
  EXPECT_THAT(Unprivileged([&closed] {
                return TapeWriter::Create(closed, "rank-3.epoch-1.tape", HeadOf(3)).status().ToString();
              }),
              AllOf(HasSubstr("PERMISSION_DENIED: no tape can be written to " + closed + "/rank-3.epoch-1.tape"),
                    HasSubstr("Permission denied")));
}

TEST_F(TapeFileTest, ATapeOfAnotherUserIsNamed) {
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  WriteSome();
  ASSERT_EQ(::chmod(path_.c_str(), 0), 0);
  EXPECT_THAT(
      Unprivileged([this] { return OpenTape::Open(path_).status().ToString(); }),
      AllOf(HasSubstr("PERMISSION_DENIED: the tape " + path_ + " can't be read"), HasSubstr("Permission denied")));
}

TEST_F(TapeFileTest, AFolderThatCannotBeIsNamed) {
  const string file = temporary_.Write("file", "");
  const auto writer = TapeWriter::Create(file + "/sub", "rank-3.epoch-1.tape", HeadOf(3));
  EXPECT_THAT(string(writer.status().message()), HasSubstr("no tape can be written to " + file + "/sub"));
}

TEST_F(TapeFileTest, NobodyElseReadsWhatReplacesAFileOfOthers) {
  Replace("anything");
  ASSERT_EQ(::chmod(path_.c_str(), 0644), 0);
  WriteSome();
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// A later writer would make the file empty below its reader, which would then die of SIGBUS.
TEST_F(TapeFileTest, ATapeIsReadOnceItsWriterHasEnded) {
  auto writer = Create();
  const absl::Status refused = OpenTape::Open(path_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(string(refused.message()), AllOf(HasSubstr("the tape " + path_ + " can't be read: a rank that runs"),
                                               HasSubstr("wait for the end of its job")));
  writer.reset();
  EXPECT_TRUE(OpenTape::Open(path_).ok());
}

TEST_F(TapeFileTest, ATapeInUseIsNotReplaced) {
  WriteSome();
  const auto tape = OpenTape::Open(path_);
  ASSERT_TRUE(tape.ok()) << tape.status();
  const auto writer = TapeWriter::Create(folder_, "rank-3.epoch-1.tape", HeadOf(3));
  EXPECT_TRUE(absl::IsFailedPrecondition(writer.status()));
  EXPECT_THAT(string(writer.status().message()), HasSubstr("another process writes or replays a tape there"));
  EXPECT_EQ(TextIn((*tape)->contents().calls[7].result), ResultOf(7));
}

}  // namespace
}  // namespace cohort::runtime
