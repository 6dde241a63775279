#include "cohort/launcher/commands/trace/trace_folder.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cohort/launcher/base/pipe.h"
#include "tests/support/temporary_folder.h"

namespace cohort::launcher {
namespace {

class TraceFolderTest : public ::testing::Test {
 protected:
  static constexpr unsigned kEndsWithinSeconds = 60;

  ~TraceFolderTest() override {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

  // A child makes a trace folder in `folder_` and waits for signals, of which it ignores one. False: it can't.
  bool StartChild(int ignored = 0) {
    Pipe made;
    if (!made.Open()) return false;
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(kEndsWithinSeconds);
      for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
        ::signal(signal, signal == ignored ? SIG_IGN : SIG_DFL);
      }
      ::setenv("TMPDIR", folder_.path().c_str(), 1);
      const auto trace = TraceFolder::Make(::getpid());
      if (!trace.ok() || ::write(made.write_end.get(), ".", 1) != 1) ::_exit(1);
      while (true) ::pause();
    }
    made.write_end = runtime::FileDescriptor();
    char byte = 0;
    return child_ > 0 && ::read(made.read_end.get(), &byte, 1) == 1;
  }
  // The signal that ended it; 0: none did.
  int SignalThatEnded() {
    int status = 0;
    if (::waitpid(child_, &status, 0) != child_) return 0;
    child_ = 0;
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }
  // The folder that the child has made.
  std::string Made() const {
    const std::filesystem::directory_iterator all(folder_.path());
    return all == std::filesystem::directory_iterator() ? "" : all->path().string();
  }

  const TemporaryFolder folder_;
  pid_t child_ = 0;
};

TEST_F(TraceFolderTest, ASignalEndsTheProcessAndRemovesTheFolder) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (const bool has_file : {false, true}) {
      ASSERT_TRUE(StartChild());
      ASSERT_TRUE(TraceFolder::Holds(Made() + "/job.pftrace"));
      if (has_file) std::ofstream(Made() + "/job.pftrace") << "a trace";
      ASSERT_EQ(::kill(child_, signal), 0);
      EXPECT_EQ(SignalThatEnded(), signal);
      EXPECT_EQ(Made(), "") << signal;
    }
  }
}

TEST_F(TraceFolderTest, ASignalThatIsIgnoredStaysSo) {
  ASSERT_TRUE(StartChild(SIGHUP));
  ASSERT_EQ(::kill(child_, SIGHUP), 0);
  ASSERT_EQ(::kill(child_, SIGTERM), 0);
  EXPECT_EQ(SignalThatEnded(), SIGTERM);
  EXPECT_EQ(Made(), "");
}

TEST_F(TraceFolderTest, AFileWithoutANameStaysReadable) {
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TMPDIR", folder_.path().c_str(), 1);
  {
    absl::StatusOr<TraceFolder> trace = TraceFolder::Make(::getpid());
    ASSERT_TRUE(trace.ok()) << trace.status();
    trace->TakeNameAway();  // there is none yet
    std::ofstream(trace->file()) << "no trace";
    trace->TakeNameAway();
    EXPECT_EQ(Made(), "");
    const absl::Status read = trace->Read().status();
    EXPECT_FALSE(absl::IsNotFound(read)) << read;
  }
  before == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", kept.c_str(), 1);
}

}  // namespace
}  // namespace cohort::launcher
