// Communicators that a group has from another one, by a split or by shrinking: which device they are on, and whether
// all members have theirs.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/runtime/engine/engine.h"
#include "tests/comm/nccl/nccl_world.h"

namespace cohort::comm {
namespace {

using std::chrono::milliseconds;

class NcclSplitTest : public ::testing::Test {
 protected:
  void SetUp() override { TheFake().configure(kFakeWorks, 0, -1, false); }
  void TearDown() override {
    EXPECT_EQ(TheFake().live_communicators(), 0);
    EXPECT_EQ(TheFake().live_allocations(), 0);
  }
};

// "" or what was wrong: every member's rank in the world, gathered on `device`.
std::string Gather(NcclRank& group, const std::vector<int32_t>& members, int device) {
  const int32_t mine = members[static_cast<size_t>(group.rank())];
  std::vector<int32_t> all(members.size());
  CollectiveRequest request;
  request.kind = CollectiveKind::kAllGather;
  request.in = &mine;
  request.out = all.data();
  request.count = 1;
  request.dtype = DataType::kInt32;
  request.device = device;
  if (const absl::Status status = group.Run(request); !status.ok()) return status.ToString();
  return all == members ? "" : "all_gather gave wrong values";
}

void Split(NcclRank& parent, int color, int key, uint64_t child) {
  const runtime::EngineLock lock(parent.runtime().engine());
  parent.provider().OnSplit(color, key, child);
}

// NCCL still works on the first split when the second one comes; a call has told two of the ranks that it has done with
// it, and the others don't know.
TEST_F(NcclSplitTest, ASecondSplitIsMadeByAllMembersOrNone) {
  const auto problems = RunNcclRanks(4, [](NcclRank& self) -> std::string {
    if (!self.Run(Barrier()).ok()) return "the first barrier failed";
    const int rank = self.rank(), parity = rank % 2, half = rank / 2;
    const uint64_t first_id = 200 + static_cast<uint64_t>(parity), second_id = 300 + static_cast<uint64_t>(half);
    Split(self, parity, rank, first_id);
    if (rank < 2) {
      int32_t value = rank;
      CollectiveRequest message;
      message.kind = rank == 0 ? CollectiveKind::kSend : CollectiveKind::kRecv;
      message.in = message.out = &value;
      message.count = 1;
      message.dtype = DataType::kInt32;
      message.peer = 1 - rank;
      if (const absl::Status status = self.Run(message); !status.ok()) return "message: " + status.ToString();
    }
    Split(self, half, rank, second_id);
    NcclRank second(&self.runtime(), {2 * half, 2 * half + 1}, FakeOptions(), second_id);
    if (std::string problem = Gather(second, {2 * half, 2 * half + 1}, 0); !problem.empty()) return "2: " + problem;
    NcclRank first(&self.runtime(), {parity, parity + 2}, FakeOptions(), first_id);
    if (std::string problem = Gather(first, {parity, parity + 2}, 0); !problem.empty()) return "1: " + problem;
    if (!self.Run(Barrier()).ok()) return "the parent does not work any more";
    return TheFake().made(1) == 8 && TheFake().made(0) == 4 ? "" : "not all splits were made";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(NcclSplitTest, AChildMayUseItsParentsDevicesInAnotherOrder) {
  const auto problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    if (!self.Run(Barrier(0)).ok() || !self.Run(Barrier(1)).ok()) return "the first barriers failed";
    Split(self, 0, self.rank(), 200);
    NcclRank child(&self.runtime(), {0, 1}, FakeOptions(), 200);
    for (const int device : {1, 0}) {
      if (std::string problem = Gather(child, {0, 1}, device); !problem.empty()) return problem;
    }
    return TheFake().made(0) == 4 && TheFake().made(1) == 4 ? "" : "the split's communicators were not used";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

// Device group 0 of the child is then made of devices that were of different device groups before.
TEST_F(NcclSplitTest, MembersWhoseOrdersDifferMakeNewCommunicators) {
  const auto problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    if (!self.Run(Barrier(0)).ok() || !self.Run(Barrier(1)).ok()) return "the first barriers failed";
    Split(self, 0, self.rank(), 200);
    NcclRank child(&self.runtime(), {0, 1}, FakeOptions(), 200);
    for (const int device : {self.rank(), 1 - self.rank()}) {
      if (std::string problem = Gather(child, {0, 1}, device); !problem.empty()) return problem;
    }
    return TheFake().made(0) == 8 ? "" : std::to_string(TheFake().made(0)) + " communicators were made";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(NcclSplitTest, ASurvivingGroupMayUseItsDevicesInAnotherOrder) {
  const auto problems = RunNcclRanks(3, [](NcclRank& self) -> std::string {
    if (!self.Run(Barrier(0)).ok() || !self.Run(Barrier(1)).ok()) return "the first barriers failed";
    if (self.rank() == 1) return "";  // is gone
    const absl::Status failed = self.Run(Barrier(0), milliseconds(200));
    if (!absl::IsDeadlineExceeded(failed)) return "the barrier without rank 1: " + failed.ToString();
    NcclRank rest(&self.runtime(), {0, 2}, FakeOptions(), 300);
    rest.SetShrunkFrom(77, {1});
    for (const int device : {1, 0}) {
      if (std::string problem = Gather(rest, {0, 2}, device); !problem.empty()) return problem;
    }
    return "";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  EXPECT_EQ(TheFake().made(2), 4) << "shrunk communicators";
}

// Live communicators of a group on each rank: the control's and its launcher's. A child that nobody has used has no
// launcher.
constexpr int kOfGroup = 2;

// Waits until no more than `most` communicators are alive: those that are dropped end in threads of their own.
bool SoonAlive(NcclRank& self, int most) {
  const auto few = [most] { return TheFake().live_communicators() <= most; };
  const runtime::EngineLock lock(self.runtime().engine());
  return self.runtime().engine().DriveUntil(few, runtime::Deadline::After(std::chrono::seconds(20)));
}

TEST_F(NcclSplitTest, ChildrenThatNobodyUsesDoNotPileUp) {
  constexpr int kChildren = 50, kKept = 16;
  const auto problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    if (!self.Run(Barrier()).ok()) return "the first barrier failed";
    for (uint64_t child = 200; child < 200 + kChildren; ++child) Split(self, 0, self.rank(), child);
    if (!SoonAlive(self, 2 * (kOfGroup + kKept))) return std::to_string(TheFake().live_communicators()) + " are alive";
    if (!self.Run(Barrier()).ok()) return "the parent does not work any more";
    NcclRank newest(&self.runtime(), {0, 1}, FakeOptions(), 200 + kChildren - 1);
    if (std::string problem = Gather(newest, {0, 1}, 0); !problem.empty()) return "the newest: " + problem;
    if (!self.Run(Barrier()).ok()) return "the parent does not work any more";
    if (TheFake().made(0) != 2) return "the newest one's communicator was not used";
    NcclRank oldest(&self.runtime(), {0, 1}, FakeOptions(), 200);
    if (std::string problem = Gather(oldest, {0, 1}, 0); !problem.empty()) return "the oldest: " + problem;
    return TheFake().made(0) == 4 ? "" : "the oldest one's communicator was kept";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

// Rank 2 takes no part in the later splits, so that it still has its communicator of the first one.
TEST_F(NcclSplitTest, AGroupMakesANewCommunicatorWhereOneMemberHasDroppedItsOwn) {
  const auto problems = RunNcclRanks(3, [](NcclRank& self) -> std::string {
    if (!self.Run(Barrier()).ok()) return "the first barrier failed";
    Split(self, 0, self.rank(), 200);
    for (uint64_t child = 300; child < 320; ++child) Split(self, self.rank() == 2 ? -1 : 0, self.rank(), child);
    NcclRank group(&self.runtime(), {0, 1, 2}, FakeOptions(), 200);
    if (std::string problem = Gather(group, {0, 1, 2}, 0); !problem.empty()) return problem;
    return TheFake().made(0) == 6 ? "" : std::to_string(TheFake().made(0)) + " communicators were made";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

TEST_F(NcclSplitTest, CommunicatorsOfFailedGroupsDoNotPileUp) {
  constexpr int kKept = 4;
  const auto problems = RunNcclRanks(2, [](NcclRank& self) -> std::string {
    if (!self.Run(Barrier()).ok()) return "the first barrier failed";
    for (uint64_t id = 300; id < 320; ++id) {
      NcclRank group(&self.runtime(), {0, 1}, FakeOptions(), id);
      if (const absl::Status status = group.Run(Barrier()); !status.ok()) return status.ToString();
      if (!self.Run(Barrier()).ok()) return "barrier";  // nobody is in the group's call any more
      const runtime::EngineLock lock(self.runtime().engine());
      group.provider().Fail(absl::AbortedError("a test"));
    }
    if (!SoonAlive(self, 2 * kOfGroup * (1 + kKept)))
      return std::to_string(TheFake().live_communicators()) + " are alive";
    return self.Run(Barrier()).ok() ? "" : "the last barrier failed";
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  EXPECT_EQ(TheFake().made(0), 2 * 21);
}

}  // namespace
}  // namespace cohort::comm
