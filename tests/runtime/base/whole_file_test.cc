// Files that are written whole: an old one stays until the new text is complete.
#include "cohort/runtime/base/whole_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"

namespace {

std::vector<std::string> synced;  // the files and folders of fsync(), which in this program is the call below
int sync_error = 0;               // that it returns

}  // namespace

extern "C" int fsync(int fd) {
  synced.push_back(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)));
  errno = sync_error;
  return sync_error == 0 ? 0 : -1;
}

namespace cohort::runtime {
namespace {

class WholeFile : public ::testing::Test {
 protected:
  WholeFile() {
    std::string name = (std::filesystem::temp_directory_path() / "whole-file-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~WholeFile() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  int Entries() const { return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder_), {})); }

  std::string folder_;
};

TEST_F(WholeFile, AFileIsMadeAndReplaced) {
  for (const char* text : {"first", "second, longer", ""}) {
    ASSERT_TRUE(CheckWritable(Path("a")).ok());
    ASSERT_TRUE(WriteWholeFile(Path("a"), text).ok());
    EXPECT_EQ(Read(Path("a")), text);
    EXPECT_EQ(Entries(), 1);
  }
}

TEST_F(WholeFile, OldFileStaysWhenTheNewOneDoesNotFit) {
  ASSERT_TRUE(WriteWholeFile(Path("a"), "old").ok());
  // A limit on files' size stands for the full disk.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1000, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = WriteWholeFile(Path("a"), std::string(5000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(std::string(status.message()).find(Path("a")), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("ulimit -f"), std::string::npos) << status;
  EXPECT_EQ(Read(Path("a")), "old");
  EXPECT_EQ(Entries(), 1);
}

TEST_F(WholeFile, AReplacedFileKeepsItsMode) {
  const auto mode = [&] {
    struct stat info{};
    EXPECT_EQ(stat(Path("a").c_str(), &info), 0);
    return info.st_mode & 0777;
  };
  const mode_t mask = umask(027);
  ASSERT_TRUE(WriteWholeFile(Path("a"), "old").ok());
  EXPECT_EQ(mode(), 0640u) << "a new file is made as open() makes it";
  ASSERT_EQ(chmod(Path("a").c_str(), 0604), 0);
  ASSERT_TRUE(WriteWholeFile(Path("a"), "new").ok());
  EXPECT_EQ(mode(), 0604u);
  umask(mask);
}

TEST_F(WholeFile, FilesOfAKilledProgramAreInNobodysWay) {
  // A process with our number, long ago.
  const std::string stale = Path("a") + ".part-" + std::to_string(getpid());
  std::ofstream(stale) << "half";
  ASSERT_TRUE(CheckWritable(Path("a")).ok());
  ASSERT_TRUE(WriteWholeFile(Path("a"), "whole").ok());
  EXPECT_EQ(Read(Path("a")), "whole");
  EXPECT_EQ(Read(stale), "half");
}

TEST_F(WholeFile, AReplacedLinkStaysALink) {
  ASSERT_TRUE(WriteWholeFile(Path("target"), "old").ok());
  ASSERT_EQ(symlink("target", Path("link").c_str()), 0);
  ASSERT_TRUE(WriteWholeFile(Path("link"), "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(Path("link")));
  EXPECT_EQ(Read(Path("target")), "new");
}

TEST_F(WholeFile, ALinkToNothingStaysALink) {
  ASSERT_EQ(symlink("target", Path("link").c_str()), 0);
  ASSERT_TRUE(WriteWholeFile(Path("link"), "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(Path("link")));
  EXPECT_EQ(Read(Path("target")), "new");
  EXPECT_EQ(Entries(), 2);
}

TEST_F(WholeFile, OldFileStaysWhereNothingMayBeReplaced) {
  const WholeFileOptions fresh = {.replace = false, .mode = 0600};
  ASSERT_TRUE(WriteWholeFile(Path("a"), "first", fresh).ok());
  struct stat info{};
  ASSERT_EQ(stat(Path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(WriteWholeFile(Path("a"), "second", fresh).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Read(Path("a")), "first");
  // Somebody makes it while the text comes.
  std::string_view text = "ours";
  const TextSource source = [&]() -> absl::StatusOr<std::string_view> {
    std::ofstream(Path("b")) << "theirs";
    return std::exchange(text, std::string_view());
  };
  EXPECT_EQ(WriteWholeFile(Path("b"), source, fresh).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Read(Path("b")), "theirs");
  EXPECT_EQ(Entries(), 2);
}

TEST_F(WholeFile, ErrorOfTheSourceLeavesNothing) {
  int pieces = 0;
  const TextSource source = [&]() -> absl::StatusOr<std::string_view> {
    if (++pieces == 3) return absl::DataLossError("the source is gone");
    return "piece";
  };
  EXPECT_EQ(WriteWholeFile(Path("a"), source).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Entries(), 0);
}

TextSource Once(std::string_view text) {
  return [text]() mutable { return absl::StatusOr<std::string_view>(std::exchange(text, std::string_view())); };
}

// The file before its folder: the other way round a power failure leaves the name with half of the text.
TEST_F(WholeFile, DurableFilesAreSyncedWithTheirName) {
  synced.clear();
  ASSERT_TRUE(WriteWholeFile(Path("a"), "text").ok());
  EXPECT_TRUE(synced.empty());
  ASSERT_TRUE(WriteWholeFile(Path("a"), "new", {.durable = true}).ok());
  ASSERT_EQ(synced.size(), 2u);
  EXPECT_TRUE(synced[0].starts_with(Path("a.part-"))) << synced[0];
  EXPECT_EQ(synced[1], folder_);
  synced.clear();
  ASSERT_TRUE(SyncFolderOf(Path("a")).ok());
  EXPECT_EQ(synced, std::vector<std::string>{folder_});
}

TEST_F(WholeFile, ErrorOfSyncingIsReported) {
  ASSERT_TRUE(WriteWholeFile(Path("a"), "old").ok());
  sync_error = EIO;
  const absl::Status status = WriteWholeFile(Path("a"), "new", {.durable = true});
  const absl::Status fresh = WriteNewFile(Path("b"), Once("new"));
  const absl::Status folder = SyncFolder(folder_);
  sync_error = EINVAL;  // a file system that keeps no folder back
  EXPECT_TRUE(SyncFolder(folder_).ok());
  sync_error = 0;
  EXPECT_NE(status.message().find(Path("a") + ": Input/output error"), std::string_view::npos) << status;
  EXPECT_NE(fresh.message().find(Path("b") + ": Input/output error"), std::string_view::npos) << fresh;
  EXPECT_NE(folder.message().find(folder_ + ": Input/output error"), std::string_view::npos) << folder;
  EXPECT_EQ(Read(Path("a")), "old");
  EXPECT_EQ(Entries(), 1);
}

TEST_F(WholeFile, WriteNewFileWritesInPlaceAndReplacesNothing) {
  synced.clear();
  ASSERT_TRUE(WriteNewFile(Path("a"), Once("first")).ok());
  EXPECT_EQ(synced, std::vector<std::string>{Path("a")});
  EXPECT_EQ(WriteNewFile(Path("a"), Once("second")).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Read(Path("a")), "first");
  const TextSource gone = [] { return absl::DataLossError("the source is gone"); };
  EXPECT_EQ(WriteNewFile(Path("b"), gone).code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(WriteNewFile(Path("no/such/folder"), Once("text")).ok());
  EXPECT_EQ(Entries(), 1);
}

// A full pipe whose writer does not block.
std::pair<FileDescriptor, FileDescriptor> FullPipe() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  EXPECT_GE(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  const std::string page(4096, '-');
  while (write(ends[1], page.data(), page.size()) > 0) {
  }
  EXPECT_EQ(errno, EAGAIN);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::string NameOf(const FileDescriptor& descriptor) { return "/proc/self/fd/" + std::to_string(descriptor.get()); }

TEST_F(WholeFile, WritingWaitsForTheReaderOfADescriptorThatDoesNotBlock) {
  auto [in, out] = FullPipe();
  const std::string text(size_t{1} << 22, 'x');
  std::string taken;
  std::thread reader([&] {
    char piece[4096];
    for (ssize_t got = 0; (got = read(in.get(), piece, sizeof(piece))) > 0;) taken.append(piece, piece + got);
  });
  const absl::Status status = WriteWholeFile(NameOf(out), text);
  out.Close();
  reader.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(taken.ends_with(text)) << taken.size() << " bytes arrived";
}

TEST_F(WholeFile, ReaderThatTakesNothingIsAnErrorInTheEnd) {
  const auto [in, out] = FullPipe();
  const absl::Status status = WriteWholeFile(NameOf(out), "text", {.patience = std::chrono::milliseconds(20)});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_NE(status.message().find(NameOf(out)), std::string_view::npos) << status;
}

// To see whether it may be written must not end its reader, which is there since before the work began.
TEST_F(WholeFile, ReaderOfANamedPipeGetsAllOfIt) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  std::string read;
  std::atomic<pid_t> id = 0;
  std::thread reader([&] {
    id = gettid();
    read = Read(Path("pipe"));
  });
  // It waits in open(), where it could be ended; sooner, this shows nothing.
  const auto waits = [&] {
    return id != 0 && Read("/proc/self/task/" + std::to_string(id) + "/stat").find(") S ") != std::string::npos;
  };
  const Deadline deadline = Deadline::After(std::chrono::seconds(30));
  while (!waits() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(CheckWritable(Path("pipe")).ok());
  const std::string text(200'000, 'x');  // more than a pipe holds
  const absl::Status status = WriteWholeFile(Path("pipe"), text);
  EXPECT_TRUE(status.ok()) << status;
  reader.join();
  EXPECT_EQ(read, text);
}

TEST_F(WholeFile, NamedPipeThatNobodyReadsIsAnErrorInTheEnd) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(CheckWritable(Path("pipe")).ok());
  const absl::Status status = WriteWholeFile(Path("pipe"), "text", {.patience = std::chrono::milliseconds(20)});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_NE(status.message().find(Path("pipe")), std::string::npos) << status;
}

// As in /tmp.
TEST_F(WholeFile, FileOfAnotherUserInAStickyFolderIsRefusedBefore) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two other users";
  ASSERT_EQ(chmod(folder_.c_str(), 01777), 0);
  std::ofstream(Path("a")) << "another's";
  ASSERT_EQ(chown(Path("a").c_str(), 12345, 12345), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    const bool other = setuid(12346) == 0;
    _exit(other && CheckWritable(Path("a")).code() == absl::StatusCode::kPermissionDenied ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST_F(WholeFile, ErrorOfCloseIsReported) {
  ASSERT_TRUE(WriteWholeFile(Path("a"), "old").ok());
  // A descriptor that is closed already cannot be closed again: it stands for a quota that is known only then.
  bool first = true;
  const TextSource source = [&]() -> absl::StatusOr<std::string_view> {
    if (std::exchange(first, false)) return "new";
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const auto target = std::filesystem::read_symlink(entry.path(), gone);
      if (target.string().starts_with(Path("a.part-"))) close(std::stoi(entry.path().filename()));
    }
    return std::string_view();
  };
  const absl::Status status = WriteWholeFile(Path("a"), source);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(Path("a") + ": Bad file descriptor"), std::string_view::npos) << status;
  EXPECT_EQ(Read(Path("a")), "old");
  EXPECT_EQ(Entries(), 1);
}

TEST_F(WholeFile, LongestNameIsWritten) {
  // The second one's middle is of two bytes a character.
  std::string wide;
  while (wide.size() + 2 < NAME_MAX) wide += "\u00e9";
  for (const std::string& name : {std::string(NAME_MAX, 'n'), wide + "x"}) {
    ASSERT_EQ(name.size(), static_cast<size_t>(NAME_MAX));
    EXPECT_TRUE(CheckWritable(Path(name)).ok()) << CheckWritable(Path(name));
    const absl::Status status = WriteWholeFile(Path(name), "text");
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(Read(Path(name)), "text");
  }
  EXPECT_EQ(Entries(), 2);
  const std::string longer(NAME_MAX + 1, 'n');
  EXPECT_FALSE(CheckWritable(Path(longer)).ok()) << "a name that cannot be given is known before";
  EXPECT_FALSE(WriteWholeFile(Path(longer), "text").ok());
  EXPECT_EQ(Entries(), 2);
}

TEST_F(WholeFile, LoopOfLinksIsAnError) {
  ASSERT_EQ(symlink("b", Path("a").c_str()), 0);
  ASSERT_EQ(symlink("a", Path("b").c_str()), 0);
  for (const std::string& name : {Path("a"), Path("a/file")}) {
    for (const absl::Status& status : {CheckWritable(name), WriteWholeFile(name, "text")}) {
      EXPECT_NE(status.message().find(name + ": Too many levels of symbolic links"), std::string_view::npos) << status;
    }
  }
  EXPECT_TRUE(std::filesystem::is_symlink(Path("a")) && std::filesystem::is_symlink(Path("b")));
  EXPECT_EQ(Entries(), 2);
}

// As many as the kernel follows, and one more.
TEST_F(WholeFile, ManyLinksAreFollowedAsTheKernelFollowsThem) {
  for (int link = 0; link <= 40; ++link) {
    ASSERT_EQ(symlink((link == 0 ? "target" : "link" + std::to_string(link - 1)).c_str(),
                      Path("link" + std::to_string(link)).c_str()),
              0);
  }
  EXPECT_TRUE(WriteWholeFile(Path("link39"), "text").ok());
  EXPECT_EQ(Read(Path("target")), "text");
  EXPECT_FALSE(WriteWholeFile(Path("link40"), "other").ok());
  EXPECT_EQ(Read(Path("target")), "text");
}

// Its standard output is a file in which something stands already, as after `{ echo head; program; } > file`.
TEST_F(WholeFile, StandardOutputIsWrittenToWhereItIs) {
  for (const std::string name : {"/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"}) {
    if (!std::filesystem::exists(name)) continue;  // a bare system may lack the links in /dev
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      const int out = open(Path("out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      if (out < 0 || dup2(out, 1) != 1 || write(1, "head ", 5) != 5) _exit(1);
      if (!CheckWritable(name).ok() || !WriteWholeFile(name, "text", {.replace = false}).ok()) _exit(2);
      _exit(write(1, " tail", 5) == 5 ? 0 : 3);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << name << ": status " << status;
    EXPECT_EQ(Read(Path("out")), "head text tail") << name;
    EXPECT_EQ(Entries(), 1) << name;
  }
}

TEST_F(WholeFile, DevicesAreWrittenToAndStay) {
  ASSERT_TRUE(CheckWritable("/dev/null").ok());
  ASSERT_TRUE(WriteWholeFile("/dev/null", "text").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_FALSE(WriteWholeFile("/dev/full", "text").ok());
}

TEST_F(WholeFile, PathsThatCannotBeWrittenAreRefusedBefore) {
  for (const std::string& path : {Path("no/such/folder"), folder_}) {
    EXPECT_FALSE(CheckWritable(path).ok()) << path;
    EXPECT_FALSE(WriteWholeFile(path, "text").ok()) << path;
  }
  EXPECT_EQ(Entries(), 0);
}

}  // namespace
}  // namespace cohort::runtime
