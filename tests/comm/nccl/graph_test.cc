// Calls of two groups captured into graphs, on one device.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/comm/nccl/nccl_world.h"

namespace cohort::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class NcclGraphTest : public ::testing::Test {
 protected:
  void SetUp() override { TheFake().configure(kFakeWorks, 0, -1, false); }
};

CollectiveRequest AllReduce(const std::vector<int32_t>& in, std::vector<int32_t>& out) {
  CollectiveRequest request;
  request.kind = CollectiveKind::kAllReduce;
  request.in = in.data();
  request.out = out.data();
  request.count = static_cast<int64_t>(in.size());
  request.dtype = DataType::kInt32;
  return request;
}

runtime::Deadline Soon() { return runtime::Deadline::After(seconds(30)); }

// Two groups of the same ranks, past their first calls, and streams.
struct Groups {
  explicit Groups(NcclRank* self)
      : first(*self),
        made(std::make_unique<NcclRank>(&self->runtime(), std::vector<int>{0, 1}, FakeOptions(), 300)),
        second(*made) {
    std::vector<int32_t> in(1), out(1);
    ok = first.Run(AllReduce(in, out)).ok() && second.Run(AllReduce(in, out)).ok();
  }

  FakeStream streams[3];
  NcclRank& first;
  const std::unique_ptr<NcclRank> made;
  NcclRank& second;
  bool ok = false;
};

// The second group sums up what the first one has summed: on one stream, or on another that is joined. In between the
// groups' other calls go on.
std::string ChainInOneGraph(NcclRank& self, bool fork) {
  Groups groups(&self);
  if (!groups.ok) return "first calls";
  std::vector<int32_t> in(5), middle(5), out(5), other(5), others(5);
  cudaStream_t const stream = groups.streams[0].get(), side = fork ? groups.streams[1].get() : stream;
  groups.streams[0].BeginCapture();
  runtime::Work one = groups.first.Launch(AllReduce(in, middle), stream);
  if (!one.Done() || !one.status().ok()) return "the first capture: " + one.status().ToString();
  if (fork && !one.WaitOnStream(side).ok()) return "the fork";
  runtime::Work two = groups.second.Launch(AllReduce(middle, out), side);
  if (!two.Done() || !two.status().ok()) return "the second capture: " + two.status().ToString();
  if (fork && !two.WaitOnStream(stream).ok()) return "the join";
  cudaGraphExec_t const graph = groups.streams[0].EndCapture();
  if (out != std::vector<int32_t>(5)) return "captured calls ran";
  for (int round = 1; round <= 3; ++round) {
    in.assign(5, round * (self.rank() + 1));
    groups.streams[0].Replay(graph);
    if (middle[4] != 3 * round || out[4] != 6 * round) return "replay " + std::to_string(round) + " gave wrong values";
    NcclRank& next = round % 2 == 0 ? groups.first : groups.second;
    other.assign(5, round);
    if (!next.Run(AllReduce(other, others)).ok() || others[4] != 2 * round) return "a call between the replays";
  }
  return "";
}

TEST_F(NcclGraphTest, TwoGroupsReplayInOneGraphOnOneStream) {
  for (const std::string& problem : RunNcclRanks(2, [](NcclRank& self) { return ChainInOneGraph(self, false); })) {
    EXPECT_EQ(problem, "");
  }
}

TEST_F(NcclGraphTest, TwoGroupsReplayInOneGraphOnTwoStreams) {
  for (const std::string& problem : RunNcclRanks(2, [](NcclRank& self) { return ChainInOneGraph(self, true); })) {
    EXPECT_EQ(problem, "");
  }
}

TEST_F(NcclGraphTest, TwoGroupsReplayInAGraphEach) {
  const auto problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    Groups groups(&self);
    if (!groups.ok) return "first calls";
    std::vector<int32_t> in(3, self.rank() + 1), outs[2] = {std::vector<int32_t>(3), std::vector<int32_t>(3)};
    cudaGraphExec_t graphs[2] = {};
    NcclRank* const each[] = {&groups.first, &groups.second};
    for (int i = 0; i < 2; ++i) groups.streams[i].BeginCapture();  // both captures at a time
    for (int i = 0; i < 2; ++i) {
      const runtime::Work work = each[i]->Launch(AllReduce(in, outs[i]), groups.streams[i].get());
      if (!work.Done() || !work.status().ok()) return "capture: " + work.status().ToString();
    }
    for (int i = 0; i < 2; ++i) graphs[i] = groups.streams[i].EndCapture();
    for (const int i : {0, 1, 1, 0}) {
      outs[i].assign(3, 0);
      groups.streams[i].Replay(graphs[i]);
      if (outs[i] != std::vector<int32_t>(3, 3)) return "replay of group " + std::to_string(i);
    }
    return "";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

// A call of one group is under way while a call of the other is captured: a captured stream may not wait for it, and
// the guard must still know it afterwards.
TEST_F(NcclGraphTest, ACaptureLeavesTheOrderOfOtherCallsAlone) {
  const auto problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    Groups groups(&self);
    if (!groups.ok) return "first calls";
    std::vector<int32_t> in(3, 1), first_sum(3), second_sum(3), captured(3);
    if (self.rank() == 1) {
      // Only the second group's call: the other rank's one is behind its first group's.
      runtime::Work second = groups.second.Launch(AllReduce(in, second_sum), groups.streams[1].get(), seconds(2));
      if (!self.runtime().Get("looked", Soon()).ok()) return "no look";
      runtime::Work first = groups.first.Launch(AllReduce(in, first_sum), groups.streams[0].get(), seconds(2));
      (void)first.Wait(seconds(20));  // behind the second one here: told as a different order
      (void)second.Wait(seconds(20));
      return "";
    }
    runtime::Work first = groups.first.Launch(AllReduce(in, first_sum), groups.streams[0].get(), seconds(2));
    groups.streams[2].BeginCapture();
    const runtime::Work inside = groups.second.Launch(AllReduce(in, captured), groups.streams[2].get(), seconds(2));
    (void)groups.streams[2].EndCapture();
    runtime::Work second = groups.second.Launch(AllReduce(in, second_sum), groups.streams[1].get(), seconds(2));
    const bool early = second.Wait(milliseconds(20)).ok();
    if (!self.runtime().Put("looked", "1", Soon()).ok()) return "Put";
    (void)first.Wait(seconds(20));
    (void)second.Wait(seconds(20));
    if (!inside.Done() || !inside.status().ok()) return "capture: " + inside.status().ToString();
    return early ? "the second group's call did not wait for the first one's" : "";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

}  // namespace
}  // namespace cohort::comm
