// --log-dir on a file system that does not answer.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "cohort/runtime/base/deadline.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "tests/launcher/dlaunch/dlaunch_process.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Reads a named pipe from now on until all who write to it have gone: at most `bytes` in each `pause`.
class PipeReader {
 public:
  PipeReader(const std::string& path, size_t bytes, milliseconds pause)
      : pipe_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)), thread_([this, bytes, pause] {
          std::string buffer(bytes, '\0');
          for (const Deadline deadline = Deadline::After(seconds(60)); !deadline.passed();) {
            const ssize_t n = ::read(pipe_.get(), buffer.data(), buffer.size());
            if (n == 0 && !text_.empty()) return;
            if (n > 0) text_.append(buffer, 0, static_cast<size_t>(n));
            ::poll(nullptr, 0, static_cast<int>(pause / milliseconds(1)));
          }
        }) {}
  ~PipeReader() {
    if (thread_.joinable()) thread_.join();
  }
  const std::string& Text() {
    thread_.join();
    return text_;
  }

 private:
  runtime::FileDescriptor pipe_;
  std::string text_;
  std::thread thread_;
};

// A named pipe that nobody reads stands for it: opening it blocks for ever, as on a file server that is gone.
TEST(LogFiles, ADiskThatHangsKeepsNobodyFromTheJob) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() + "/rank-1.out").c_str(), 0600), 0);
  DlaunchProcess job({"--simulate-nodes", "2", "--log-dir", folder.path(), "sh", "-c",
                      "yes $(printf %01000d 0) | head -n 6000; echo the end"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.out().find("[0] the end\n"), std::string::npos);
  EXPECT_NE(job.out().find("[1] the end\n"), std::string::npos);
  EXPECT_NE(job.err().find("rank-1.out is a named pipe, and nobody reads it in time"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("bytes of what ranks have printed are missing in " + folder.path() + "/rank-1.out"),
            std::string::npos)
      << job.err();
  EXPECT_EQ(job.err().find("lost"), std::string::npos) << job.err();
}

TEST(LogFiles, AFolderThatIsTakenAwayIsNamed) {
  const TemporaryFolder folder;
  const std::string logs = folder.path() + "/logs";
  DlaunchProcess job({"--nproc-per-node", "2", "--log-dir", logs, "sh", "-c",
                      "echo up; while [ -d " + logs + " ]; do sleep 0.05; done"});
  ASSERT_TRUE(job.WaitForOutput("[0] up") && job.WaitForOutput("[1] up")) << job.err();
  // Lines are passed on while the writer may not have opened its files yet.
  const auto opened = [&logs] {
    const std::vector<std::string> names = {"/rank-0.out", "/rank-0.err", "/rank-1.out", "/rank-1.err"};
    return std::all_of(names.begin(), names.end(),
                       [&](const auto& name) { return std::filesystem::exists(logs + name); });
  };
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!opened() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(opened());
  std::filesystem::rename(logs, folder.path() + "/elsewhere");
  std::ofstream(logs).close();
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.err().find("was moved or removed while the job ran"), std::string::npos) << job.err();
}

// Also where nothing follows what was lost, which is most often so here.
TEST(LogFiles, ALogFileSaysAtItsEndWhatIsMissing) {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/rank-0.out";
  const std::string gate = folder.path() + "/gate";
  ASSERT_EQ(::mkfifo(log.c_str(), 0600), 0);
  DlaunchProcess job(
      {"--log-dir", folder.path(), "-n", "1", "sh", "-c",
       "yes $(printf %01000d 0) | head -n 6000; echo printed >&2; while ! [ -e " + gate + " ]; do sleep 0.01; done"});
  ASSERT_TRUE(job.WaitUntil([&] { return job.err().find("[0] printed\n") != std::string::npos; })) << job.err();
  PipeReader reader(log, 64 << 10, milliseconds(1));
  std::ofstream(gate).close();
  EXPECT_EQ(job.Wait(), 0) << job.err();
  const std::string& text = reader.Text();
  size_t bytes = text.size();
  const std::regex notice(R"(\n\[(\d+) bytes left out: the disk was too slow\]\n)");
  for (std::sregex_iterator at(text.begin(), text.end(), notice), end; at != end; ++at) {
    bytes += std::stoul(at->str(1)) - static_cast<size_t>(at->length());
  }
  EXPECT_EQ(bytes, 6000u * 1001);
}

// Its node says in time that its ranks are gone, and is not taken for lost: all can begin again.
TEST(LogFiles, ASlowDiskCostsNoNode) {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/rank-1.out";
  const std::string gate = folder.path() + "/gate";
  ASSERT_EQ(::mkfifo(log.c_str(), 0600), 0);
  PipeReader slow(log, 8 << 10, milliseconds(100));
  DlaunchProcess job(
      {"--simulate-nodes", "2", "--grace", "0.5", "--max-restarts", "1", "--log-dir", folder.path(), "sh", "-c",
       "[ $COHORT_EPOCH = 2 ] && exit; [ $RANK = 1 ] && exec yes $(printf %01000d 0); while ! [ -e " + gate +
           " ]; do sleep 0.01; done; "
           "exit 3"});
  // By then the log is full, and its rank waits for it.
  ASSERT_TRUE(job.WaitUntil([&] { return job.out().size() > (700u << 10); })) << job.err();
  std::ofstream(gate).close();
  EXPECT_EQ(job.Wait(), 0) << job.err();
}

// As a file server that goes in the midst of a job.
TEST(LogFiles, AReportThatCanNotBeWrittenKeepsNobody) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() + "/report.json").c_str(), 0600), 0);
  DlaunchProcess job({"--log-dir", folder.path(), "-n", "1", "sh", "-c", "echo the end"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_NE(job.out().find("[0] the end"), std::string::npos) << job.out();
  EXPECT_NE(job.err().find(folder.path() + "/report.json is missing"), std::string::npos) << job.err();
}

// It would be emptied: by a slip, or because another has put the link there.
TEST(LogFiles, AFileBehindALinkIsNotWritten) {
  const TemporaryFolder folder;
  const std::string precious = folder.path() + "/precious";
  std::ofstream(precious) << "kept";
  std::filesystem::create_symlink(precious, folder.path() + "/rank-0.out");
  std::filesystem::create_symlink(folder.path() + "/nothing", folder.path() + "/rank-0.err");
  DlaunchProcess job({"--log-dir", folder.path(), "-n", "1", "sh", "-c", "echo out; echo err >&2"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  for (const char* name : {"/rank-0.out", "/rank-0.err"}) {
    EXPECT_NE(job.err().find(folder.path() + name + ": it is a symbolic link"), std::string::npos) << job.err();
  }
  std::string text;
  std::getline(std::ifstream(precious), text);
  EXPECT_EQ(text, "kept");
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/nothing"));
}

// Whichever begins later would empty the other's files.
TEST(LogFiles, AFolderOfAJobThatRunsIsRefused) {
  const TemporaryFolder folder;
  const std::string logs = folder.path() + "/logs";
  DlaunchProcess first(
      {"--log-dir", logs, "sh", "-c", "echo up; while [ ! -e " + folder.path() + "/go ]; do sleep 0.05; done"});
  ASSERT_TRUE(first.WaitForOutput("[0] up")) << first.err();
  DlaunchProcess second({"--log-dir", logs, "echo", "from the second"});
  EXPECT_EQ(second.Wait(), 2) << second.err();
  EXPECT_NE(second.err().find("--log-dir " + logs + ": another job that runs writes there"), std::string::npos)
      << second.err();
  EXPECT_EQ(second.out(), "");
  std::ofstream(folder.path() + "/go") << "";
  EXPECT_EQ(first.Wait(), 0) << first.err();
  std::ifstream file(logs + "/rank-0.out");
  std::string line;
  EXPECT_TRUE(std::getline(file, line) && line == "up") << line;
  DlaunchProcess third({"--log-dir", logs, "true"});
  EXPECT_EQ(third.Wait(), 0) << third.err();
}

TEST(LogFiles, ARefusedJobLeavesNoFolder) {
  const TemporaryFolder folder;
  ASSERT_TRUE(std::filesystem::create_directory(folder.path() + "/old"));
  for (const char* const name : {"/old", "/new/logs/"}) {
    DlaunchProcess job({"--ssh", "false", "--hosts", "a,b", "--log-dir", folder.path() + name, "true"});
    EXPECT_EQ(job.Wait(), 2) << job.err();
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/old")) << "that was there before";
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/new"));
  DlaunchProcess job({"--log-dir", folder.path() + "/new/logs/", "true"});
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/new/logs/report.json"));
}

// A folder that can't be made is refused before anybody is asked, or waited for.
TEST(LogFiles, AFolderThatCanNotBeMadeIsRefusedFirst) {
  const auto start = std::chrono::steady_clock::now();
  DlaunchProcess waits({"--nnodes", "2", "--wait", "600", "--log-dir", "/dev/null/logs", "true"});
  EXPECT_EQ(waits.Wait(), 2) << waits.err();
  EXPECT_NE(waits.err().find("--log-dir /dev/null/logs"), std::string::npos) << waits.err();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));  // the promise is one

  const TemporaryFolder folder;
  const std::string asked = folder.path() + "/asked";
  DlaunchProcess asks({"--ssh", folder.AddScript("ssh", "#!/bin/sh\ntouch " + asked + "\nexit 1\n"), "--hosts", "a,b",
                       "--log-dir", "/dev/null/logs", "true"});
  EXPECT_EQ(asks.Wait(), 2) << asks.err();
  EXPECT_NE(asks.err().find("--log-dir /dev/null/logs"), std::string::npos) << asks.err();
  EXPECT_FALSE(std::filesystem::exists(asked)) << "a host was asked before";
}

}  // namespace
}  // namespace cohort::launcher
