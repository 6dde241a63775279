// How ranks are ended, and what is said of it: real processes, in one thread.
#include "launcher/agent/supervisor.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <string>
#include <vector>

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Ranks that say when they run, and end when asked or, deaf, don't.
class SupervisorTest : public ::testing::Test {
 protected:
  // Returns when all of them run.
  void Start(int ranks, bool deaf) {
    v1::Assignment assignment;
    const std::string loop = "echo up; while :; do sleep 0.05; done";
    for (const std::string& word : {std::string("/bin/sh"), std::string("-c"), (deaf ? "trap '' TERM; " : "") + loop}) {
      assignment.mutable_job()->add_command(word);
    }
    assignment.mutable_job()->set_working_directory("/");
    for (int i = 0; i < ranks; ++i) assignment.mutable_placement()->add_ranks()->set_rank(static_cast<uint32_t>(i));
    const v1::RanksStarted started = supervisor_.Start(
        assignment, std::vector<std::vector<std::string>>(static_cast<size_t>(ranks), {"PATH=/usr/bin:/bin"}));
    ASSERT_EQ(started.pids_size(), ranks);
    for (const v1::RankPid& pid : started.pids()) WatchEnd(pid.pid());
    waiting_for_ = ranks;
    Run();
    ASSERT_EQ(waiting_for_, 0) << "not all ranks have started";
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
  int waiting_for_ = 0;
  Supervisor supervisor_{&loop_,
                         &sentinel_,
                         &cgroup_,
                         nullptr,
                         {.on_line =
                              [this](const v1::OutputLine&) {
                                if (waiting_for_ > 0 && --waiting_for_ == 0) loop_.Quit();
                              },
                          .on_notice = [](const std::string& text) { ADD_FAILURE() << text; },
                          .on_exit = [this](int rank, v1::RankExit exit) { exits_[rank] = std::move(exit); },
                          .on_input_wanted = {},
                          .on_all_gone = [this] { loop_.Quit(); }}};

 private:
  void WatchEnd(pid_t pid) {
    runtime::FileDescriptor& end = ends_[pid];
    end = runtime::FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    loop_.Watch(end.get(), EPOLLIN, [this, pid](uint32_t) {
      loop_.Unwatch(ends_[pid].get());
      ends_.erase(pid);
      int status = 0;
      ASSERT_EQ(::waitpid(pid, &status, 0), pid);
      EXPECT_TRUE(supervisor_.OnChildEnded(pid, status));
    });
  }
  std::map<pid_t, runtime::FileDescriptor> ends_;
};

TEST_F(SupervisorTest, WhoEndsWhenAskedWasAsked) {
  Start(2, false);
  supervisor_.Stop(seconds(60));
  Run();
  ASSERT_EQ(exits_.size(), 2u);
  for (const auto& [rank, exit] : exits_) {
    EXPECT_TRUE(exit.asked_to_end() && exit.killed_by_us());
    EXPECT_EQ(exit.signal(), SIGTERM);
  }
}

TEST_F(SupervisorTest, WhoDoesNotIsKilledAndWasAsked) {
  Start(1, true);
  supervisor_.Stop(milliseconds(20));
  Run();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_TRUE(exits_[0].asked_to_end() && exits_[0].killed_by_us());
  EXPECT_EQ(exits_[0].signal(), SIGKILL);
}

TEST_F(SupervisorTest, WithoutGraceNobodyIsAsked) {
  Start(1, false);
  supervisor_.Stop(milliseconds(0));
  Run();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_TRUE(exits_[0].killed_by_us());
  EXPECT_FALSE(exits_[0].asked_to_end());
}

TEST_F(SupervisorTest, WhoGaveCauseIsNotAsked) {
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
TEST_F(SupervisorTest, WhoMayStayIsKilledWhenItsTimeIsOverWithoutBeingAsked) {
  Start(1, true);
  supervisor_.OnProgramJoined(0, ::getpid(), true);  // some process that lives
  supervisor_.Stop(milliseconds(100), true);
  supervisor_.OnProgramVanished(0, ::getpid());
  Run();
  ASSERT_EQ(exits_.size(), 1u);
  EXPECT_TRUE(exits_[0].killed_by_us());
  EXPECT_FALSE(exits_[0].asked_to_end());
}

}  // namespace
}  // namespace cohort::launcher
