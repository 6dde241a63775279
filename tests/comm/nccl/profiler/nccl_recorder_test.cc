#include "cohort/comm/nccl/profiler/nccl_recorder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_names.h"
#include "cohort/runtime/segment/segment.h"
#include "cohort/runtime/segment/wait_state.h"
#include "tests/support/resident_memory.h"

namespace cohort::comm::nccl_profiler {
namespace {

using runtime::CallRecord;
using runtime::CallState;
using runtime::Segment;

class NcclRecorderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    agent_ = *Segment::Create({.local_ranks = 2, .epoch = 3});
    segment_ = *Segment::Attach(dup(agent_->fd()), 1, Segment::Role::kRecorder);
    recorder_ = std::make_unique<NcclRecorder>(segment_.get(), 3);
  }
  runtime::BlackBoxReader box() const { return agent_->black_box_of(1); }
  std::vector<CallRecord> records() const { return box().All(); }

  static AnnouncedCall Call(const char* function, size_t count = 8, int root_or_peer = 0) {
    return *ReadCall(function, "ncclFloat32", count, root_or_peer);
  }
  // A call whose kernel has begun. The kernel.
  void* Begin(uint64_t communicator, const AnnouncedCall& call) {
    void* const handle = recorder_->Announce(communicator, call);
    recorder_->Stop(handle);
    return recorder_->BeginKernel(handle, 0);
  }
  void Run(uint64_t communicator, const AnnouncedCall& call) { recorder_->Stop(Begin(communicator, call)); }

  std::unique_ptr<Segment> agent_;
  std::unique_ptr<Segment> segment_;
  std::unique_ptr<NcclRecorder> recorder_;
};

TEST_F(NcclRecorderTest, ARecordBeginsAndEndsWithTheKernel) {
  const uint64_t world = recorder_->Add({.hash = 0xfeed, .rank = 2, .size = 4});
  void* const call = recorder_->Announce(world, Call("AllReduce"));
  ASSERT_NE(call, nullptr);
  recorder_->Stop(call);
  EXPECT_TRUE(records().empty());  // it is only enqueued
  void* const kernel = recorder_->BeginKernel(call, 0);
  ASSERT_EQ(records().size(), 1u);
  const CallRecord begun = records()[0];
  EXPECT_EQ(begun.state, CallState::kStarted);
  EXPECT_EQ(runtime::DescribeCall(begun), "all_reduce(float32, 8)");
  EXPECT_EQ(begun.signature.group, GroupOf(0xfeed));
  EXPECT_EQ(begun.signature.sequence, 1u);
  EXPECT_EQ(begun.signature.epoch, 3u);
  EXPECT_EQ(begun.group_rank, 2);
  EXPECT_EQ(begun.group_size, 4);
  recorder_->Stop(kernel);
  EXPECT_EQ(records()[0].state, CallState::kDone);
  EXPECT_GE(records()[0].end_ns, records()[0].start_ns);
}

TEST_F(NcclRecorderTest, ACallEndsWithItsLastKernel) {
  const uint64_t world = recorder_->Add({.hash = 1, .rank = 0, .size = 2});
  AnnouncedCall call = Call("AllReduce");
  call.channels = 3;
  void* const handle = recorder_->Announce(world, call);
  void* const first = recorder_->BeginKernel(handle, 0);
  recorder_->Stop(first);
  EXPECT_EQ(records()[0].state, CallState::kStarted);  // two more are to come
  void* const second = recorder_->BeginKernel(handle, 1);
  void* const third = recorder_->BeginKernel(handle, 2);
  recorder_->Stop(third);
  EXPECT_EQ(records()[0].state, CallState::kStarted);
  recorder_->Stop(second);
  EXPECT_EQ(records()[0].state, CallState::kDone);
}

TEST_F(NcclRecorderTest, CollectivesCountByCommunicatorAndMessagesByPeer) {
  const uint64_t world = recorder_->Add({.hash = 1, .rank = 0, .size = 4});
  const uint64_t half = recorder_->Add({.hash = 2, .rank = 0, .size = 2});
  Run(world, Call("AllReduce"));
  Run(half, Call("AllReduce"));
  Run(world, Call("Broadcast"));
  Run(world, Call("Send", 8, 1));
  Run(world, Call("Send", 8, 2));
  Run(world, Call("Send", 8, 1));
  Run(world, Call("Recv", 8, 1));
  std::vector<uint64_t> sequences;
  for (const CallRecord& record : records()) sequences.push_back(record.signature.sequence);
  EXPECT_EQ(sequences, (std::vector<uint64_t>{1, 1, 2, 1, 1, 2, 1}));
}

TEST_F(NcclRecorderTest, OrderOfLaunchCountsAndNotOfKernels) {
  const uint64_t world = recorder_->Add({.hash = 1, .rank = 0, .size = 2});
  void* const first = recorder_->Announce(world, Call("AllReduce"));
  void* const second = recorder_->Announce(world, Call("Broadcast"));
  recorder_->BeginKernel(second, 0);
  recorder_->BeginKernel(first, 0);
  EXPECT_EQ(records()[0].signature.sequence, 2u);
  EXPECT_EQ(records()[1].signature.sequence, 1u);
}

TEST_F(NcclRecorderTest, EqualCallsOfTwoRanksHaveEqualSignatures) {
  const auto other = *Segment::Attach(dup(agent_->fd()), 0, Segment::Role::kRecorder);
  NcclRecorder neighbour(other.get(), 3);
  Run(recorder_->Add({.hash = 7, .rank = 1, .size = 2}), Call("ReduceScatter"));
  void* const call = neighbour.Announce(neighbour.Add({.hash = 7, .rank = 0, .size = 2}), Call("ReduceScatter"));
  neighbour.BeginKernel(call, 0);
  EXPECT_EQ(records()[0].signature, agent_->black_box_of(0).All()[0].signature);
}

TEST_F(NcclRecorderTest, ALaterCollectiveEndsOnesWhoseEndWasNotSeen) {
  const uint64_t world = recorder_->Add({.hash = 1, .rank = 0, .size = 2});
  Begin(world, Call("AllReduce"));
  Run(world, Call("AllReduce"));
  EXPECT_EQ(records()[0].state, CallState::kDone);
  EXPECT_TRUE(recorder_->OldestRunning().empty());
}

TEST_F(NcclRecorderTest, ACallWithoutKernelsIsRecordedWhenItIsLaunched) {
  const uint64_t world = recorder_->Add({.hash = 1, .rank = 0, .size = 2});
  AnnouncedCall call = Call("AllReduce");
  call.channels = 0;
  recorder_->Stop(recorder_->Announce(world, call));
  ASSERT_EQ(records().size(), 1u);
  EXPECT_EQ(records()[0].state, CallState::kDone);
  EXPECT_EQ(records()[0].end_ns, records()[0].start_ns);  // its end is not known
  EXPECT_TRUE(recorder_->OldestRunning().empty());
}

TEST_F(NcclRecorderTest, HandlesThatMeanNothingDoNothing) {
  const uint64_t world = recorder_->Add({.hash = 1, .rank = 0, .size = 2});
  void* const call = recorder_->Announce(world, Call("AllReduce"));
  void* const kernel = recorder_->BeginKernel(call, 0);
  recorder_->Stop(kernel);
  const CallRecord ended = records()[0];
  recorder_->Stop(kernel);
  recorder_->Stop(call);
  EXPECT_EQ(recorder_->BeginKernel(call, 0), nullptr);    // the call has ended
  EXPECT_EQ(recorder_->BeginKernel(kernel, 0), nullptr);  // a kernel is no call
  EXPECT_EQ(recorder_->BeginKernel(nullptr, 0), nullptr);
  EXPECT_EQ(recorder_->Announce(world + 1, Call("AllReduce")), nullptr);
  EXPECT_EQ(recorder_->Announce(0, Call("AllReduce")), nullptr);
  std::mt19937_64 random(42);
  for (int i = 0; i < 10'000; ++i) {
    void* const any = reinterpret_cast<void*>(static_cast<uintptr_t>(random() >> (random() % 64)));
    recorder_->Stop(any);
    recorder_->BeginKernel(any, static_cast<int>(random() % 300) - 10);
  }
  ASSERT_EQ(records().size(), 1u);
  EXPECT_EQ(records()[0].end_ns, ended.end_ns);
}

TEST_F(NcclRecorderTest, AWaitIsShownAsLongAsItsCallRuns) {
  const uint64_t world = recorder_->Add({.hash = 1, .rank = 0, .size = 2});
  void* const kernel = Begin(world, Call("AllReduce"));
  const std::vector<NcclRecorder::Running> running = recorder_->OldestRunning();
  ASSERT_EQ(running.size(), 1u);
  EXPECT_EQ(running[0].sequence, 1u);
  recorder_->ShowWait(running[0].number);
  const auto wait = runtime::ReadWait(agent_->control(1), box());
  ASSERT_TRUE(wait.has_value());
  EXPECT_FALSE(wait->bound);  // the host goes on
  ASSERT_EQ(wait->awaited.size(), 1u);
  EXPECT_EQ(runtime::DescribeCall(wait->awaited[0]), "all_reduce(float32, 8)");
  recorder_->ShowWait(running[0].number);
  EXPECT_EQ(runtime::ReadWait(agent_->control(1), box())->number, wait->number);
  recorder_->Stop(kernel);
  EXPECT_FALSE(runtime::ReadWait(agent_->control(1), box()).has_value());
  recorder_->ShowWait(running[0].number);  // it ended between the look and this
  EXPECT_FALSE(runtime::ReadWait(agent_->control(1), box()).has_value());
}

TEST_F(NcclRecorderTest, CallsOfAnAbortedCommunicatorHaveFailed) {
  const uint64_t world = recorder_->Add({.hash = 1, .rank = 0, .size = 2});
  const uint64_t other = recorder_->Add({.hash = 2, .rank = 0, .size = 2});
  Run(world, Call("AllReduce"));
  void* const aborted = Begin(world, Call("AllReduce"));
  Begin(other, Call("AllReduce"));
  recorder_->ShowWait(recorder_->OldestRunning()[0].number);
  recorder_->Remove(world);
  ASSERT_EQ(records().size(), 3u);
  EXPECT_EQ(records()[0].state, CallState::kDone);
  EXPECT_EQ(records()[1].state, CallState::kFailed);
  EXPECT_GE(records()[1].end_ns, records()[1].start_ns);
  EXPECT_EQ(records()[2].state, CallState::kStarted);
  EXPECT_FALSE(runtime::ReadWait(agent_->control(1), box()).has_value());
  ASSERT_EQ(recorder_->OldestRunning().size(), 1u);
  EXPECT_EQ(recorder_->OldestRunning()[0].communicator, other);
  recorder_->Stop(aborted);  // its kernel ends after all
  EXPECT_EQ(records()[1].state, CallState::kFailed);
}

TEST_F(NcclRecorderTest, MembersNameTheOtherSideInTheWorld) {
  const uint64_t half = recorder_->Add({.hash = 9, .rank = 0, .size = 2});
  Run(half, Call("Send", 8, 1));
  ASSERT_EQ(recorder_->UnresolvedCommunicators().size(), 1u);
  recorder_->SetMembers(half, {4, 6});
  EXPECT_TRUE(recorder_->UnresolvedCommunicators().empty());
  Run(half, Call("Send", 8, 1));
  Run(half, Call("Broadcast", 8, 1));
  Run(half, Call("Send", 8, 77));  // which the communicator does not have
  EXPECT_EQ(records()[0].peer_world_rank, -1);
  EXPECT_EQ(records()[1].peer_world_rank, 6);
  EXPECT_EQ(records()[2].peer_world_rank, 6);
  EXPECT_EQ(records()[3].peer_world_rank, -1);
}

TEST_F(NcclRecorderTest, OneRankOfACommunicatorIsRecorded) {
  const uint64_t first = recorder_->Add({.hash = 5, .rank = 0, .size = 2});
  EXPECT_NE(first, 0u);
  EXPECT_EQ(recorder_->Add({.hash = 5, .rank = 1, .size = 2}), 0u);
  const uint64_t later = recorder_->Add({});  // version 3 says with the first call who it is
  EXPECT_EQ(recorder_->Announce(later, Call("AllReduce")), nullptr);
  EXPECT_FALSE(recorder_->Describe(later, {.hash = 5, .rank = 1}));
  EXPECT_TRUE(recorder_->Describe(later, {.hash = 6, .rank = 1}));
  EXPECT_NE(recorder_->Announce(later, Call("AllReduce")), nullptr);
  recorder_->Remove(first);
  EXPECT_NE(recorder_->Add({.hash = 5, .rank = 1, .size = 2}), 0u);
}

TEST_F(NcclRecorderTest, ARuntimeThatJoinsTakesOver) {
  const uint64_t world = recorder_->Add({.hash = 1, .rank = 0, .size = 2});
  for (int i = 0; i < 700; ++i) Run(world, Call("AllReduce", static_cast<size_t>(i) + 1));
  const auto rank = Segment::Attach(dup(agent_->fd()), 1);
  ASSERT_TRUE(rank.ok()) << rank.status();
  EXPECT_FALSE(recorder_->open());
  Run(world, Call("Broadcast"));
  EXPECT_EQ(box().latest(), 700u);
  CallRecord own;
  own.signature.kind = 9;
  own.signature.group = 77;
  runtime::BlackBoxWriter& writer = (*rank)->black_box();
  for (uint64_t i = 1; i <= 100; ++i) {
    own.signature.sequence = i;
    own.bytes = i;
    writer.Finish(writer.Start(own), CallState::kDone);
  }
  const std::vector<CallRecord> all = records();
  ASSERT_EQ(all.size(), static_cast<size_t>(runtime::kBlackBoxRecords));
  for (size_t i = 0; i < all.size() - 100; ++i) {  // the earlier ones are as they were
    EXPECT_EQ(all[i].signature.count, 700 - (all.size() - 100) + i + 1);
  }
  EXPECT_EQ(all.back().signature.group, 77u);
  EXPECT_EQ(all.back().bytes, 100u);
  EXPECT_FALSE(Segment::Attach(dup(agent_->fd()), 1, Segment::Role::kRecorder).ok());
}

TEST_F(NcclRecorderTest, AnotherProcessRecordsOnAfterTheFirstHasEnded) {
  Run(recorder_->Add({.hash = 1, .rank = 0, .size = 2}), Call("AllReduce"));
  recorder_.reset();
  segment_ = *Segment::Attach(dup(agent_->fd()), 1, Segment::Role::kRecorder);
  recorder_ = std::make_unique<NcclRecorder>(segment_.get(), 3);
  Run(recorder_->Add({.hash = 2, .rank = 0, .size = 2}), Call("Broadcast"));
  ASSERT_EQ(records().size(), 2u);
  EXPECT_EQ(runtime::DescribeCall(records()[0]), "all_reduce(float32, 8)");
  EXPECT_EQ(runtime::DescribeCall(records()[1]), "broadcast(float32, 8, root 0)");
}

TEST_F(NcclRecorderTest, MemoryIsBoundedHoweverManyCallsAndCommunicators) {
  for (uint64_t i = 0; i < NcclRecorder::kCommunicators; ++i) {
    ASSERT_NE(recorder_->Add({.hash = i + 1, .rank = 0, .size = 2}), 0u);
  }
  EXPECT_EQ(recorder_->Add({.hash = 1u << 20, .rank = 0, .size = 2}), 0u);
  recorder_->Remove(1);
  const uint64_t world = recorder_->Add({.hash = 1u << 20, .rank = 0, .size = 2});
  ASSERT_NE(world, 0u);
  const auto enqueue = [this, world](int calls) {
    for (int i = 0; i < calls; ++i) Begin(world, Call("Send", 8, i % 1000));  // none of them ends
  };
  enqueue(20'000);
  const size_t before = testing::ResidentMemory(getpid());
  enqueue(200'000);
  EXPECT_LT(testing::ResidentMemory(getpid()), before + (4u << 20));
  EXPECT_EQ(recorder_->OldestRunning().size(), 1u);
  EXPECT_EQ(box().latest(), 220'000u);
}

TEST_F(NcclRecorderTest, ManyThreadsRecordAtOnce) {
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const uint64_t own = recorder_->Add({.hash = t + 1, .rank = 0, .size = 2});
      for (int i = 0; i < 2'000; ++i) Run(own, Call("AllReduce"));
      recorder_->Remove(own);
    });
  }
  for (int i = 0; i < 100; ++i) {
    for (const NcclRecorder::Running& running : recorder_->OldestRunning()) recorder_->ShowWait(running.number);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(box().latest(), 8'000u);
  for (const CallRecord& record : records()) EXPECT_EQ(record.state, CallState::kDone);
}

}  // namespace
}  // namespace cohort::comm::nccl_profiler
