#include "cohort/launcher/agent/activity/activity_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/runtime/base/mutex.h"
#include "tests/launcher/agent/activity/watched_child.h"

namespace cohort::launcher {
namespace {

using ::testing::Contains;
using ::testing::Not;

// Processes in whose looks a thread blocks, until they are let go.
class Blocks {
 public:
  explicit Blocks(std::set<pid_t> processes) : processes_(std::move(processes)) {}

  void AwaitEnd(pid_t process) {
    runtime::MutexLock lock(mutex_);
    if (!processes_.contains(process)) return;
    ++blocked_;
    while (processes_.contains(process)) changed_.Wait(mutex_);
    --blocked_;
  }
  void LetGo() {
    runtime::MutexLock lock(mutex_);
    processes_.clear();
    changed_.NotifyAll();
  }
  size_t blocked() {
    runtime::MutexLock lock(mutex_);
    return blocked_;
  }

 private:
  runtime::Mutex mutex_;
  runtime::CondVar changed_;
  std::set<pid_t> processes_ COHORT_GUARDED_BY(mutex_);
  size_t blocked_ COHORT_GUARDED_BY(mutex_) = 0;
};

class ActivitySamplerTest : public ::testing::Test {
 protected:
  static constexpr size_t kChildren = ActivitySampler::kMostStuck + 3;

  ActivitySamplerTest() {
    for (size_t i = 0; i < kChildren; ++i) {
      children_.push_back(std::make_unique<WatchedChild>([](int) { ::sleep(600); }));
      subjects_.push_back({.number = i, .process = ProcessOf(children_.back()->pid())});
    }
  }
  ~ActivitySamplerTest() override {
    if (blocks_) blocks_->LetGo();
  }
  // Looks at the first `blocking` children block.
  void Start(size_t blocking) {
    std::set<pid_t> processes;
    for (size_t i = 0; i < blocking; ++i) processes.insert(children_[i]->pid());
    blocks_ = std::make_shared<Blocks>(processes);
    auto sampler = ActivitySampler::Start([blocks = blocks_](ProcessActivity& process, bool waits) {
      blocks->AwaitEnd(process.process().pid);
      return process.Look(waits);
    });
    ASSERT_TRUE(sampler.ok()) << sampler.status();
    sampler_ = *std::move(sampler);
  }
  // Looks at all children until the condition is met. Whose states were seen meanwhile.
  std::set<size_t> LookUntil(const std::function<bool(const std::set<size_t>& seen)>& condition) {
    std::set<size_t> seen;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition(seen) && std::chrono::steady_clock::now() < limit) {
      sampler_->Look(subjects_);
      for (const ActivitySampler::Sample& sample : sampler_->Take()) seen.insert(sample.number);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a bounded poll
    }
    EXPECT_TRUE(condition(seen));
    return seen;
  }

  std::vector<std::unique_ptr<WatchedChild>> children_;
  std::vector<ActivitySampler::Subject> subjects_;
  std::shared_ptr<Blocks> blocks_;
  std::unique_ptr<ActivitySampler> sampler_;
};

TEST_F(ActivitySamplerTest, ALookThatBlocksBlindsNobodyElse) {
  Start(1);
  const auto all_others = [](const std::set<size_t>& seen) { return seen.size() == kChildren - 1; };
  EXPECT_THAT(LookUntil(all_others), Not(Contains(0u)));
  EXPECT_EQ(blocks_->blocked(), 1u) << "that one is left out meanwhile";
  blocks_->LetGo();
  LookUntil([](const std::set<size_t>& seen) { return seen.contains(0); });
}

TEST_F(ActivitySamplerTest, ThreadsThatAreLeftBehindAreBounded) {
  Start(kChildren - 1);
  LookUntil([this](const std::set<size_t>&) { return blocks_->blocked() > ActivitySampler::kMostStuck; });
  const auto limit = std::chrono::steady_clock::now() + ActivitySampler::kStuckAfter * 2;
  while (std::chrono::steady_clock::now() < limit) {
    EXPECT_FALSE(sampler_->Look(subjects_));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // nothing that could be awaited happens
  }
  EXPECT_EQ(blocks_->blocked(), ActivitySampler::kMostStuck + 1);
  blocks_->LetGo();
  LookUntil([](const std::set<size_t>& seen) { return seen.size() == kChildren; });
}

}  // namespace
}  // namespace cohort::launcher
