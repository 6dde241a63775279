// NCCL's errors, hangs and absence reach the caller as statuses, in bounded time.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/comm/nccl/nccl_world.h"

namespace cohort::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class NcclFault : public ::testing::Test {
 protected:
  void TearDown() override { TheFake().configure(kFakeWorks, 0, -1, false); }
};

// A barrier and an all-reduce whose input is searched for NaN, which on rank 0 goes wrong in `mode`. Returns rank 0's
// status and how long it took.
struct Outcome {
  absl::Status status;
  absl::Status later;
  double seconds = 0;
};
Outcome SecondCall(FakeNcclMode mode, std::chrono::nanoseconds timeout, bool abort_hangs = false) {
  TheFake().configure(mode, 2, 0, abort_hangs);
  Outcome outcome;
  const std::vector<std::string> problems = RunNcclRanks(2, [&](NcclRank& self) -> std::string {
    self.SetChecks({.nan = true});
    if (const absl::Status status = self.Run(Barrier()); !status.ok()) return status.ToString();
    std::vector<float> data(4);
    CollectiveRequest second;
    second.kind = CollectiveKind::kAllReduce;
    second.dtype = DataType::kFloat32;
    second.in = second.out = data.data();
    second.count = 4;
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = self.Launch(second, nullptr, timeout).Wait(seconds(60));
    if (self.rank() == 0) {
      outcome.status = status;
      outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      outcome.later = self.Run(Barrier());
    }
    return "";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  return outcome;
}

TEST_F(NcclFault, CallErrorFailsTheGroupWithNcclsText) {
  const Outcome outcome = SecondCall(kFakeCallError, milliseconds(500));
  EXPECT_TRUE(absl::IsInvalidArgument(outcome.status)) << outcome.status;
  EXPECT_NE(std::string(outcome.status.message()).find("said by the fake"), std::string::npos) << outcome.status;
  EXPECT_EQ(outcome.later, outcome.status);
}

TEST_F(NcclFault, AsynchronousErrorFailsTheGroup) {
  const Outcome outcome = SecondCall(kFakeAsyncError, seconds(2));
  EXPECT_TRUE(absl::IsUnavailable(outcome.status)) << outcome.status;
  EXPECT_EQ(outcome.later, outcome.status);
}

TEST_F(NcclFault, HangEndsAtTheCallsTimeout) {
  for (const FakeNcclMode mode : {kFakeHang, kFakeSetupHang}) {
    const Outcome outcome = SecondCall(mode, milliseconds(300));
    EXPECT_TRUE(absl::IsDeadlineExceeded(outcome.status)) << outcome.status;
    EXPECT_LT(outcome.seconds, 8) << "promised: the timeout, half a second for a verdict, and the abort";
  }
}

TEST_F(NcclFault, AShortTimeoutBehindALongOneIsKept) {
  TheFake().configure(kFakeWorks, 0, -1, false);
  const std::vector<std::string> problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    if (!self.Run(Barrier()).ok()) return "the first barrier failed";
    if (self.rank() == 1) return "";  // calls no more
    runtime::Work patient = self.Launch(Barrier(), nullptr, std::chrono::minutes(10));
    runtime::Work hasty = self.Launch(Barrier(), nullptr, milliseconds(300));
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = hasty.Wait(seconds(20));
    const auto took = std::chrono::steady_clock::now() - start;
    if (!absl::IsDeadlineExceeded(self.failure())) return "not failed: " + status.ToString();
    if (std::string(status.message()).find("behind barrier") == std::string::npos) return status.ToString();
    if (patient.status() != status) return "the call before it: " + patient.status().ToString();
    return took < seconds(8) ? "" : "too late: promised are the timeout, half a second for a verdict, and the abort";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

// CUDA takes no call at all any more, on any thread, once 1,024 launches wait for a peer that does not come.
TEST_F(NcclFault, MoreCallsThanADeviceTakesEndAtTheirDeadline) {
  TheFake().configure(kFakeWorks, 0, -1, false);
  const std::vector<std::string> problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    if (!self.Run(Barrier()).ok()) return "the first barrier failed";
    const auto soon = [] { return runtime::Deadline::After(seconds(30)); };
    if (self.rank() == 1) return self.runtime().Get("over", soon()).ok() ? "" : "rank 0 did not end";
    std::vector<runtime::Work> works;
    for (int i = 0; i < 1200; ++i) works.push_back(self.Launch(Barrier(), nullptr, milliseconds(500)));
    for (runtime::Work& work : works) {
      if (const absl::Status status = work.Wait(seconds(20)); !absl::IsDeadlineExceeded(status)) {
        return status.ToString();
      }
    }
    if (!self.runtime().Put("over", "", soon()).ok()) return "Put";
    return TheFake().Find<int (*)()>("FakeNcclMostPending")() <= 192 + 1 ? "" : "more than a device has room for";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(NcclFault, HangingAbortIsLeftBehindWithItsMemory) {
  const int before = TheFake().live_allocations();
  const Outcome outcome = SecondCall(kFakeHang, milliseconds(100), /*abort_hangs=*/true);
  EXPECT_TRUE(absl::IsDeadlineExceeded(outcome.status)) << outcome.status;
  // A library that revokes does not need the abort here.
  const bool revokes = TheFake().Find<void*>("ncclCommRevoke") != nullptr;
  // On each rank those of barriers and, two, of the check: CUDA would free them behind the kernel that hangs.
  EXPECT_EQ(TheFake().live_allocations() - before, revokes ? 0 : 2 * (1 + 2));
  if (!revokes) {
    EXPECT_NE(std::string(outcome.status.message()).find("abort did not end within 5 s"), std::string::npos);
  }
  EXPECT_LT(outcome.seconds, 25) << "the fake's abort takes 30 s, the limit is 5 s";
}

TEST_F(NcclFault, CreationThatHangsOrFailsEnds) {
  TheFake().configure(kFakeInitHang, 0, 0, false);
  (void)RunNcclRanks(2, [](NcclRank& self) -> std::string {
    const absl::Status status = self.Run(Barrier(), milliseconds(300));
    if (self.rank() == 0) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    }
    return "";
  });
  TheFake().configure(kFakeInitError, 0, 0, false);
  (void)RunNcclRanks(2, [](NcclRank& self) -> std::string {
    // Rank 0 needs the time until rank 1 comes.
    const absl::Status status = self.Run(Barrier(), self.rank() == 0 ? seconds(20) : milliseconds(300));
    EXPECT_TRUE(self.rank() == 0 ? absl::IsUnavailable(status) : absl::IsDeadlineExceeded(status)) << status;
    return "";
  });
}

TEST_F(NcclFault, SurvivorsOfAFailedGroupShrinkItsCommunicator) {
  TheFake().configure(kFakeWorks, 0, -1, false);
  const std::vector<std::string> problems = RunNcclRanks(3, [](NcclRank& self) -> std::string {
    if (const absl::Status status = self.Run(Barrier()); !status.ok()) return status.ToString();
    if (self.rank() == 1) return "";  // is gone
    const absl::Status failed = self.Run(Barrier(), milliseconds(200));
    if (!absl::IsDeadlineExceeded(failed)) return "the barrier without rank 1: " + failed.ToString();
    NcclRank rest(&self.runtime(), {0, 2}, FakeOptions(), 300);
    rest.SetShrunkFrom(77, {1});
    return rest.Run(Barrier()).ok() ? "" : "the barrier of those left failed: " + rest.failure().ToString();
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  // NCCL before 2.28.7 can't stop a communicator without ending it: a new one is made then.
  const bool revokes = TheFake().Find<void*>("ncclCommRevoke") != nullptr;
  EXPECT_EQ(TheFake().made(2), revokes ? 2 : 0) << "shrunk communicators";
}

TEST_F(NcclFault, AbsentMemberEndsCreationAtTheCallsTimeout) {
  TheFake().configure(kFakeWorks, 0, -1, false);
  (void)RunNcclRanks(2, [](NcclRank& self) -> std::string {
    if (self.rank() == 0) return "";
    const absl::Status status = self.Run(Barrier(), milliseconds(200));
    EXPECT_FALSE(status.ok());
    return "";
  });
}

}  // namespace
}  // namespace cohort::comm
