// Ranks whose tapes are written, and each of them replayed alone: every result is compared with the reference again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/comm/window.h"
#include "tests/comm/conformance/random_walk.h"
#include "tests/support/nightly.h"
#include "tests/support/process_cluster.h"
#include "tests/support/temporary_folder.h"

namespace cohort::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Program = std::function<std::string(ProcessRank&)>;

class ReplayTest : public ::testing::Test {
 protected:
  ~ReplayTest() override {
    unsetenv("COHORT_TAPE");
    unsetenv("COHORT_REPLAY");
  }
  std::string PathOf(int rank) const { return folder_ + "/rank-" + std::to_string(rank) + ".epoch-1.tape"; }

  // Each rank's text.
  std::vector<std::string> Record(ProcessClusterOptions options, const Program& program) const {
    setenv("COHORT_TAPE", folder_.c_str(), 1);
    std::vector<std::string> texts;
    for (const RankResult& result : RunProcesses(options, program)) texts.push_back(result.text);
    unsetenv("COHORT_TAPE");
    return texts;
  }
  // The rank alone.
  std::string Replay(int rank, const Program& program) const {
    setenv("COHORT_REPLAY", PathOf(rank).c_str(), 1);
    ProcessClusterOptions options;
    options.ranks = 1;
    options.deadline = std::chrono::seconds(60);
    const RankResult result = RunProcesses(options, program)[0];
    unsetenv("COHORT_REPLAY");
    return result.text;
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

constexpr const char* kOtherInput = "is not what it was in the recorded run";

TEST_F(ReplayTest, RandomProgramsGetTheSameResultsAlone) {
  const auto programs = static_cast<uint64_t>(Trials(6, 200));
  for (uint64_t seed = 1; seed <= programs; ++seed) {
    ProcessClusterOptions options;
    options.ranks = 2 + static_cast<int>(seed % 4);
    options.progress_thread = seed % 2 == 0;
    const Program program = [seed](ProcessRank& rank) {
      std::string wrong = Walk(rank.world, rank.runtime->rank(), seed).Run(150);
      if (!wrong.empty()) rank.world->Abort(wrong);
      return wrong;
    };
    for (const std::string& text : Record(options, program)) ASSERT_EQ(text, "") << "seed " << seed;
    for (int rank = 0; rank < options.ranks; ++rank) {
      EXPECT_EQ(Replay(rank, program), "") << "seed " << seed << ", rank " << rank;
    }
  }
}

TEST_F(ReplayTest, WindowsStoreAndPlaceAreThoseOfTheRecordedRank) {
  const Program program = [](ProcessRank& rank) -> std::string {
    runtime::Runtime& runtime = *rank.runtime;
    const auto deadline = runtime::Deadline::After(std::chrono::seconds(30));
    const std::string mine = "value of " + std::to_string(runtime.rank());
    if (const absl::Status put = runtime.Put("key" + std::to_string(runtime.rank()), mine, deadline); !put.ok()) {
      return put.ToString();
    }
    const auto next = runtime.Get("key" + std::to_string((runtime.rank() + 1) % 3), deadline);
    if (!next.ok() || runtime.world_size() != 3) return "get: " + next.status().ToString();
    auto window = rank.world->AllocateWindow(4096);
    if (!window.ok()) return window.status().ToString();
    auto* const values = static_cast<float*>(window->data());
    for (int i = 0; i < 1024; ++i) values[i] = static_cast<float>(i + runtime.rank());
    const absl::Status reduced =
        rank.world->AllReduce(comm::ConstBuffer(values, 1024), comm::Buffer(values, 1024), comm::ReduceOp::kSum).Wait();
    if (!reduced.ok()) return reduced.ToString();
    return "ok " + *next + " " + std::to_string(values[1023]);
  };
  ProcessClusterOptions options;
  options.ranks = 3;
  const std::vector<std::string> recorded = Record(options, program);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(recorded[static_cast<size_t>(rank)], HasSubstr("ok value of"));
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Replay(rank, program), recorded[static_cast<size_t>(rank)]);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr(kOtherInput))) << "where its window lies";
  }
}

TEST_F(ReplayTest, AnInputThatDiffersIsNamedOnceAndTheReplayGoesOn) {
  const Program program = [](ProcessRank& rank) -> std::string {
    float value = getenv("COHORT_REPLAY") == nullptr ? 1 : 2, sum = 0;
    for (int i = 0; i < 3; ++i) {
      const absl::Status status =
          rank.world->AllReduce(comm::ConstBuffer(&value, 1), comm::Buffer(&sum, 1), comm::ReduceOp::kSum).Wait();
      if (!status.ok()) return std::string(status.message());
    }
    return "sum " + std::to_string(sum);
  };
  const std::vector<std::string> recorded = Record(ProcessClusterOptions(), program);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Replay(1, program), recorded[1]);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("replay of rank 1: the input of all_reduce(sum, float32, 1) at replay_test.cc:"));
  EXPECT_EQ(said.find(kOtherInput), said.rfind(kOtherInput)) << said;
}

TEST_F(ReplayTest, TheFirstDifferenceIsNamedWithBothCalls) {
  const auto program = [](int64_t second) {
    return [second](ProcessRank& rank) -> std::string {
      std::vector<float> data(64, 1);
      absl::Status status =
          rank.world->AllReduce(comm::ConstBuffer(data.data(), 16), comm::Buffer(data.data(), 16), comm::ReduceOp::kSum)
              .Wait();
      if (!status.ok()) return std::string(status.message());
      status = rank.world->Broadcast(comm::Buffer(data.data(), second), 0).Wait();
      return std::string(status.message());
    };
  };
  ProcessClusterOptions options;
  for (const std::string& text : Record(options, program(32))) ASSERT_EQ(text, "");
  EXPECT_EQ(Replay(1, program(32)), "");
  EXPECT_THAT(Replay(1, program(33)),
              AllOf(HasSubstr("rank 1 calls broadcast(float32, 33, root 0) at replay_test.cc:"),
                    HasSubstr("its tape has as call 2 broadcast(float32, 32, root 0) at replay_test.cc:")));
}

TEST_F(ReplayTest, ACallMoreThanTheTapeHasIsNamed) {
  const auto program = [](int calls) {
    return [calls](ProcessRank& rank) -> std::string {
      for (int i = 0; i < calls; ++i) {
        if (const absl::Status status = rank.world->Barrier().Wait(); !status.ok())
          return std::string(status.message());
      }
      return std::string(rank.runtime->Finalize().message());
    };
  };
  ProcessClusterOptions options;
  for (const std::string& text : Record(options, program(2))) ASSERT_EQ(text, "");
  EXPECT_EQ(Replay(0, program(2)), "");
  EXPECT_THAT(Replay(0, program(3)), AllOf(HasSubstr("its tape has no further call"), HasSubstr("the last is call 2")));
}

// As by a debugger: a call of this thread waits for one of another thread, which is stopped for longer than the call's
// timeout.
TEST_F(ReplayTest, AReplayThatIsStoppedDoesNotRunOutOfTime) {
  const Program program = [](ProcessRank& rank) -> std::string {
    const bool alone = getenv("COHORT_REPLAY") != nullptr;
    auto second = rank.world->Duplicate();
    if (!second.ok()) return second.status().ToString();
    std::atomic<bool> pending{false};
    absl::Status other;
    const auto call_second = [&] {
      if (alone) {
        while (!pending.load()) std::this_thread::yield();
        const std::string go_on = "(sleep 3; kill -CONT " + std::to_string(::getpid()) + ") &";
        if (std::system(go_on.c_str()) == 0) ::kill(::getpid(), SIGSTOP);
      }
      other = (*second)->Barrier().Wait();
    };
    std::thread thread(call_second);
    if (!alone) thread.join();  // its call is the first on the tape
    // Recorded, both ranks are in it, and may be late on a busy machine.
    runtime::Work work = rank.world->Barrier({.timeout = std::chrono::seconds(alone ? 2 : 60)});
    pending = true;
    const absl::Status status = work.Wait();
    if (alone) thread.join();
    return std::string(status.message()) + std::string(other.message());
  };
  for (const std::string& text : Record(ProcessClusterOptions(), program)) ASSERT_EQ(text, "");
  EXPECT_EQ(Replay(0, program), "");
}

TEST_F(ReplayTest, AKilledRankIsReplayedUpToItsEnd) {
  const Program program = [](ProcessRank& rank) -> std::string {
    std::vector<float> data(16, 1);
    for (int i = 0; i < 3; ++i) {
      const absl::Status status =
          rank.world->AllReduce(comm::ConstBuffer(data.data(), 16), comm::Buffer(data.data(), 16), comm::ReduceOp::kSum)
              .Wait();
      if (!status.ok()) return std::string(status.message());
    }
    if (rank.runtime->world_size() > 1 && !rank.meet("all", 2)) return "the other rank does not come";
    if (getenv("COHORT_REPLAY") == nullptr && rank.runtime->rank() == 1) ::raise(SIGKILL);
    return std::string(rank.world->Barrier().Wait().message());
  };
  const Program alone = [&program](ProcessRank& rank) {
    rank.meet = [](const std::string&, int) { return true; };  // nobody else is there
    return program(rank);
  };
  ProcessClusterOptions options;
  Record(options, program);
  EXPECT_THAT(Replay(1, alone), AllOf(HasSubstr("ends here"), HasSubstr("its tape has no further call")));
  EXPECT_THAT(Replay(0, alone), HasSubstr("rank 1"));  // the failure that rank 0 was told
}

}  // namespace
}  // namespace cohort::testing
