#include "cohort/runtime/ranges.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/runtime.h"
#include "cohort/runtime/segment/layout.h"
#include "cohort/runtime/segment/segment.h"

namespace cohort::runtime {
namespace {

class Ranges : public testing::Test {
 protected:
  void SetUp() override { Join(); }
  void Join() {
    auto joined = Runtime::Init({.bootstrap = BootstrapWorldOfOne()});
    ASSERT_TRUE(joined.ok()) << joined.status();
    runtime_ = *std::move(joined);
    ring_ = RangesOf(runtime_->segment(), 0);
  }
  uint64_t recorded() const { return ring_->tickets.load(); }
  RangeRecord Latest() const { return RangeAt(ring_, recorded()).value_or(RangeRecord()); }

  std::unique_ptr<Runtime> runtime_;
  RangeMemory* ring_ = nullptr;
};

TEST_F(Ranges, ProgramsRecordThemWhileSomebodyReads) {
  {
    const Range range("nobody reads it");
  }
  EXPECT_EQ(recorded(), 0u);
  ring_->wanted.store(1);
  const uint64_t before_ns = SteadyNow();
  {
    const Range range("load", RangeLane::kStages, 5);
  }
  ASSERT_EQ(recorded(), 1u);
  EXPECT_STREQ(Latest().name, "load");
  EXPECT_EQ(Latest().lane, RangeLane::kStages);
  EXPECT_EQ(Latest().number, 5u);
  EXPECT_GE(Latest().start_ns, before_ns);
  EXPECT_LE(Latest().end_ns, SteadyNow());
  {
    const Range range("begun while there was a trace");
    ring_->wanted.store(0);
  }
  EXPECT_EQ(recorded(), 2u);
}

TEST_F(Ranges, InnerOnesEndFirstAndThreadsHaveLines) {
  ring_->wanted.store(1);
  const Range outer("outer");
  {
    const Range inner("inner");
  }
  const RangeRecord inner = Latest();
  std::thread([] { const Range other("other"); }).join();
  EXPECT_STREQ(inner.name, "inner");
  EXPECT_STREQ(Latest().name, "other");
  EXPECT_NE(Latest().line, inner.line);
}

TEST_F(Ranges, ARangeMayBeMovedAndDropped) {
  ring_->wanted.store(1);
  {
    Range range("first");
    const Range moved(std::move(range));
  }
  EXPECT_EQ(recorded(), 1u);
  {
    Range range("second", RangeLane::kBuckets, 70, 70);
    range.Drop();
  }
  EXPECT_EQ(recorded(), 1u);
  {
    const Range range("third", RangeLane::kBuckets, 70, 70);
  }
  EXPECT_EQ(Latest().line, 70 % kRangeLines);
}

TEST_F(Ranges, StepsAreRecordedAlways) {
  MarkStep(4711);
  ASSERT_EQ(recorded(), 1u);
  EXPECT_EQ(Latest().lane, RangeLane::kSteps);
  EXPECT_EQ(Latest().number, 4711u);
  EXPECT_EQ(Latest().start_ns, Latest().end_ns);
  ASSERT_TRUE(runtime_->OnPreemption(4712).ok());
  EXPECT_EQ(Latest().number, 4712u);
}

TEST_F(Ranges, NothingIsRecordedAfterFinalizeNorWithoutARuntime) {
  ring_->wanted.store(1);
  {
    const Range range("across the end");
    EXPECT_TRUE(runtime_->Finalize().ok());
    MarkStep(1);
    EXPECT_FALSE(RangesWanted());
  }
  EXPECT_EQ(recorded(), 0u);
  runtime_.reset();
  MarkStep(2);
  {
    const Range range("without a runtime");
  }
  Join();
  EXPECT_EQ(recorded(), 0u);
  MarkStep(3);
  EXPECT_EQ(recorded(), 1u);
}

TEST_F(Ranges, TheLatestRuntimeHasThem) {
  auto other = Runtime::Init({.bootstrap = BootstrapWorldOfOne()});
  ASSERT_TRUE(other.ok()) << other.status();
  const RangeMemory* const its = RangesOf((*other)->segment(), 0);
  MarkStep(1);
  EXPECT_EQ(recorded(), 0u);
  EXPECT_EQ(its->tickets.load(), 1u);
  EXPECT_TRUE(runtime_->Finalize().ok());  // leaves the other's alone
  MarkStep(2);
  EXPECT_EQ(its->tickets.load(), 2u);
}

TEST_F(Ranges, ARingThatCannotBeMappedLeavesTheFormerOne) {
  Segment& segment = runtime_->segment();
  const FileDescriptor kept(::dup(segment.fd())), other(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ASSERT_GE(::dup2(other.get(), segment.fd()), 0);
  EXPECT_FALSE(AttachRanges(segment, this).ok());
  ASSERT_GE(::dup2(kept.get(), segment.fd()), 0);
  MarkStep(1);
  EXPECT_EQ(recorded(), 1u);
}

TEST_F(Ranges, AForkedChildWritesNone) {
  ring_->wanted.store(1);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    MarkStep(1);
    const bool wanted = RangesWanted();
    {
      const Range range("of the child");
    }
    ::_exit(wanted ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(recorded(), 0u);
  MarkStep(2);
  EXPECT_EQ(recorded(), 1u);
}

}  // namespace
}  // namespace cohort::runtime
