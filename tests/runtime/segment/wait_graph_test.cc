#include "cohort/runtime/segment/wait_graph.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/types.h"

namespace cohort::runtime {
namespace {

using comm::CollectiveKind;

constexpr uint64_t kGroup = 7;
constexpr uint64_t kOther = 8;

AwaitedCall Call(CollectiveKind kind, uint64_t group, uint64_t sequence, int peer = -1, uint64_t bytes = 16) {
  AwaitedCall call;
  call.group = group;
  call.epoch = 1;
  call.sequence = sequence;
  call.kind = static_cast<uint16_t>(kind);
  call.peer = peer;
  call.bytes = bytes;
  call.call = "call " + std::to_string(sequence);
  call.site = "a.cc:" + std::to_string(group);
  return call;
}

LatestCall Made(const AwaitedCall& call, bool done = false) {
  LatestCall latest;
  latest.group = call.group;
  latest.sequence = call.sequence;
  latest.done = done;
  if (call.kind == static_cast<uint16_t>(CollectiveKind::kSend) ||
      call.kind == static_cast<uint16_t>(CollectiveKind::kRecv)) {
    latest.kind = call.kind;
    latest.peer = call.peer;
  }
  return latest;
}

RankWait Waiting(int rank, const AwaitedCall& call, int node = 0) {
  RankWait wait;
  wait.rank = rank;
  wait.node = node;
  wait.waits = wait.bound = true;
  wait.calls = {call};
  wait.progress.latest = {Made(call)};
  return wait;
}

RankWait Computing(int rank) {
  RankWait wait;
  wait.rank = rank;
  return wait;
}

const GroupMembers kMembers = {{kGroup, {0, 1, 2}}, {kOther, {0, 1}}};

AwaitedCall Recv(int from, uint64_t sequence = 1) { return Call(CollectiveKind::kRecv, kGroup, sequence, from); }
AwaitedCall Send(int to, uint64_t bytes) { return Call(CollectiveKind::kSend, kGroup, 1, to, bytes); }
AwaitedCall Sum(uint64_t group, uint64_t sequence = 1) { return Call(CollectiveKind::kAllReduce, group, sequence); }

std::vector<std::vector<int>> Ranks(const std::vector<RankWait>& waits) {
  std::vector<std::vector<int>> ranks;
  for (const Deadlock& deadlock : FindDeadlocks(waits, kMembers)) ranks.push_back(deadlock.ranks);
  return ranks;
}
using Sets = std::vector<std::vector<int>>;

TEST(WaitGraph, RanksThatBothReceiveFirstAreADeadlock) {
  const std::vector<Deadlock> found =
      FindDeadlocks(std::vector<RankWait>{Waiting(0, Recv(1)), Waiting(1, Recv(0))}, kMembers);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].ranks, (std::vector<int>{0, 1}));
  ASSERT_EQ(found[0].groups.size(), 1u);
  EXPECT_EQ(found[0].groups[0].group, kGroup);
  EXPECT_NE(found[0].text.find("rank 0 is in call 1 at a.cc:7 and waits for rank 1"), std::string::npos)
      << found[0].text;
  EXPECT_NE(found[0].text.find("rank 1 is in call 1 at a.cc:7 and waits for rank 0"), std::string::npos);
}

TEST(WaitGraph, AMessageOnItsWayIsNoDeadlock) {
  RankWait sent = Waiting(1, Recv(0));
  sent.progress.latest.push_back(Made(Call(CollectiveKind::kSend, kGroup, 1, 0), /*done=*/true));
  EXPECT_EQ(Ranks({Waiting(0, Recv(1)), sent}), Sets());
  // Its second message is none.
  RankWait wants_more = Waiting(0, Recv(1, 2));
  EXPECT_EQ(Ranks({wants_more, sent}), (Sets{{0, 1}}));
}

TEST(WaitGraph, ARankThatMayHaveForgottenIsNotBlamed) {
  RankWait forgetful = Waiting(1, Recv(0));
  forgetful.progress.forgets = true;
  EXPECT_EQ(Ranks({Waiting(0, Recv(1)), forgetful}), Sets());
}

TEST(WaitGraph, ARankThatMayGoOnIsInNoDeadlock) {
  RankWait free = Waiting(1, Recv(0));
  free.bound = false;
  EXPECT_EQ(Ranks({Waiting(0, Recv(1)), free}), Sets());
  EXPECT_EQ(Ranks({Waiting(0, Recv(1)), Computing(1)}), Sets());
}

TEST(WaitGraph, SendsWaitWhereNothingBuffersThem) {
  // On one node the receiver has nothing left to receive.
  EXPECT_EQ(Ranks({Waiting(0, Send(1, 64)), Waiting(1, Send(0, 64))}), (Sets{{0, 1}}));
  // It may still take an earlier message, which makes room.
  RankWait busy = Waiting(1, Send(0, 64));
  RankWait second = Waiting(0, Send(1, 64));
  second.calls[0].sequence = 2;
  busy.progress.latest.push_back(Made(Recv(0)));
  EXPECT_EQ(Ranks({second, busy}), Sets());
  busy.progress.latest.back().done = true;
  EXPECT_EQ(Ranks({second, busy}), (Sets{{0, 1}}));
  // Between nodes short ones may still be taken off their hands.
  EXPECT_EQ(Ranks({Waiting(0, Send(1, 1 << 20), 0), Waiting(1, Send(0, 1 << 20), 1)}), Sets());
  const uint64_t large = kMostBufferedBytes + 1;
  EXPECT_EQ(Ranks({Waiting(0, Send(1, large), 0), Waiting(1, Send(0, large), 1)}), (Sets{{0, 1}}));
}

TEST(WaitGraph, CallsOfTwoGroupsInOppositeOrderAreADeadlock) {
  const std::vector<Deadlock> found =
      FindDeadlocks(std::vector<RankWait>{Waiting(0, Sum(kGroup)), Waiting(1, Sum(kOther))}, kMembers);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(found[0].groups.size(), 2u);
}

TEST(WaitGraph, ARankThatOnlyWaitsForACycleIsNotInIt) {
  // Rank 2 has called what ranks 0 and 1 wait for, and waits for rank 0.
  EXPECT_EQ(Ranks({Waiting(0, Recv(1)), Waiting(1, Recv(0)), Waiting(2, Recv(0))}), (Sets{{0, 1}}));
}

TEST(WaitGraph, ASlowMemberIsNoCycle) {
  EXPECT_EQ(Ranks({Waiting(0, Sum(kGroup)), Waiting(1, Sum(kGroup)), Computing(2)}), Sets());
  // Nor are calls that all have made: the data is on its way.
  EXPECT_EQ(Ranks({Waiting(0, Sum(kGroup)), Waiting(1, Sum(kGroup)), Waiting(2, Sum(kGroup))}), Sets());
}

TEST(WaitGraph, RootsDecideWhoIsNeeded) {
  const auto broadcast = [](int root) { return Call(CollectiveKind::kBroadcast, kGroup, 1, root); };
  const auto gather = [](int root) { return Call(CollectiveKind::kGather, kGroup, 1, root); };
  EXPECT_EQ(Ranks({Waiting(0, broadcast(1)), Waiting(1, Recv(0))}), (Sets{{0, 1}}));
  EXPECT_EQ(Ranks({Waiting(0, broadcast(0)), Waiting(1, Recv(0))}), Sets());  // the root may be done without rank 1
  EXPECT_EQ(Ranks({Waiting(0, gather(0)), Waiting(1, Recv(0))}), (Sets{{0, 1}}));
  EXPECT_EQ(Ranks({Waiting(0, gather(1)), Waiting(1, Recv(0))}), Sets());
  AwaitedCall empty = Sum(kGroup);
  empty.bytes = 0;
  EXPECT_EQ(Ranks({Waiting(0, empty), Waiting(1, Recv(0))}), Sets());
  AwaitedCall barrier = Call(CollectiveKind::kBarrier, kGroup, 1, -1, 0);
  EXPECT_EQ(Ranks({Waiting(0, barrier), Waiting(1, Recv(0))}), (Sets{{0, 1}}));
  AwaitedCall unequal = Call(CollectiveKind::kAllGatherV, kGroup, 1);
  EXPECT_EQ(Ranks({Waiting(0, unequal), Waiting(1, Recv(0))}), Sets());  // it may need nothing of rank 1
}

TEST(WaitGraph, ARankMayWaitForItself) {
  const std::vector<Deadlock> found = FindDeadlocks(std::vector<RankWait>{Waiting(1, Recv(1))}, kMembers);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].text.find("rank 1 waits for itself"), std::string::npos) << found[0].text;
}

TEST(WaitGraph, DeadlocksApartAreTwo) {
  RankWait two = Waiting(2, Recv(3));
  EXPECT_EQ(Ranks({Waiting(0, Recv(1)), Waiting(1, Recv(0)), two, Waiting(3, Recv(2))}), (Sets{{0, 1}, {2, 3}}));
}

TEST(WaitGraph, ABatchWaitsForAllOfItsCalls) {
  RankWait batch = Waiting(0, Send(2, 16));
  batch.calls.push_back(Recv(1));
  batch.progress.latest.push_back(Made(Recv(1)));
  EXPECT_EQ(Ranks({batch, Waiting(1, Recv(0))}), (Sets{{0, 1}}));
}

std::vector<std::pair<int, size_t>> Late(const std::vector<RankWait>& waits) {
  std::vector<std::pair<int, size_t>> late;
  for (const Straggler& straggler : FindStragglers(waits, kMembers)) {
    late.emplace_back(straggler.rank, straggler.waiting);
  }
  return late;
}

TEST(WaitGraph, StragglersAreFoundThroughRanksThatWaitForOthers) {
  EXPECT_EQ(Late({Waiting(0, Sum(kGroup)), Waiting(1, Recv(0)), Computing(2)}),
            (std::vector<std::pair<int, size_t>>{{2, 2}}));
  EXPECT_EQ(
      FindWaitersOf(2, std::vector<RankWait>{Waiting(0, Sum(kGroup)), Waiting(1, Recv(0)), Computing(2)}, kMembers),
      (std::vector<int>{0, 1}));
  RankWait unbound = Waiting(0, Sum(kGroup));
  unbound.bound = false;
  EXPECT_EQ(Late({unbound, Computing(1), Computing(2)}), (std::vector<std::pair<int, size_t>>{{1, 1}, {2, 1}}));
  EXPECT_TRUE(Late({Waiting(0, Recv(1)), Waiting(1, Recv(0))}).empty());
  EXPECT_TRUE(Late({Computing(0), Computing(1)}).empty());
}

}  // namespace
}  // namespace cohort::runtime
