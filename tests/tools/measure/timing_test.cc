// The loop of benchmarks, on a call of one rank that copies its input.
#include "tools/measure/timing.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tools/measure/gate.h"

namespace cohort::measure {
namespace {

class Copy final : public MeasuredCall {
 public:
  absl::Status Run(int64_t calls) const override {
    made += calls;
    if (copies) std::memcpy(out.data(), in.data(), in.size() * sizeof(float));
    return absl::OkStatus();
  }
  Memory memory() const override {
    return {in.data(), in.size() * sizeof(float), out.data(), out.size() * sizeof(float)};
  }

  bool copies = true;
  mutable int64_t made = 0;
  mutable std::vector<float> in = std::vector<float>(16), out = in;
};

class TimingTest : public ::testing::Test {
 protected:
  const Pattern pattern_{
      .operation = Operation::kAllReduce, .type = *FindElementType("float32"), .ranks = 1, .count = 16};
  const std::unique_ptr<GateMemory> memory_ = std::make_unique<GateMemory>();
  SharedMemoryGate gate_{memory_.get(), 0, 1, 10};
  Copy call_;
};

TEST_F(TimingTest, WrongElementsOfTwoCallsAreCounted) {
  EXPECT_EQ(CountWrongOf(call_, pattern_, gate_).value(), 0);
  EXPECT_EQ(call_.made, 2);
  EXPECT_EQ(CountWrongOf(call_, pattern_, gate_, /*spoil=*/true).value(), 2);
  call_.copies = false;
  EXPECT_EQ(CountWrongOf(call_, pattern_, gate_).value(), 32);
}

TEST_F(TimingTest, ASampleIsTheMeanOfABatchAndMayWriteTheInputAgain) {
  const std::vector<float> before = call_.in;
  EXPECT_TRUE(TimeOnce(call_, {.batch = 7}, gate_).ok());
  EXPECT_EQ(call_.made, 7);
  EXPECT_EQ(call_.in, before);
  EXPECT_TRUE(TimeOnce(call_, {.rewrite = true}, gate_).ok());
  EXPECT_NE(call_.in, before);
}

TEST_F(TimingTest, AWarmUpEndsByItsTimeButNotBeforeThreeSamples) {
  EXPECT_GT(WarmUp(call_, {}, gate_, 10, 1e15)->least_ps, 0);
  EXPECT_EQ(call_.made, 10);
  const Pace pace = WarmUp(call_, {}, gate_, 10, 0).value();
  EXPECT_EQ(call_.made, 13);
  EXPECT_GE(pace.mean_ps, pace.least_ps);
  EXPECT_EQ(WarmUp(call_, {}, gate_, 0, 1e15)->mean_ps, 0);
}

}  // namespace
}  // namespace cohort::measure
