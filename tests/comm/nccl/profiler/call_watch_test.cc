#include "cohort/comm/nccl/profiler/call_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/segment/wait_state.h"
#include "tests/comm/nccl/profiler/recorded_job.h"

namespace cohort::comm::nccl_profiler {
namespace {

using std::chrono::milliseconds;

class CallWatchTest : public ::testing::Test {
 protected:
  CallWatchTest()
      : agent_(*runtime::Segment::Create({.local_ranks = 2})),
        rank_(agent_.get(), &store_, 0, 2),
        watch_(&rank_.bootstrap, &rank_.recorder, 1) {}

  uint64_t Add(uint64_t hash, bool with_members = true) {
    const uint64_t communicator = rank_.recorder.Add({.hash = hash, .rank = 0, .size = 2});
    if (with_members) rank_.recorder.SetMembers(communicator, {1, 0});
    return communicator;
  }
  void* Begin(uint64_t communicator, const char* function = "AllReduce") {
    void* const call = rank_.recorder.Announce(communicator, *ReadCall(function, "ncclFloat32", 1, 1));
    return rank_.recorder.BeginKernel(call, 0);
  }
  // Looks after this time.
  void LookAfter(milliseconds time) {
    watch_.Look(now_ + static_cast<uint64_t>(std::chrono::nanoseconds(time).count()));
  }
  bool Waits() const { return runtime::ReadWaitNumber(agent_->control(0)).number != 0; }
  const std::vector<StoreBootstrap::Stall>& stalls() const { return rank_.bootstrap.stalls; }

  Store store_;
  std::unique_ptr<runtime::Segment> agent_;
  RecordedRank rank_;
  CallWatch watch_;
  // Calls begin after that, by some milliseconds on a busy machine: times below lie between the limits.
  const uint64_t now_ = runtime::SteadyNow();
};

TEST_F(CallWatchTest, AShortCallIsNoWait) {
  Begin(Add(1));
  LookAfter(milliseconds(1));
  EXPECT_FALSE(Waits());
  EXPECT_TRUE(stalls().empty());
}

TEST_F(CallWatchTest, ACallThatStaysIsShownReportedAndReportedAgain) {
  void* const kernel = Begin(Add(1));
  const uint64_t begun = rank_.recorder.OldestRunning().at(0).since_ns;
  watch_.Look(begun + 200'000'000);
  EXPECT_TRUE(Waits());
  EXPECT_TRUE(stalls().empty());
  const uint64_t first = begun + 700'000'000;
  watch_.Look(first);
  ASSERT_EQ(stalls().size(), 1u);
  EXPECT_EQ(stalls()[0].group, GroupOf(1));
  EXPECT_EQ(stalls()[0].sequence, 1u);
  EXPECT_EQ(stalls()[0].members, (std::vector<int>{0, 1}));
  EXPECT_FALSE(stalls()[0].expired);
  watch_.Look(first + 500'000'000);
  EXPECT_EQ(stalls().size(), 1u);
  watch_.Look(first + 1'100'000'000);
  EXPECT_EQ(stalls().size(), 2u);
  watch_.Look(first + 6'000'000'000);
  ASSERT_EQ(stalls().size(), 3u);
  EXPECT_TRUE(stalls()[2].expired);
  rank_.recorder.Stop(kernel);
  EXPECT_FALSE(Waits());
  watch_.Look(first + 9'000'000'000);
  EXPECT_EQ(stalls().size(), 3u);
}

TEST_F(CallWatchTest, AMessageTellsWhoBelongsToItsGroup) {
  Begin(Add(1), "Recv");
  LookAfter(milliseconds(60'000));
  ASSERT_EQ(stalls().size(), 1u);
  EXPECT_EQ(stalls()[0].sequence, 0u);
}

TEST_F(CallWatchTest, EachCommunicatorIsReported) {
  Begin(Add(1));
  Begin(Add(2));
  Begin(Add(3, /*with_members=*/false));
  LookAfter(milliseconds(60'000));
  EXPECT_EQ(stalls().size(), 2u);  // whom to ask about the third is not known
  EXPECT_TRUE(Waits());
}

}  // namespace
}  // namespace cohort::comm::nccl_profiler
