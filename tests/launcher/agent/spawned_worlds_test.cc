// Processes that a rank asks for: refusals, failures and waits. The rank is this test.
#include "cohort/launcher/agent/spawned_worlds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cohort::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::StartsWith;

class SpawnedWorldsTest : public ::testing::Test {
 protected:
  SpawnedWorldsTest() {
    v1::JobSpec& job = *assignment_.mutable_job();
    job.set_job_id("job");
    job.set_working_directory("/");
    assignment_.set_epoch(1);
    assignment_.set_world_size(4);
    assignment_.add_nodes()->set_name("host");
    assignment_.mutable_placement()->add_ranks()->set_rank(3);
    worlds_.emplace(
        &loop_, assignment_, &sentinel_, &cgroup_, OpenMpiFolders(),
        SpawnedWorlds::Callbacks{.on_line = [](const v1::OutputLine&) {},
                                 .on_notice = [this](const std::string& text) { notices_.push_back(text); },
                                 .on_failure =
                                     [this](int, const std::string& why, std::optional<int> exit_code, int signal) {
                                       failures_.push_back(why);
                                       exit_code_ = exit_code;
                                       signal_ = signal;
                                     },
                                 .on_all_ended = [] {},
                                 .environment_of = [](int) { return std::vector<std::string>{"PATH=/usr/bin:/bin"}; },
                                 .use_of = [this](int) { return use_; }},
        MpiDelays{.cause_may_show = std::chrono::milliseconds(1),
                  .absence_is_told = std::chrono::hours(1),
                  .wait_is_told = std::chrono::milliseconds(1)});
  }
  ~SpawnedWorldsTest() override {
    worlds_->KillOf(0);
    EXPECT_TRUE(RunUntil([this] { return !worlds_->any_lives(); }));
  }

  // Takes the ends of children as well.
  bool RunUntil(const std::function<bool()>& condition) {
    const auto deadline = EventLoop::Clock::now() + std::chrono::seconds(60);
    while (!condition() && EventLoop::Clock::now() < deadline) {
      loop_.After(std::chrono::milliseconds(1), [this] { loop_.Quit(); });
      loop_.Run();
      int status = 0;
      for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) worlds_->OnChildEnded(pid, status);
    }
    return condition();
  }
  // Returns what is answered: the name of the world that runs, or why it does not.
  absl::StatusOr<std::string> Spawn(std::vector<std::string> argv, int count = 1) {
    SpawnRequest request;
    request.programs.push_back(
        {.argv = std::move(argv), .directory = {}, .path = {}, .environment = {}, .count = count});
    std::optional<absl::StatusOr<std::string>> answer;
    worlds_->Spawn({0, "job-1", 3}, MpiWay::kPmi1, request, &store_,
                   [&answer](const absl::StatusOr<std::string>& world) { answer = world; });
    EXPECT_TRUE(RunUntil([&answer] { return answer.has_value(); }));
    return answer.value_or(absl::InternalError("no answer"));
  }

  EventLoop loop_;
  Cgroup cgroup_{""};
  Sentinel sentinel_{"COHORT_AGENT=none", &cgroup_};  // not started
  v1::Assignment assignment_;
  StoredValues store_{
      &loop_, ".mpi/1/", {.ask = [](const v1::VariableRequest&) {}, .on_refused = [](const std::string&) {}}};
  MpiUse use_ = MpiUse::kInside;  // of the rank
  std::vector<std::string> notices_;
  std::vector<std::string> failures_;
  std::optional<int> exit_code_;
  int signal_ = 0;
  std::optional<SpawnedWorlds> worlds_;
};

TEST_F(SpawnedWorldsTest, TellsHowAProcessFailed) {
  ASSERT_TRUE(Spawn({"sh", "-c", "exit 7"}).ok());
  EXPECT_TRUE(RunUntil([this] { return failures_.size() == 1; }));
  EXPECT_THAT(failures_[0], StartsWith("process 0 of 1 that rank 3 has spawned (sh, pid "));
  EXPECT_THAT(failures_[0], HasSubstr(") exited with code 7"));
  EXPECT_EQ(exit_code_, 7);
  ASSERT_TRUE(Spawn({"sh", "-c", "kill -SEGV $$"}, 3).ok());
  EXPECT_TRUE(RunUntil([this] { return !worlds_->any_lives(); }));
  ASSERT_EQ(failures_.size(), 2u) << "once a world";
  EXPECT_THAT(failures_[1], HasSubstr(") was killed by SIGSEGV"));
  EXPECT_EQ(exit_code_, std::nullopt);
  EXPECT_EQ(signal_, SIGSEGV);
  EXPECT_THAT(notices_, IsSupersetOf(failures_));  // a process may take so long that its wait for MPI_Init is told too
}

TEST_F(SpawnedWorldsTest, AProcessThatEndsWithoutMpiFailsWhereTheRankWaitsForIt) {
  ASSERT_TRUE(Spawn({"true"}).ok());
  EXPECT_TRUE(RunUntil([this] { return failures_.size() == 1; }));
  EXPECT_THAT(failures_[0], HasSubstr("has ended without MPI_Init, for which MPI_Comm_spawn waits"));
  use_ = MpiUse::kFinalized;
  ASSERT_TRUE(Spawn({"true"}).ok());
  ASSERT_TRUE(Spawn({"sh", "-c", "exit 7"}).ok());
  EXPECT_TRUE(RunUntil([this] { return failures_.size() == 2; }));
  EXPECT_THAT(failures_[1], HasSubstr("exited with code 7"));
}

TEST_F(SpawnedWorldsTest, TellsAnMpiInitThatDoesNotCome) {
  ASSERT_TRUE(Spawn({"sleep", "1000"}).ok());
  EXPECT_TRUE(RunUntil([this] { return !notices_.empty(); }));
  EXPECT_THAT(notices_,
              ElementsAre(HasSubstr("MPI_Comm_spawn has waited 0 s for MPI_Init of process 0 of 1 that rank 3 "
                                    "has spawned (sleep, pid ")));
}

TEST_F(SpawnedWorldsTest, TellsWhichProcessOutlivesTheRanks) {
  use_ = MpiUse::kFinalized;
  ASSERT_TRUE(Spawn({"sleep", "1000"}, 2).ok());
  worlds_->OnRanksGone();
  EXPECT_TRUE(RunUntil([this] { return !notices_.empty(); }));
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("all ranks of host have ended, and the job waits for process 0 of 2")));
}

TEST_F(SpawnedWorldsTest, CountsAllThatLive) {
  ASSERT_TRUE(Spawn({"sleep", "1000"}, 3).ok());
  use_ = MpiUse::kFinalized;
  EXPECT_THAT(std::string(Spawn({"sleep", "1000"}, SpawnedWorlds::kMostProcesses - 2).status().message()),
              HasSubstr("1025 spawned processes are more than the 1024"));
  EXPECT_TRUE(Spawn({"sleep", "1000"}).ok());
}

TEST_F(SpawnedWorldsTest, StartsNothingOnceTheJobIsEnding) {
  worlds_->Stop(std::chrono::seconds(60));
  EXPECT_EQ(Spawn({"sleep", "1000"}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(worlds_->any_lives());
  EXPECT_THAT(notices_, ElementsAre("MPI_Comm_spawn of rank 3 starts nothing: the job is ending"));
}

TEST_F(SpawnedWorldsTest, TellsABoundedNumberOfRefusals) {
  for (int i = 0; i < 3 * SpawnedWorlds::kMostNotices; ++i) {
    EXPECT_FALSE(Spawn({"/nowhere/" + std::string(100'000, 'x')}).ok());
  }
  ASSERT_EQ(notices_.size(), static_cast<size_t>(SpawnedWorlds::kMostNotices) + 1);
  EXPECT_EQ(notices_.back(), "more lines on processes that rank 3 has spawned are left out");
  for (const std::string& notice : notices_) EXPECT_LT(notice.size(), 2000u);
  EXPECT_THAT(failures_, IsEmpty());
}

}  // namespace
}  // namespace cohort::launcher
