#include "cohort/comm/nccl/profiler/communicator_members.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/comm/nccl/profiler/recorded_job.h"

namespace cohort::comm::nccl_profiler {
namespace {

class CommunicatorMembersTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 4;

  CommunicatorMembersTest() : agent_(*runtime::Segment::Create({.local_ranks = kRanks})) {
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.push_back(std::make_unique<RecordedRank>(agent_.get(), &store_, rank, kRanks));
      RecordedRank& own = *ranks_.back();
      members_.push_back(std::make_unique<CommunicatorMembers>(&own.bootstrap, &own.identity, &own.recorder));
    }
  }

  static runtime::Deadline Soon() { return runtime::Deadline::After(std::chrono::milliseconds(50)); }
  // Lets these ranks go on until all know the members of their communicators.
  bool Resolve(const std::vector<int>& ranks) {
    const auto until = CommunicatorMembers::Clock::now() + std::chrono::seconds(30);
    bool known = false;
    while (!known && CommunicatorMembers::Clock::now() < until) {
      known = true;
      for (const int rank : ranks) {
        members_[static_cast<size_t>(rank)]->Continue(Soon());
        known = known && recorder(rank).UnresolvedCommunicators().empty();
      }
    }
    return known;
  }
  NcclRecorder& recorder(int rank) { return ranks_[static_cast<size_t>(rank)]->recorder; }
  // The members by which a running call of the rank is reported.
  std::vector<int> MembersOf(int rank, uint64_t communicator) {
    void* const call = recorder(rank).Announce(communicator, *ReadCall("AllReduce", "ncclFloat32", 1, 0));
    recorder(rank).BeginKernel(call, 0);
    const std::vector<NcclRecorder::Running> running = recorder(rank).OldestRunning();
    return running.empty() ? std::vector<int>() : running.back().members;
  }

  Store store_;
  std::unique_ptr<runtime::Segment> agent_;
  std::vector<std::unique_ptr<RecordedRank>> ranks_;
  std::vector<std::unique_ptr<CommunicatorMembers>> members_;
};

TEST_F(CommunicatorMembersTest, AllLearnTheWorldRanksInTheOrderOfTheCommunicator) {
  const std::vector<int> order = {2, 0, 3};  // of the communicator's ranks
  std::vector<uint64_t> own;
  for (int rank = 0; rank < 3; ++rank) own.push_back(recorder(order[rank]).Add({.hash = 8, .rank = rank, .size = 3}));
  ASSERT_TRUE(Resolve(order));
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(MembersOf(order[rank], own[rank]), order);
  EXPECT_TRUE(store_.variables.empty());  // only the list stays
  EXPECT_EQ(store_.values.size(), 1u);
}

TEST_F(CommunicatorMembersTest, OneRankAsksNobody) {
  const uint64_t own = recorder(1).Add({.hash = 8, .rank = 0, .size = 1});
  ASSERT_TRUE(Resolve({1}));
  EXPECT_EQ(MembersOf(1, own), std::vector<int>{1});
  EXPECT_TRUE(store_.values.empty());
}

TEST_F(CommunicatorMembersTest, ARankThatComesLateIsWaitedFor) {
  recorder(0).Add({.hash = 8, .rank = 0, .size = 2});
  for (int i = 0; i < 20; ++i) members_[0]->Continue(Soon());
  EXPECT_FALSE(recorder(0).UnresolvedCommunicators().empty());
  recorder(1).Add({.hash = 8, .rank = 1, .size = 2});
  EXPECT_TRUE(Resolve({0, 1}));
}

TEST_F(CommunicatorMembersTest, AWrongListIsNoList) {
  const uint64_t own = recorder(1).Add({.hash = 8, .rank = 1, .size = 2});
  store_.values["nccl-plugin/0000000000000008/members"] = std::string("\x63\0\0\0\1\0\0\0xy", 10);
  ASSERT_TRUE(Resolve({1}));
  EXPECT_EQ(MembersOf(1, own), (std::vector<int>{-1, 1}));
}

TEST_F(CommunicatorMembersTest, AStoreThatTakesNothingIsGivenUp) {
  store_.full = true;
  const uint64_t own = recorder(0).Add({.hash = 8, .rank = 0, .size = 2});
  for (int i = 0; i < 5; ++i) members_[0]->Continue(Soon());
  EXPECT_TRUE(MembersOf(0, own).empty());
}

TEST_F(CommunicatorMembersTest, AnAgentThatAnswersLateIsAskedAgain) {
  store_.late_answers = 5;
  recorder(0).Add({.hash = 8, .rank = 0, .size = 2});
  recorder(1).Add({.hash = 8, .rank = 1, .size = 2});
  EXPECT_TRUE(Resolve({0, 1}));
  EXPECT_EQ(store_.late_answers, 0);
}

TEST_F(CommunicatorMembersTest, ListsInTheStoreAreBounded) {
  for (uint64_t i = 1; i <= 100; ++i) {
    recorder(0).Add({.hash = i, .rank = 0, .size = 2});
    recorder(1).Add({.hash = i, .rank = 1, .size = 2});
  }
  const auto until = CommunicatorMembers::Clock::now() + std::chrono::seconds(30);
  while (store_.values.size() < CommunicatorMembers::kMostLists && CommunicatorMembers::Clock::now() < until) {
    for (const int rank : {0, 1}) members_[static_cast<size_t>(rank)]->Continue(Soon());
  }
  for (int i = 0; i < 50; ++i) members_[0]->Continue(Soon());
  EXPECT_EQ(store_.values.size(), static_cast<size_t>(CommunicatorMembers::kMostLists));
}

}  // namespace
}  // namespace cohort::comm::nccl_profiler
