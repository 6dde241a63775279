// How ranks are ended, and what is said of it: real processes, in one thread.
#include "cohort/launcher/agent/supervisor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kExecLimit{2000};

// Ranks that say when they run, and end when asked or, deaf, don't.
class SupervisorTest : public ::testing::Test {
 protected:
  // Returns when all of them run.
  void Start(int ranks, bool deaf) {
    v1::Assignment assignment;
    const std::string loop = "echo up; while :; do sleep 0.05; done";
    v1::RankProgram& program = *assignment.mutable_job()->add_programs();
    for (const std::string& word : {std::string("/bin/sh"), std::string("-c"), (deaf ? "trap '' TERM; " : "") + loop}) {
      program.add_command(word);
    }
    assignment.mutable_job()->set_working_directory("/");
    for (int i = 0; i < ranks; ++i) assignment.mutable_placement()->add_ranks()->set_rank(static_cast<uint32_t>(i));
    waiting_for_ = ranks;
    supervisor_.Start(assignment, Environments(ranks));
    Run();
    ASSERT_EQ(started_.pids_size(), ranks);
    ASSERT_EQ(waiting_for_, 0) << "not all ranks have started";
  }
  static std::vector<RankSurroundings> Environments(int ranks) {
    return std::vector<RankSurroundings>(static_cast<size_t>(ranks),
                                         RankSurroundings{.environment = {"PATH=/usr/bin:/bin"}});
  }
  // Until all ranks have ended.
  void Run() {
    const EventLoop::TimerId limit = loop_.After(seconds(60), [this] { loop_.Quit(); });
    loop_.Run();
    loop_.Cancel(limit);
  }
  ~SupervisorTest() override {
    for (const pid_t pid : supervisor_.pids()) {
      ::kill(-pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    for (auto& [pid, fd] : ends_) loop_.Unwatch(fd.get());
  }

  EventLoop loop_;
  Cgroup cgroup_{""};                                             // none
  Sentinel sentinel_{"COHORT_AGENT=@supervisor-test", &cgroup_};  // not started
  std::map<int, v1::RankExit> exits_;
  std::string wanted_notice_;  // words of the one that may come, and then ends the loop
  std::string notice_;
  int waiting_for_ = 0;
  int times_started_ = 0;
  v1::RanksStarted started_;
  Supervisor supervisor_{
      &loop_,
      &sentinel_,
      &cgroup_,
      nullptr,
      [this](const Supervisor::Event& event) { std::visit([this](const auto& it) { On(it); }, event); },
      kExecLimit};

 private:
  void On(const Supervisor::Line&) {
    if (waiting_for_ > 0 && --waiting_for_ == 0) loop_.Quit();
  }
  void On(const Supervisor::Notice& notice) {
    if (wanted_notice_.empty() || notice.text.find(wanted_notice_) == std::string::npos) ADD_FAILURE() << notice.text;
    notice_ = notice.text;
    loop_.Quit();
  }
  void On(const Supervisor::InputWanted&) {}
  void On(const Supervisor::Ended& event) { exits_[event.local_rank] = event.exit; }
  void On(const Supervisor::AllGone&) { loop_.Quit(); }
  void On(const Supervisor::Started& event) {
    ++times_started_;
    started_ = event.started;
    for (const v1::RankPid& pid : started_.pids()) WatchEnd(pid.pid());
    if (waiting_for_ == 0) loop_.Quit();
  }
  void WatchEnd(pid_t pid) {
    runtime::FileDescriptor& end = ends_[pid];
    end = runtime::FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    loop_.Watch(end.get(), EPOLLIN, [this, pid](uint32_t) {
      loop_.Unwatch(ends_[pid].get());
      ends_.erase(pid);
      int status = 0;
      if (::waitpid(pid, &status, WNOHANG) != pid) return;  // its tracer has not yet let go of it
      EXPECT_TRUE(supervisor_.OnChildEnded(pid, status));
    });
  }
  std::map<pid_t, runtime::FileDescriptor> ends_;
};

TEST_F(SupervisorTest, ARankThatEndsWhenAskedWasAsked) {
  Start(2, false);
  supervisor_.Stop(seconds(60));
  Run();
  ASSERT_EQ(exits_.size(), 2u);
  for (const auto& [rank, exit] : exits_) {
    EXPECT_TRUE(exit.asked_to_end() && exit.killed_by_us());
    EXPECT_EQ(exit.signal(), SIGTERM);
    EXPECT_TRUE(exit.state().starts_with("sh ")) << exit.state();  // where it was
    EXPECT_TRUE(exit.frames().empty());
  }
}

TEST_F(SupervisorTest, ARankThatDoesNotEndWhenAskedIsKilled) {
  Start(1, true);
  supervisor_.Stop(milliseconds(20));
  Run();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_TRUE(exits_[0].asked_to_end() && exits_[0].killed_by_us());
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
}

TEST_F(SupervisorTest, WithoutGraceRanksAreKilledUnasked) {
  Start(1, false);
  supervisor_.Stop(milliseconds(0));
  Run();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_TRUE(exits_[0].killed_by_us());
  EXPECT_FALSE(exits_[0].asked_to_end());
}

TEST_F(SupervisorTest, ARankThatGaveCauseIsKilledUnasked) {
  Start(2, false);
  supervisor_.KillAsAsked(1, "it asked for it");
  supervisor_.Stop(seconds(60));
  Run();
  ASSERT_EQ(exits_.size(), 2u);
  EXPECT_TRUE(exits_[0].asked_to_end());
  EXPECT_FALSE(exits_[1].asked_to_end());
  EXPECT_EQ(exits_[1].error(), "it asked for it");
}

// It has left its agent, as one that waits for the next epoch would, but lives and does not say so.
TEST_F(SupervisorTest, ARankThatMayStayIsKilledUnaskedWhenItsTimeIsOver) {
  Start(1, true);
  supervisor_.OnProgramJoined(0, ::getpid(), true);  // some process that lives
  supervisor_.Stop(milliseconds(100), true);
  supervisor_.OnProgramVanished(0, ::getpid());
  Run();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_TRUE(exits_[0].killed_by_us());
  EXPECT_FALSE(exits_[0].asked_to_end());
}

// On a busy machine the order to end may be read before the end that came first.
TEST_F(SupervisorTest, ARankThatHasEndedByItselfWasNotEndedByUs) {
  Start(2, false);
  const pid_t killed = started_.pids(0).pid();  // in the order in which they came to run
  const int rank = static_cast<int>(started_.pids(0).rank());
  ASSERT_EQ(::kill(killed, SIGKILL), 0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(killed), &info, WEXITED | WNOWAIT), 0);
  supervisor_.Stop(seconds(60));
  Run();
  ASSERT_EQ(exits_.size(), 2u);
  EXPECT_FALSE(exits_[rank].killed_by_us());
  EXPECT_FALSE(exits_[rank].asked_to_end());
  EXPECT_EQ(exits_[rank].signal(), SIGKILL);
  EXPECT_TRUE(exits_[1 - rank].asked_to_end() && exits_[1 - rank].killed_by_us());
}

// A process that attaches to another, as a debugger does, and keeps it stopped until this object goes.
class Debugger {
 public:
  explicit Debugger(pid_t of) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      const bool attached = ::ptrace(PTRACE_ATTACH, of, nullptr, nullptr) == 0 && ::waitpid(of, nullptr, 0) == of;
      const int error = attached ? 0 : errno;
      (void)!::write(ends[1], &error, sizeof error);
      for (;;) ::pause();
    }
    (void)!::read(ends[0], &error_, sizeof error_);
    for (const int end : ends) ::close(end);
  }
  ~Debugger() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  // Why it could not; 0: it has.
  int error() const { return error_; }

 private:
  pid_t pid_ = -1;
  int error_ = ECHILD;
};

TEST_F(SupervisorTest, ARankStoppedByADebuggerIsLeftAloneAndNamed) {
  Start(1, false);
  const Debugger debugger(started_.pids(0).pid());
  if (debugger.error() != 0) GTEST_SKIP() << "no ptrace here: " << std::strerror(debugger.error());
  wanted_notice_ = "is stopped by a debugger";
  Run();
  const std::string who = "pid " + std::to_string(debugger.pid());
  EXPECT_NE(notice_.find(who), std::string::npos) << notice_;
  EXPECT_NE(supervisor_.HeldBy(0).find(who), std::string::npos) << supervisor_.HeldBy(0);
  EXPECT_TRUE(exits_.empty());
  // When it is ended, its end is the debugger's to read, which does not.
  supervisor_.Stop(milliseconds(0));
  Run();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_TRUE(exits_[0].killed_by_us());
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
  EXPECT_TRUE(supervisor_.all_gone());
}

// A program that the kernel does not open for execution while this object holds a lease on it, as one on a file server
// that is gone.
class StuckProgram {
 public:
  StuckProgram() {
    ::signal(SIGIO, SIG_IGN);  // that somebody wants to open it
    file_ = runtime::FileDescriptor(::mkostemp(path_.data(), O_CLOEXEC));
    const std::string script = "#!/bin/sh\nexec sleep 1000\n";
    EXPECT_EQ(::write(file_.get(), script.data(), script.size()), static_cast<ssize_t>(script.size()));
    EXPECT_EQ(::fchmod(file_.get(), 0700), 0);
    file_ = runtime::FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    stuck_ = ::fcntl(file_.get(), F_SETLEASE, F_WRLCK) == 0;
  }
  ~StuckProgram() { ::unlink(path_.c_str()); }
  StuckProgram(const StuckProgram&) = delete;
  StuckProgram& operator=(const StuckProgram&) = delete;

  bool stuck() const { return stuck_; }
  const std::string& path() const { return path_; }
  void Release() { EXPECT_EQ(::fcntl(file_.get(), F_SETLEASE, F_UNLCK), 0); }

 private:
  std::string path_ = ::testing::TempDir() + "stuck-program-XXXXXX";
  runtime::FileDescriptor file_;
  bool stuck_ = false;
};

class StuckStart : public SupervisorTest {
 protected:
  static constexpr int kRanks = 4;

  void SetUp() override {
    if (!program_.stuck()) GTEST_SKIP() << "no leases on files here: " << std::strerror(errno);
    v1::Assignment assignment;
    assignment.mutable_job()->add_programs()->add_command(program_.path());
    assignment.mutable_job()->set_working_directory("/");
    for (int i = 0; i < kRanks; ++i) assignment.mutable_placement()->add_ranks()->set_rank(static_cast<uint32_t>(i));
    supervisor_.Start(assignment, Environments(kRanks));
    EXPECT_EQ(times_started_, 0) << "it is not known yet";
  }
  StuckProgram program_;
};

TEST_F(StuckStart, TheLoopGoesOnWhileProgramsStart) {
  loop_.After(milliseconds(50), [this] {
    EXPECT_EQ(times_started_, 0);
    program_.Release();
  });
  Run();
  EXPECT_EQ(times_started_, 1);
  EXPECT_EQ(started_.pids_size(), kRanks);
  EXPECT_EQ(started_.failed_size(), 0);
}

TEST_F(StuckStart, AllStartingRanksShareOneDeadline) {
  const auto began = EventLoop::Clock::now();
  Run();
  EXPECT_LT(EventLoop::Clock::now() - began, 2 * kExecLimit);
  EXPECT_EQ(times_started_, 1);
  ASSERT_EQ(started_.failed_size(), kRanks);
  EXPECT_NE(started_.failed(0).error().find("takes over 2 s"), std::string::npos) << started_.failed(0).error();
  EXPECT_TRUE(exits_.empty()) << "they have not started, so have not ended either";
}

// A node that ends while its ranks are being started.
TEST_F(StuckStart, ARankEndedWhileItStartsCountsAsStarted) {
  loop_.After(milliseconds(50), [this] { supervisor_.Stop(milliseconds(0)); });
  Run();
  ASSERT_EQ(times_started_, 1);
  Run();
  ASSERT_EQ(exits_.size(), static_cast<size_t>(kRanks));
  for (const auto& [rank, exit] : exits_) EXPECT_TRUE(exit.killed_by_us() && exit.signal() == SIGKILL) << rank;
}

}  // namespace
}  // namespace cohort::launcher
