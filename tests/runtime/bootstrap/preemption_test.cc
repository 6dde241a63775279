// Runtime::OnPreemption: what a rank does when its agent tells it of a preemption.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "cohort/runtime/runtime.h"
#include "tests/runtime/bootstrap/storing_agent.h"
#include "tests/runtime/child.h"

namespace cohort::runtime {
namespace {

using std::chrono::milliseconds;
using testing::Agent;
using testing::Join;
using testing::Soon;

v1::AgentMessage StopStep(uint64_t step, bool none = false) {
  v1::AgentMessage message;
  message.mutable_stop_step()->set_step(step);
  message.mutable_stop_step()->set_none(none);
  return message;
}

v1::AgentMessage Notice() {
  v1::AgentMessage message;
  message.mutable_preemption()->set_signal(10);
  return message;
}

TEST(Preemption, WaitsForTheAgreedStepAndStopsThere) {
  Agent agent(1);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  for (uint64_t step = 0; step < 3; ++step) EXPECT_FALSE((*runtime)->OnPreemption(step).value());
  EXPECT_TRUE(agent.Next().has_preemption());  // asked once
  agent.fake.Tell(Notice(), 0);
  std::thread others([&] {
    EXPECT_EQ(agent.Next().preemption_step(), 3u);
    agent.fake.Tell(StopStep(5), 0);
  });
  EXPECT_FALSE((*runtime)->OnPreemption(3).value());
  others.join();
  EXPECT_FALSE((*runtime)->OnPreemption(4).value());
  EXPECT_TRUE((*runtime)->OnPreemption(5).value());
  EXPECT_EQ(agent.Next().preempted(), 5u);
}

// It may wait in a call for a rank that has got the notice and does not begin the step.
TEST(Preemption, AWaitingCallReportsTheStepUnderWay) {
  Agent agent(1);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_FALSE((*runtime)->OnPreemption(40).value());
  EXPECT_TRUE(agent.Next().has_preemption());
  agent.fake.Tell(Notice(), 0);
  std::atomic<uint64_t> told{0};
  std::thread others([&] { told = agent.Next().preemption_step(); });
  EXPECT_TRUE((*runtime)->engine().DriveUntil([&told] { return told > 0; }, Soon()));  // as a call does that waits
  others.join();
  EXPECT_EQ(told, 41u);
  agent.fake.Tell(StopStep(41), 0);
  EXPECT_TRUE((*runtime)->OnPreemption(50).value());  // numbers need not be consecutive
  EXPECT_EQ(agent.Next().preempted(), 50u);
}

TEST(Preemption, TrainingGoesOnWhereNoStepIsLeft) {
  Agent agent(1);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  agent.fake.Tell(Notice(), 0);
  agent.fake.Tell(StopStep(0, /*none=*/true), 0);
  for (uint64_t step = 0; step < 3; ++step) EXPECT_FALSE((*runtime)->OnPreemption(step).value());
}

TEST(Preemption, ErrorsSayWhatIsAmiss) {
  Agent agent(2);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_FALSE((*runtime)->OnPreemption(7).value());
  EXPECT_EQ((*runtime)->OnPreemption(6).status().code(), absl::StatusCode::kInvalidArgument);
  agent.fake.Tell(Notice(), 0);
  EXPECT_EQ((*runtime)->OnPreemption(7, milliseconds(20)).status().code(), absl::StatusCode::kDeadlineExceeded);
  std::thread others([&] {
    while (agent.Next().preemption_step() != 8) {
    }
    v1::AgentMessage lost;
    lost.mutable_ranks_lost()->add_ranks(1);
    lost.mutable_ranks_lost()->set_text("rank 1 is gone");
    agent.fake.Tell(lost, 0);
  });
  const absl::Status status = (*runtime)->OnPreemption(7).status();
  others.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("rank 1 is gone"), std::string::npos) << status;
  EXPECT_TRUE((*runtime)->Finalize().ok());
  EXPECT_EQ((*runtime)->OnPreemption(8).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Preemption, StepsMayFallAfterALoss) {
  Agent agent(2);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_FALSE((*runtime)->OnPreemption(7).value());
  v1::AgentMessage lost;
  lost.mutable_ranks_lost()->add_ranks(1);
  lost.mutable_ranks_lost()->set_text("rank 1 is gone");
  agent.fake.Tell(lost, 0);
  EXPECT_FALSE((*runtime)->OnPreemption(8).value());  // its calls do not know yet
  EXPECT_FALSE((*runtime)->OnPreemption(7).value());
  EXPECT_FALSE((*runtime)->OnPreemption(8).value());
}

TEST(Preemption, AStepBeyondTheAgreedOneIsRefused) {
  Agent agent(1);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  agent.fake.Tell(Notice(), 0);
  EXPECT_EQ((*runtime)->OnPreemption(7, milliseconds(1)).status().code(), absl::StatusCode::kDeadlineExceeded);
  agent.fake.Tell(StopStep(7), 0);
  const absl::Status status = (*runtime)->OnPreemption(8).status();  // it has begun step 7 all the same
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("stop before step 7, which this one has passed"), std::string::npos) << status;
}

// The news of a failure do not come back to the rank that brings them.
TEST(Preemption, ARankThatReportsAFailureMayGoBackAStep) {
  Agent agent(2);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_FALSE((*runtime)->OnPreemption(7).value());
  EXPECT_EQ((*runtime)->OnPreemption(5).status().code(), absl::StatusCode::kInvalidArgument);
  (*runtime)->ReportGroupFailure({.group = 1, .status = absl::AbortedError("a member has aborted"), .from_rank = 0});
  EXPECT_TRUE((*runtime)->OnPreemption(5).ok());
}

// Its connection is the parent's, even where no other rank could be disturbed.
TEST(Preemption, OnPreemptionIsRefusedToAForkedChild) {
  Agent agent(1);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  testing::Child child([&runtime] {
    alarm(20);
    return (*runtime)->OnPreemption(1).status().code() == absl::StatusCode::kFailedPrecondition ? 0 : 1;
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST(Preemption, TheSameStepMayBeAskedForAgainAfterADeadline) {
  Agent agent(1);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  agent.fake.Tell(Notice(), 0);
  EXPECT_EQ((*runtime)->OnPreemption(7, milliseconds(1)).status().code(), absl::StatusCode::kDeadlineExceeded);
  agent.fake.Tell(StopStep(7), 0);
  EXPECT_TRUE((*runtime)->OnPreemption(7).value());
}

TEST(Preemption, AWorldOfOneIsNeverPreempted) {
  auto runtime = Runtime::Init({.bootstrap = BootstrapWorldOfOne()});
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  for (uint64_t step = 0; step < 3; ++step) EXPECT_FALSE((*runtime)->OnPreemption(step).value());
}

}  // namespace
}  // namespace cohort::runtime
