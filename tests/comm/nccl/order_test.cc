// Calls of two communicators on one device and streams of their own: kept in the order of issue, and told when two
// ranks issue them in different orders.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/nccl/launch_order.h"
#include "tests/comm/nccl/nccl_world.h"

namespace cohort::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class NcclOrderTest : public ::testing::Test {
 protected:
  void SetUp() override { TheFake().configure(kFakeWorks, 0, -1, false); }
};

// Two groups of the same ranks on one device, each with a stream, past their first calls.
struct Pair {
  Pair(NcclRank* first, const NcclOptions& options, std::optional<int> used_before = std::nullopt) : groups{first} {
    second = std::make_unique<NcclRank>(&first->runtime(), std::vector<int>{0, 1}, options, 300);
    groups[1] = second.get();
    if (used_before.has_value()) ok = second->Run(Barrier(*used_before)).ok();
    for (NcclRank* group : groups) ok = group->Run(Barrier()).ok() && ok;
  }
  runtime::Work Launch(int i, milliseconds timeout) { return groups[i]->Launch(Barrier(), streams[i].get(), timeout); }

  FakeStream streams[2];
  std::unique_ptr<NcclRank> second;
  NcclRank* groups[2];
  bool ok = true;
};

TEST_F(NcclOrderTest, CallsInEqualOrdersEnd) {
  const auto problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    Pair pair(&self, FakeOptions());
    if (!pair.ok) return "first calls";
    for (int round = 0; round < 50; ++round) {
      runtime::Work works[] = {pair.Launch(round % 2, seconds(8)), pair.Launch(1 - round % 2, seconds(8)),
                               pair.Launch(round % 2, seconds(8))};
      for (runtime::Work& work : works) {
        if (const absl::Status status = work.Wait(seconds(20)); !status.ok()) return status.ToString();
      }
    }
    return "";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(NcclOrderTest, ALaterCallOfAnotherCommunicatorWaits) {
  const auto problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    Pair pair(&self, FakeOptions());
    if (!pair.ok) return "first calls";
    if (self.rank() == 1) {
      // Only the second call: the other rank's one is behind its first.
      runtime::Work second = pair.Launch(1, seconds(4));
      if (!self.runtime().Get("looked", runtime::Deadline::After(seconds(30))).ok()) return "no look";
      if (second.Done()) return "the second call was done before the first";
      runtime::Work first = pair.Launch(0, seconds(4));
      // Behind the second one here, too: both stand still until one rank is told so and stops its calls.
      (void)first.Wait(seconds(20));
      (void)second.Wait(seconds(20));
      return "";
    }
    runtime::Work first = pair.Launch(0, seconds(4)), second = pair.Launch(1, seconds(4));
    const bool early = second.Wait(milliseconds(20)).ok();
    if (!self.runtime().Put("looked", "1", runtime::Deadline::After(seconds(30))).ok()) return "Put";
    if (early) return "the second call did not wait for the first";
    (void)first.Wait(seconds(20));
    return "";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

// Launches a call from inside the engine, once.
class FromInside : public runtime::ProgressSource {
 public:
  explicit FromInside(std::function<runtime::Work()> launch) : launch_(std::move(launch)) {}
  bool Poll() override {
    if (std::exchange(launched_, true)) return false;
    work = launch_();
    return true;
  }
  bool Active() const override { return !launched_; }
  runtime::Work work;

 private:
  const std::function<runtime::Work()> launch_;
  bool launched_ = false;
};

// NCCL is still busy putting a call on its stream when a call of another communicator is made by what the engine calls:
// that one comes after it, on the device, too.
TEST_F(NcclOrderTest, ACallFromInsideAnotherCallsLaunchComesAfterIt) {
  for (const DataType dtype : {DataType::kInt32, DataType::kInt16}) {  // one launch; an exchange of two
    TheFake().configure(kFakeWorks, 0, -1, false);
    const auto problems = RunNcclRanks(2, [&](NcclRank& self) -> std::string {
      Pair pair(&self, FakeOptions());
      std::vector<int32_t> in(8, 1), out(8);
      CollectiveRequest reduce;
      reduce.kind = CollectiveKind::kAllReduce;
      reduce.dtype = dtype;
      reduce.in = in.data();
      reduce.out = out.data();
      reduce.count = 8;
      if (!pair.ok || !self.Run(reduce).ok()) return "first calls";
      reduce.count = 4;  // for which NCCL may choose an algorithm without connections yet
      const auto soon = [] { return runtime::Deadline::After(seconds(30)); };
      if (self.rank() == 1) {
        // Only the second call: the other rank's one is behind its first. It is launched before NCCL is held, or the
        // fake would hold it, too, with the device's lock, which rank 0 has to take.
        runtime::Work second = pair.Launch(1, seconds(2));
        if (!self.runtime().Put("ready", "", soon()).ok()) return "Put";
        if (!self.runtime().Get("looked", soon()).ok()) return "no look";
        runtime::Work first = self.Launch(reduce, pair.streams[0].get(), seconds(2));
        (void)first.Wait(seconds(20));
        (void)second.Wait(seconds(20));
        return "";
      }
      if (!self.runtime().Get("ready", soon()).ok()) return "rank 1 is not ready";
      TheFake().configure(kFakeHeld, 0, -1, false);
      FromInside inside([&] {
        TheFake().configure(kFakeWorks, 0, -1, false);
        return pair.Launch(1, seconds(2));
      });
      runtime::Work first;
      {
        const runtime::EngineLock lock(self.runtime().engine());
        self.runtime().engine().Add(&inside);
        first = self.Launch(reduce, pair.streams[0].get(), seconds(2));
        self.runtime().engine().Remove(&inside);
      }
      const bool launched = !inside.Active();
      const bool early = launched && inside.work.Wait(milliseconds(20)).ok();
      if (!self.runtime().Put("looked", "1", soon()).ok()) return "Put";
      (void)first.Wait(seconds(20));
      if (!launched) return "the engine was not driven";
      return early ? "the call from inside did not wait for the one before it" : "";
    });
    for (const std::string& problem : problems) EXPECT_EQ(problem, "") << Name(dtype);
  }
}

TEST_F(NcclOrderTest, ACallFromInsideTheFirstCallIsRefused) {
  std::atomic<int> refused{0};
  const auto first_call = [&](NcclRank& self) -> std::string {
    FromInside inside([&] { return self.Launch(Barrier(), nullptr, seconds(2)); });
    runtime::Work first;
    {
      const runtime::EngineLock lock(self.runtime().engine());
      self.runtime().engine().Add(&inside);
      first = self.Launch(Barrier(), nullptr, seconds(2));
      self.runtime().engine().Remove(&inside);
    }
    (void)first.Wait(seconds(20));
    if (inside.Active()) return "";  // the rank that came last had nothing to wait for
    const absl::Status status = inside.work.Wait(seconds(20));
    refused += static_cast<int>(absl::IsFailedPrecondition(status));
    return absl::IsFailedPrecondition(status) ? "" : status.ToString();
  };
  // Seldom both come at once, and neither waits.
  for (int attempt = 0; attempt < 20 && refused == 0; ++attempt) {
    for (const std::string& problem : RunNcclRanks(2, first_call)) EXPECT_EQ(problem, "");
  }
  EXPECT_GE(refused, 1);
}

// Device groups of their own, each used by a thread of its own: nobody promises an order between them.
TEST_F(NcclOrderTest, DifferentOrdersOnDifferentDevicesAreNoConflict) {
  const auto problems = RunNcclRanks(3, [](NcclRank& self) -> std::string {
    NcclRank second(&self.runtime(), {0, 1, 2}, FakeOptions(), 300);
    if (!self.Run(Barrier(0)).ok() || !second.Run(Barrier(1)).ok()) return "first calls";
    FakeStream streams[2];
    const auto launch = [&](int i) {
      return i == 0 ? self.Launch(Barrier(0), streams[0].get()) : second.Launch(Barrier(1), streams[1].get());
    };
    const auto soon = [] { return runtime::Deadline::After(seconds(30)); };
    // The calls of the first two stand still until the third has come.
    for (const char* key : {"looked0", "looked1"}) {
      if (self.rank() == 2 && !self.runtime().Get(key, soon()).ok()) return "no look";
    }
    const int first = self.rank() % 2;
    runtime::Work works[] = {launch(first), launch(1 - first)};
    if (self.rank() < 2) {
      const absl::Status status = works[0].Wait(milliseconds(300));
      if (!absl::IsDeadlineExceeded(status)) return "while the third was away: " + status.ToString();
      if (!self.runtime().Put("looked" + std::to_string(self.rank()), "1", soon()).ok()) return "Put";
    }
    for (runtime::Work& work : works) {
      if (const absl::Status status = work.Wait(seconds(20)); !status.ok()) return status.ToString();
    }
    return "";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

// `used_before`: a device that the second group has used before the one that both share.
void ExpectDifferentOrdersAreTold(std::optional<int> used_before) {
  std::atomic<int> told{0};
  const auto problems = RunNcclRanks(2, [&](NcclRank& self) -> std::string {
    Pair pair(&self, FakeOptions(), used_before);
    if (!pair.ok) return "first calls";
    const int first = self.rank();
    const auto start = std::chrono::steady_clock::now();
    runtime::Work works[] = {pair.Launch(first, seconds(2)), pair.Launch(1 - first, seconds(2))};
    const absl::Status status = works[0].Wait(seconds(20));
    const auto took = std::chrono::steady_clock::now() - start;
    (void)works[1].Wait(seconds(20));
    // The rank that is told first stops its calls. The other's may end then or stand still: there is no group here to
    // tell it.
    if (status.ok() || absl::IsDeadlineExceeded(status)) return "";
    if (!absl::IsFailedPrecondition(status)) return status.ToString();
    if (std::string(status.message()).find("in different orders") == std::string::npos) return status.ToString();
    ++told;
    return took < seconds(2) ? "" : "told too late";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  EXPECT_GE(told, 1);
}

TEST_F(NcclOrderTest, DifferentOrdersAreReportedSoon) { ExpectDifferentOrdersAreTold(std::nullopt); }
TEST_F(NcclOrderTest, DifferentOrdersAreReportedWhereTheDeviceIsTheSecondOfAGroup) { ExpectDifferentOrdersAreTold(1); }

TEST_F(NcclOrderTest, TheOrderIsLeftToNcclOnRequest) {
  EXPECT_TRUE(nccl::GuardsOrder("", 22809));
  EXPECT_TRUE(nccl::GuardsOrder("NCCL_ALGO=Ring", 22809));
  EXPECT_FALSE(nccl::GuardsOrder("NCCL_ALGO=Ring NCCL_LAUNCH_ORDER_IMPLICIT=1", 22809));
  EXPECT_TRUE(nccl::GuardsOrder("NCCL_LAUNCH_ORDER_IMPLICIT=1", 22500));
  EXPECT_FALSE(nccl::GuardsOrder("NCCL_LAUNCH_ORDER_IMPLICIT=0", 22500));
}

}  // namespace
}  // namespace cohort::comm
