// Measures the cost of a call for the host above the bare NCCL call. Both go through the fake, whose NCCL does nothing
// here and whose CUDA events take a lock.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "tests/comm/nccl/nccl_world.h"
#include "tests/support/sanitized.h"

namespace cohort::comm {
namespace {

using Clock = std::chrono::steady_clock;

// The median over rounds of the mean over calls, in nanoseconds.
template <typename Function>
double Nanoseconds(Function function) {
  constexpr int kRounds = 21, kCalls = 2000;
  std::vector<double> means;
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kCalls; ++i) function();
    means.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCalls);
  }
  std::nth_element(means.begin(), means.begin() + kRounds / 2, means.end());
  return means[kRounds / 2];
}

TEST(NcclCost, CollectivesCostLittleHostTimeAboveTheBareCall) {
  if (cohort::testing::kSanitized) GTEST_SKIP() << "measures microseconds, which a sanitizer makes longer";
  double bare = 0, whole = 0, guarded = 0;
  TheFake().configure(kFakeWorks, 0, -1, false);
  const std::vector<std::string> problems = RunNcclRanks(2, [&](NcclRank& self) -> std::string {
    CollectiveRequest request;
    request.kind = CollectiveKind::kBarrier;
    if (!self.Run(request).ok()) return "the first barrier failed";
    NcclRank other(&self.runtime(), {0, 1}, FakeOptions(), 300);
    if (!other.Run(request).ok()) return "the other communicator's first barrier failed";
    if (self.rank() == 1) {
      return self.runtime().Get("measured", runtime::Deadline::After(std::chrono::seconds(60))).ok() ? "" : "no end";
    }
    TheFake().configure(kFakeNothing, 0, -1, false);
    const auto all_reduce = TheFake().Find<decltype(&ncclAllReduce)>("ncclAllReduce");
    float in[4] = {}, out[4] = {};
    bare = Nanoseconds([&] { all_reduce(in, out, 4, ncclFloat32, ncclSum, nullptr, nullptr); });
    request.kind = CollectiveKind::kAllReduce;
    request.in = in;
    request.out = out;
    request.count = 4;
    request.dtype = DataType::kFloat32;
    bool ok = true;
    const auto call = [&](NcclRank& rank) { ok = rank.Launch(request).Wait().ok() && ok; };
    call(self);  // the device's last call is ours: the guard has nothing to do
    whole = Nanoseconds([&] { call(self); });
    int turn = 0;
    guarded = Nanoseconds([&] { call(++turn % 2 == 0 ? self : other); });
    TheFake().configure(kFakeWorks, 0, -1, false);
    if (!self.runtime().Put("measured", "1", runtime::Deadline::After(std::chrono::seconds(60))).ok()) return "Put";
    return ok ? "" : "a call failed";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  std::printf("all_reduce: bare %.0f ns, launched and waited for %.0f ns: %.0f ns added\n", bare, whole, whole - bare);
  std::printf("in turn with another communicator's: %.0f ns added\n", guarded - bare);
  EXPECT_LT(whole - bare, 10'000) << "promised: 1 us";
  EXPECT_LT(guarded - bare, 10'000) << "promised: 1 us";
}

}  // namespace
}  // namespace cohort::comm
