// Processes that live on from one epoch into the next.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/launcher/agent/supervisor.h"

namespace cohort::launcher {
namespace {

using std::chrono::seconds;

// One rank that prints "ready" and then sleeps, heedless of SIGTERM, unless it runs another script.
class Staying : public ::testing::Test {
 protected:
  explicit Staying(const std::string& script = "trap '' TERM; echo ready; exec sleep 1000") {
    v1::JobSpec& job = *assignment_.mutable_job();
    v1::RankProgram& program = *job.add_programs();
    for (const std::string& word : {std::string("/bin/sh"), std::string("-c"), script}) program.add_command(word);
    job.set_working_directory("/");
    assignment_.mutable_placement()->add_ranks();
  }
  void SetUp() override {
    first_->Start(assignment_, kEnvironments);
    loop_.After(seconds(20), [this] { loop_.Quit(); });
    loop_.Run();
    ASSERT_GT(pid_, 0);
    ASSERT_EQ(lines_, std::deque<std::string>{"ready"});
    lines_.clear();
    first_->OnProgramJoined(0, pid_, /*may_stay=*/true);
    first_->OnStays(0);
    ASSERT_TRUE(first_->all_gone());
  }
  void TearDown() override {
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  Supervisor::Handler Handler() {
    return [this](const Supervisor::Event& event) {
      if (const auto* const printed = std::get_if<Supervisor::Line>(&event)) {
        lines_.push_back(printed->line->text());
        loop_.Quit();
      } else if (const auto* const started = std::get_if<Supervisor::Started>(&event)) {
        if (started->started.pids_size() == 1) pid_ = started->started.pids(0).pid();
      } else if (const auto* const wanted = std::get_if<Supervisor::InputWanted>(&event)) {
        wanted_ += wanted->bytes;
      }
    };
  }

  const std::vector<RankSurroundings> kEnvironments = {{.environment = {"PATH=/usr/bin:/bin"}}};
  EventLoop loop_;
  Cgroup cgroup_{""};
  Sentinel sentinel_{"COHORT_AGENT=@none", &cgroup_};
  v1::Assignment assignment_;
  std::deque<std::string> lines_;
  uint64_t wanted_ = 0;  // bytes of standard input
  pid_t pid_ = 0;
  std::unique_ptr<Supervisor> first_ = std::make_unique<Supervisor>(&loop_, &sentinel_, &cgroup_, nullptr, Handler());
};

// One that repeats what it reads.
class StayingReader : public Staying {
 protected:
  StayingReader() : Staying("echo ready; while read line; do echo got $line; done; echo end") {
    assignment_.mutable_job()->set_input_to_first_rank(true);
  }
  // The next line that it prints, or none in time.
  std::string NextLine() {
    if (lines_.empty()) loop_.Run();
    if (lines_.empty()) return "";
    std::string line = std::move(lines_.front());
    lines_.pop_front();
    return line;
  }
};

TEST_F(Staying, AFailureDoesNotEndAStayingRankThatHasNotJoinedAgain) {
  std::vector<std::optional<Supervisor::Kept>> kept = first_->TakeStaying();
  ASSERT_TRUE(kept.at(0).has_value());
  Supervisor second(&loop_, &sentinel_, &cgroup_, nullptr, Handler());
  second.Start(assignment_, kEnvironments, std::move(kept));
  EXPECT_FALSE(second.all_gone());
  second.Stop(seconds(100), /*restarting=*/true);
  // It joins, gets the failure, and leaves this epoch too; who has been told to end can't.
  second.OnProgramJoined(0, pid_, /*may_stay=*/true);
  second.OnStays(0);
  EXPECT_TRUE(second.all_gone());
  EXPECT_TRUE(second.TakeStaying().at(0).has_value());
}

TEST_F(StayingReader, AStayingRankGoesOnReadingInTheNextEpoch) {
  v1::StandardInput input;
  input.set_bytes("one\n");
  first_->streams().TakeInput(input);
  ASSERT_EQ(NextLine(), "got one");
  std::vector<std::optional<Supervisor::Kept>> kept = first_->TakeStaying();
  first_.reset();
  Supervisor second(&loop_, &sentinel_, &cgroup_, nullptr, Handler());
  second.Start(assignment_, kEnvironments, std::move(kept));
  input.set_bytes("two\n");
  second.streams().TakeInput(input);
  EXPECT_EQ(NextLine(), "got two");
  EXPECT_EQ(wanted_, RankInput::kWindow + 8) << "so much is on its way at most, as in the epoch before";
  input.set_bytes("three\n");
  input.set_end(true);
  second.streams().TakeInput(input);
  EXPECT_EQ(NextLine(), "got three");
  EXPECT_EQ(NextLine(), "end");
}

TEST_F(Staying, ARankThatIgnoresTheOrderToEndIsKilledInsteadOfKept) {
  first_->Stop(seconds(100));
  EXPECT_FALSE(first_->TakeStaying().at(0).has_value());
  const pid_t pid = pid_;
  const auto deadline = EventLoop::Clock::now() + seconds(20);
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(pid, &status, WNOHANG)) == 0 && EventLoop::Clock::now() < deadline) ::usleep(1000);
  ASSERT_EQ(ended, pid) << "it lives on";
  pid_ = 0;
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

}  // namespace
}  // namespace cohort::launcher
