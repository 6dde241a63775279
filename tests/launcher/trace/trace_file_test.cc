#include "cohort/launcher/trace/trace_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "cohort/runtime/base/deadline.h"
#include "tests/support/slow_folder.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::string;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kLimit{20};

class TraceFileTest : public ::testing::Test {
 protected:
  TraceFileTest() {
    string name = (std::filesystem::temp_directory_path() / "trace_file_test.XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~TraceFileTest() override { std::filesystem::remove_all(folder_); }
  // A file that is open, or why it is not.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(const string& path,
                                                         TraceFile::Parts parts = TraceFile::Parts::kOne) {
    absl::StatusOr<std::unique_ptr<TraceFile>> file = TraceFile::Begin(path, parts);
    if (!file.ok()) return file;
    const absl::Status opened = (*file)->AwaitOpen(Deadline::After(kLimit));
    if (!opened.ok()) return opened;
    return file;
  }
  static string TextOf(const string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  string folder_;
};

constexpr char kTraceOfBefore[] = "\n\x1a\x92\x03\x17what was there before";

TEST_F(TraceFileTest, AFileThatIsNoTraceIsLeftAsItIs) {
  const string path = folder_ + "/train.py";
  for (const string text : {"import dlaunch\n", "\nimport dlaunch\n", "\n", "\n\x92\x03", "x"}) {
    std::ofstream(path, std::ios::binary) << text;
    const auto file = Open(path);
    EXPECT_THAT(string(file.status().message()), HasSubstr("it holds something else than a trace"));
    EXPECT_EQ(TextOf(path), text);
  }
  std::ofstream(path, std::ios::binary) << "";
  EXPECT_TRUE(Open(path).ok());
}

TEST_F(TraceFileTest, WritesPiecesInTheirOrder) {
  const string path = folder_ + "/trace";
  std::ofstream(path) << kTraceOfBefore;
  auto file = Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  string all;
  for (int i = 0; i < 100; ++i) {
    all += "piece " + std::to_string(i) + "\n";
    EXPECT_TRUE((*file)->Write("piece " + std::to_string(i) + "\n"));
  }
  EXPECT_TRUE((*file)->Finish(Deadline::After(kLimit)).ok());
  EXPECT_EQ(TextOf(path), all);
}

TEST_F(TraceFileTest, TwoTracesDoNotShareAFile) {
  const string path = folder_ + "/trace";
  auto first = Open(path);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE((*first)->Write("of the first"));
  EXPECT_TRUE((*first)->Finish(Deadline::After(kLimit)).ok());
  const auto second = Open(path);
  EXPECT_THAT(string(second.status().message()), HasSubstr("another trace is being written there"));
  EXPECT_EQ(TextOf(path), "of the first");
}

TEST_F(TraceFileTest, NamesWhatIsWrongWithThePath) {
  EXPECT_THAT(string(Open(folder_ + "/none/trace").status().message()),
              HasSubstr(folder_ + "/none/trace: No such file or directory"));
  EXPECT_FALSE(Open(folder_).ok());
  EXPECT_THAT(string(Open("/dev/null").status().message()), HasSubstr("no plain file"));
  ASSERT_EQ(::mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(Open(folder_ + "/pipe").ok());  // without waiting for a reader
  if (::geteuid() == 0) return;                // root may write anywhere
  const string path = folder_ + "/read-only";
  std::ofstream(path) << "";
  ::chmod(path.c_str(), 0400);
  EXPECT_THAT(string(Open(path).status().message()), HasSubstr("Permission denied"));
}

// In a child with a file system of its own, of 64 KiB. Its exit status.
int WriteToFullDisk(const string& folder) {
  const bool root = ::geteuid() == 0;
  if (::unshare(CLONE_NEWNS | (root ? 0 : CLONE_NEWUSER)) != 0) return 77;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 && root) return 77;
  if (::mount("none", folder.c_str(), "tmpfs", 0, "size=64k") != 0) return 77;
  auto file = TraceFile::Begin(folder + "/trace");
  if (!file.ok()) return 1;
  const string piece(10'000, 'x');
  if (!(*file)->Write(piece)) return 2;
  if (!(*file)->Finish(Deadline::After(kLimit)).ok()) return 3;
  bool took_all = true;
  for (int i = 0; i < 50; ++i) took_all = (*file)->Write(piece) && took_all;
  const absl::Status status = (*file)->Finish(Deadline::After(kLimit));
  if (string(status.message()).find("No space left on device") == string::npos) return 4;
  if ((*file)->Write(piece)) return 5;
  std::error_code error;
  const auto size = std::filesystem::file_size(folder + "/trace", error);
  return !error && size > 0 && size % piece.size() == 0 ? 0 : 6;  // whole pieces
}

TEST_F(TraceFileTest, HoldsWholePiecesWhereTheDiskIsFull) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(WriteToFullDisk(folder_));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no file system can be mounted here";
  EXPECT_EQ(status, 0) << "the step that failed, times 256";
}

TEST_F(TraceFileTest, KeepsThePartBefore) {
  const string path = folder_ + "/trace";
  auto file = Open(path);
  ASSERT_TRUE(file.ok());
  for (const string part : {"first ", "second ", "third "}) {
    EXPECT_TRUE((*file)->Write(part));
    EXPECT_TRUE(part == "third " || (*file)->BeginPart());
  }
  EXPECT_TRUE((*file)->Finish(Deadline::After(kLimit)).ok());
  EXPECT_EQ(TextOf(path), "second third ");
  EXPECT_FALSE(std::filesystem::exists(path + ".before"));
}

TEST_F(TraceFileTest, AFileInThePlaceOfAPartIsLeftAsItIs) {
  const string path = folder_ + "/trace";
  const string before = path + ".before";
  std::ofstream(before) << "notes of a user";
  const auto refused = Open(path, TraceFile::Parts::kMany);
  EXPECT_THAT(string(refused.status().message()), HasSubstr(before + ", which holds something else than a trace"));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(Open(path).ok()) << "a trace of one part has no other file";
  EXPECT_EQ(TextOf(before), "notes of a user");
}

TEST_F(TraceFileTest, AFileThatComesToThePlaceOfAPartIsLeftAsItIs) {
  const string path = folder_ + "/trace";
  const string before = path + ".before";
  const auto file = Open(path, TraceFile::Parts::kMany);
  ASSERT_TRUE(file.ok()) << file.status();
  std::ofstream(before) << "notes of a user";
  EXPECT_TRUE((*file)->Write("first"));
  EXPECT_TRUE((*file)->BeginPart());
  EXPECT_THAT(string((*file)->Finish(Deadline::After(kLimit)).message()),
              HasSubstr("the trace " + path + " ends here: " + before + " holds something else than a trace; "));
  EXPECT_EQ(TextOf(path), "first");
  EXPECT_EQ(TextOf(before), "notes of a user");
}

TEST_F(TraceFileTest, AFileInThePlaceOfAPartThatCannotBeReadIsToldAsThat) {
  const string path = folder_ + "/trace";
  const string before = path + ".before";
  std::filesystem::create_symlink(before, before);
  const auto refused = Open(path, TraceFile::Parts::kMany);
  EXPECT_THAT(string(refused.status().message()),
              HasSubstr(before + ", which can't be read: Too many levels of symbolic links"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(TraceFileTest, APartOfATraceThatWasKilledIsReplaced) {
  const string path = folder_ + "/trace";
  std::ofstream(path + ".before", std::ios::binary) << kTraceOfBefore;
  const auto file = Open(path, TraceFile::Parts::kMany);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Write("first "));
  EXPECT_TRUE((*file)->BeginPart());
  EXPECT_TRUE((*file)->Write("second"));
  EXPECT_TRUE((*file)->Finish(Deadline::After(kLimit)).ok());
  EXPECT_EQ(TextOf(path), "first second");
}

TEST_F(TraceFileTest, AFileServerThatIsSilentBlocksTheThreadAlone) {
  const string path = folder_ + "/trace";
  std::ofstream(path) << kTraceOfBefore;
  std::unique_ptr<TraceFile> file;
  {
    const testing::SlowFolder slow(folder_);
    if (!slow.works()) GTEST_SKIP() << slow.why_not();
    auto begun = TraceFile::Begin(path);
    ASSERT_TRUE(begun.ok());
    file = *std::move(begun);
    slow.AwaitOpening();
    const absl::Status opened = file->AwaitOpen(Deadline::After(std::chrono::milliseconds(10)));
    EXPECT_TRUE(absl::IsDeadlineExceeded(opened)) << opened;
    EXPECT_THAT(string(opened.message()), HasSubstr(path + ": its file system does not answer"));
    EXPECT_TRUE(file->Write("before it is open"));
    EXPECT_TRUE(file->problem().ok());
  }
  EXPECT_TRUE(file->AwaitOpen(Deadline::After(kLimit)).ok());
  EXPECT_TRUE(file->Finish(Deadline::After(kLimit)).ok());
  EXPECT_EQ(TextOf(path), "before it is open");
}

TEST_F(TraceFileTest, AFileThatWasGivenUpIsLeftAsItIs) {
  const string path = folder_ + "/trace";
  std::ofstream(path) << kTraceOfBefore;
  {
    const testing::SlowFolder slow(folder_);
    if (!slow.works()) GTEST_SKIP() << slow.why_not();
    auto file = TraceFile::Begin(path);
    ASSERT_TRUE(file.ok());
    slow.AwaitOpening();
  }
  // The thread's lock on the file is gone when it has ended.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  EXPECT_EQ(TextOf(path), kTraceOfBefore);
  ::close(fd);
}

TEST_F(TraceFileTest, WaitingBytesAreBounded) {
  auto file = Open(folder_ + "/trace");
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE((*file)->Write(string(TraceFile::kMostWaiting + 1, 'x')));
  EXPECT_TRUE((*file)->problem().ok());
}

}  // namespace
}  // namespace cohort::launcher
