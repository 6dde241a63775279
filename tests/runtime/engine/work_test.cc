#include "cohort/runtime/engine/work.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace cohort::runtime {
namespace {

class FakeState : public WorkState {
 public:
  explicit FakeState(int* recycled) : recycled_(recycled) {}
  using WorkState::ClearPooled;
  using WorkState::Complete;
  using WorkState::CompleteAndDrop;
  using WorkState::Reset;
  using WorkState::SetPooled;
  using WorkState::unused;
  std::function<void()> on_wait;

 private:
  void Wait(Deadline deadline) override {
    (void)deadline;
    if (on_wait) on_wait();
  }
  void Recycle() override { ++*recycled_; }
  int* recycled_;
};

TEST(WorkTest, AWorkWithoutAnOperationIsDone) {
  Work work;
  EXPECT_TRUE(work.Done());
  EXPECT_TRUE(work.Wait().ok());
  int calls = 0;
  work.Then([&calls](const absl::Status& status) { calls += status.ok() ? 1 : 0; });
  EXPECT_EQ(calls, 1);
}

TEST(WorkTest, AFinishedWorkCarriesItsStatus) {
  Work refused = Work::Finished(absl::InvalidArgumentError("count"));
  EXPECT_TRUE(refused.Done());
  EXPECT_EQ(refused.Wait().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.WaitOnStream(nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Work::Finished(absl::OkStatus()).Done());
}

TEST(WorkTest, AWaitThatExpiresLeavesTheWorkPending) {
  int recycled = 0;
  FakeState state(&recycled);
  {
    Work work(&state);
    EXPECT_FALSE(work.Done());
    EXPECT_EQ(work.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(work.Wait(Deadline::Now()).code(), absl::StatusCode::kDeadlineExceeded);
    state.on_wait = [&state] { state.Complete(absl::AbortedError("over")); };
    EXPECT_EQ(work.Wait().code(), absl::StatusCode::kAborted);
    EXPECT_EQ(work.status().code(), absl::StatusCode::kAborted);
  }
  EXPECT_EQ(recycled, 1);
}

TEST(WorkTest, CopiesCountAndTheLastRecycles) {
  int recycled = 0;
  FakeState state(&recycled);
  {
    Work first(&state);
    Work second = first;
    Work third = std::move(first);
    first = Work();
    EXPECT_EQ(recycled, 0);
    second = third;
  }
  EXPECT_EQ(recycled, 1);
  state.Complete(absl::OkStatus());
  state.Reset(0);
  EXPECT_FALSE(state.done());
  {
    Work again(&state);
  }
  EXPECT_EQ(recycled, 2);
}

TEST(WorkTest, CompleteAndDropGivesTheProducersReferenceBack) {
  int recycled = 0;
  FakeState state(&recycled);
  state.Reset(2);
  Work work = Work::Adopt(&state);
  int calls = 0;
  work.Then([&](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(recycled, 0);  // the callback's state is still there
    ++calls;
  });
  state.CompleteAndDrop(absl::AbortedError("over"));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(work.Wait().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(recycled, 0);
  work = Work();
  EXPECT_EQ(recycled, 1);
  state.Reset(1);
  EXPECT_FALSE(state.done());
  state.CompleteAndDrop(absl::OkStatus());
  EXPECT_EQ(recycled, 2);
}

TEST(WorkTest, PooledStatesAreLeftToTheirPool) {
  int recycled = 0;
  FakeState state(&recycled);
  state.SetPooled();
  EXPECT_TRUE(state.unused());
  state.Reset(2);
  EXPECT_FALSE(state.unused());
  Work work = Work::Adopt(&state);
  state.CompleteAndDrop(absl::OkStatus());
  EXPECT_FALSE(state.unused());
  work = Work();
  EXPECT_TRUE(state.unused());
  EXPECT_EQ(recycled, 0);
  EXPECT_TRUE(state.ClearPooled());  // unused: the pool's to delete

  state.SetPooled();
  state.Reset(1);
  work = Work::Adopt(&state);
  EXPECT_FALSE(state.ClearPooled());  // held: it recycles itself
  work = Work();
  EXPECT_EQ(recycled, 1);
}

TEST(WorkTest, CallbacksRunOnceInOrder) {
  int recycled = 0;
  FakeState state(&recycled);
  Work work(&state);
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) {
    work.Then([&order, i](const absl::Status& status) {
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
      order.push_back(i);
    });
  }
  EXPECT_TRUE(order.empty());
  state.Complete(absl::AbortedError("x"));
  EXPECT_EQ(order, std::vector<int>({0, 1, 2}));
  work.Then([&order](const absl::Status&) { order.push_back(3); });
  EXPECT_EQ(order.size(), 4u);
}

TEST(WorkTest, CallbacksRaceWithCompletion) {
  for (int round = 0; round < 500; ++round) {
    int recycled = 0;
    FakeState state(&recycled);
    Work work(&state);
    std::atomic<int> calls{0};
    std::thread adder([&] {
      for (int i = 0; i < 8; ++i) work.Then([&calls](const absl::Status&) { calls.fetch_add(1); });
    });
    if (round % 2 == 0) {
      state.Complete(absl::OkStatus());
    } else {
      state.AddReference();
      state.CompleteAndDrop(absl::OkStatus());
    }
    adder.join();
    ASSERT_EQ(calls.load(), 8);
  }
}

TEST(WorkTest, DroppedCallbacksAreFreed) {
  int recycled = 0;
  auto state = std::make_unique<FakeState>(&recycled);
  auto token = std::make_shared<int>(0);
  Work(state.get()).Then([token](const absl::Status&) {});
  EXPECT_EQ(token.use_count(), 2);
  state.reset();
  EXPECT_EQ(token.use_count(), 1);
}

TEST(WorkTest, CountsListenersThatMayMakeCalls) {
  class Listener final : public WorkListener {
   public:
    explicit Listener(bool makes_calls) : WorkListener(makes_calls) {}

   private:
    void OnDone(const absl::Status&) override {}
  };
  EXPECT_EQ(ListenersThatMayCall(), 0);
  int recycled = 0;
  Listener quiet(false);
  Listener calling(true);
  {
    FakeState state(&recycled);
    Work work(&state);
    work.Notify(&quiet);
    EXPECT_EQ(ListenersThatMayCall(), 0);
    work.Notify(&calling);
    int64_t inside = 0;
    work.Then([&inside](const absl::Status&) { inside = ListenersThatMayCall(); });
    EXPECT_EQ(ListenersThatMayCall(), 2);
    state.Complete(absl::OkStatus());
    EXPECT_EQ(inside, 1) << "it makes its calls now";
    EXPECT_EQ(ListenersThatMayCall(), 0);
    work.Then([](const absl::Status&) {});
    EXPECT_EQ(ListenersThatMayCall(), 0);
  }
  {
    FakeState dropped(&recycled);
    Work(&dropped).Then([](const absl::Status&) {});
    EXPECT_EQ(ListenersThatMayCall(), 1);
  }
  EXPECT_EQ(ListenersThatMayCall(), 0);
}

}  // namespace
}  // namespace cohort::runtime
