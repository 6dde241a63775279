#include "cohort/comm/nccl/profiler/recorded_box.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "cohort/runtime/process/owner_word.h"
#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/segment/wait_state.h"
#include "tests/runtime/child.h"

namespace cohort::comm::nccl_profiler {
namespace {

using runtime::BlackBoxReader;
using runtime::BlackBoxWriter;
using runtime::CallRecord;
using runtime::CallState;
using runtime::OwnerWord;
using runtime::Segment;

constexpr uint64_t kRecorders = 1, kRuntimes = 2;  // groups of the records

class RecordedBoxTest : public ::testing::Test {
 protected:
  void SetUp() override { agent_ = *Segment::Create({.local_ranks = 1}); }
  absl::StatusOr<std::unique_ptr<Segment>> Attach(Segment::Role role) const {
    return Segment::Attach(dup(agent_->fd()), 0, role);
  }
  OwnerWord owner() const { return OwnerWord(&runtime::RankPartOf(agent_.get(), 0)->black_box.owner); }
  BlackBoxReader box() const { return agent_->black_box_of(0); }
  static CallRecord RecordOf(uint64_t group) {
    CallRecord record;
    record.signature.kind = 9;
    record.signature.group = group;
    return record;
  }

  std::unique_ptr<Segment> agent_;
};

TEST_F(RecordedBoxTest, NobodyWritesBesideARuntimeThatHasAttached) {
  for (int round = 0; round < 50; ++round) {
    SetUp();
    const auto recorded = *Attach(Segment::Role::kRecorder);
    RecordedBox recorder(recorded.get());
    std::atomic<uint64_t> written{0};
    std::thread thread([&] {
      const auto write = [&](BlackBoxWriter& writer) {
        writer.Finish(writer.Start(RecordOf(kRecorders)), CallState::kDone);
        written.fetch_add(1);
      };
      while (recorder.Write(write)) continue;
    });
    while (written.load() < static_cast<uint64_t>(round)) std::this_thread::yield();
    const auto runtime = Attach(Segment::Role::kRuntime);
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    const uint64_t before = box().latest();
    EXPECT_EQ(before, written.load());
    for (int i = 0; i < 50; ++i) (*runtime)->black_box().Start(RecordOf(kRuntimes));
    thread.join();
    EXPECT_FALSE(recorder.open());
    EXPECT_EQ(written.load(), before);
    EXPECT_EQ(box().latest(), before + 50);
    const std::vector<CallRecord> records = box().All();
    ASSERT_GE(records.size(), 50u);
    for (size_t i = records.size() - 50; i < records.size(); ++i) EXPECT_EQ(records[i].signature.group, kRuntimes);
  }
}

TEST_F(RecordedBoxTest, ARecordThatADeadProcessHadBegunIsNotWaitedFor) {
  runtime::testing::Child child([this] {
    const auto recorded = Attach(Segment::Role::kRecorder);
    if (!recorded.ok()) return 1;
    RecordedBox(recorded->get()).Write([](BlackBoxWriter& writer) {
      writer.Start(RecordOf(kRecorders));
      _exit(0);
    });
    return 2;
  });
  EXPECT_EQ(child.Wait(), 0);
  const auto runtime = Attach(Segment::Role::kRuntime);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->black_box().Start(RecordOf(kRuntimes)), 2u);
}

TEST_F(RecordedBoxTest, ARecorderIsNotOpenBesideARuntimeAndGoesOnBehindOneThatHasFinalized) {
  const auto recorded = *Attach(Segment::Role::kRecorder);
  const auto runtime = *Attach(Segment::Role::kRuntime);
  EXPECT_FALSE(RecordedBox(recorded.get()).open());
  runtime->black_box().Start(RecordOf(kRuntimes));
  runtime->control(0).state.store(runtime::kRankFinalised);
  const auto after = Attach(Segment::Role::kRecorder);
  ASSERT_TRUE(after.ok()) << after.status();
  RecordedBox recorder(after->get());
  EXPECT_TRUE(recorder.Write([](BlackBoxWriter& writer) { writer.Start(RecordOf(kRecorders)); }));
  EXPECT_EQ(box().latest(), 2u);
  EXPECT_FALSE(Attach(Segment::Role::kRuntime).ok()) << "a later runtime has a segment of its own";
  EXPECT_TRUE(recorder.open());
  owner().Revoke();  // which its agent then does
  EXPECT_FALSE(recorder.open());
}

TEST_F(RecordedBoxTest, ARuntimeDoesNotTakeOverTheRecordersWait) {
  const auto recorded = *Attach(Segment::Role::kRecorder);
  RecordedBox recorder(recorded.get());
  recorder.Write([&](BlackBoxWriter& writer) {
    const uint64_t ticket = writer.Start(RecordOf(kRecorders));
    runtime::ShowWait(recorded->control(0), ticket, ticket, /*bound=*/false);
  });
  EXPECT_TRUE(runtime::ReadWait(agent_->control(0), box()).has_value());
  ASSERT_TRUE(Attach(Segment::Role::kRuntime).ok());
  EXPECT_FALSE(runtime::ReadWait(agent_->control(0), box()).has_value());
}

TEST_F(RecordedBoxTest, ARecorderDoesNotTakeOverTheWaitOfTheOneBefore) {
  const auto first = *Attach(Segment::Role::kRecorder);
  RecordedBox(first.get()).Write([&](BlackBoxWriter& writer) {
    const uint64_t ticket = writer.Start(RecordOf(kRecorders));
    runtime::ShowWait(first->control(0), ticket, ticket, /*bound=*/false);
  });
  EXPECT_TRUE(runtime::ReadWait(agent_->control(0), box()).has_value());
  const auto second = *Attach(Segment::Role::kRecorder);
  RecordedBox recorder(second.get());
  EXPECT_FALSE(runtime::ReadWait(agent_->control(0), box()).has_value());
  EXPECT_TRUE(recorder.Write([](BlackBoxWriter& writer) { writer.Start(RecordOf(kRecorders)); }));
}

}  // namespace
}  // namespace cohort::comm::nccl_profiler
