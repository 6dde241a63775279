// A call that waits leaves time to others: the rest of the process goes on, in this thread and in others.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "tests/comm/nccl/nccl_world.h"

namespace cohort::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Another group's operation, which is done when the engine has been driven for so long in all.
class Operation : public runtime::ProgressSource {
 public:
  Operation(milliseconds needs, std::function<void()> done) : needs_(needs), done_(std::move(done)) {}
  bool Poll() override {
    const Clock::time_point now = Clock::now();
    if (now - last_ < milliseconds(1)) had_ += now - last_;
    last_ = now;
    if (had_ >= needs_ && !ended_.exchange(true)) done_();
    return !ended_;
  }
  bool Active() const override { return !ended_; }

 private:
  const milliseconds needs_;
  const std::function<void()> done_;
  Clock::time_point last_{};
  Clock::duration had_{};
  std::atomic<bool> ended_{false};
};

// Rank 1 comes when rank 0 has done something else: with a group that both belong to, for instance.
TEST(NcclWaitingTest, OtherOperationsMoveWhileAMemberIsAwaited) {
  TheFake().configure(kFakeWorks, 0, -1, false);
  const auto problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    CollectiveRequest barrier;
    barrier.kind = CollectiveKind::kBarrier;
    const auto soon = [] { return runtime::Deadline::After(seconds(30)); };
    if (self.rank() == 1) {
      if (!self.runtime().Get("done", soon()).ok()) return "the other operation of rank 0 was not done";
      return self.Run(barrier).ToString();
    }
    absl::Status told;
    Operation operation(milliseconds(200), [&] { told = self.runtime().Put("done", "", soon()); });
    runtime::Work work;
    {
      const runtime::EngineLock lock(self.runtime().engine());
      self.runtime().engine().Add(&operation);
      work = self.Launch(barrier, nullptr, seconds(8));
      self.runtime().engine().Remove(&operation);
    }
    const absl::Status status = work.Wait(seconds(20));
    return told.ok() ? status.ToString() : told.ToString();
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "OK");
}

}  // namespace
}  // namespace cohort::comm
