// How long the trainer's collectives wait for a rank that does not come.
#include <chrono>
#include <memory>
#include <utility>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/parallel/replicate/distributed_data_parallel.h"
#include "cohort/trainer/transfer/collectives.h"
#include "tests/trainer/ranks.h"

namespace cohort::trainer {
namespace {

using std::chrono::milliseconds, std::chrono::minutes, std::chrono::seconds;

// While it lives.
class DefaultTimeout {
 public:
  explicit DefaultTimeout(std::chrono::nanoseconds timeout) { set_default_timeout(timeout); }
  ~DefaultTimeout() { set_default_timeout(before_); }
  DefaultTimeout(const DefaultTimeout&) = delete;
  DefaultTimeout& operator=(const DefaultTimeout&) = delete;

 private:
  const std::chrono::nanoseconds before_ = default_timeout();
};

// Rank 0 comes here when the others are through.
void AwaitAll() { ASSERT_TRUE(world->Barrier().Wait(minutes(2)).ok()); }

TEST(CollectiveTimeout, TheDefaultTimeoutIsThatOfTheGuard) {
  EXPECT_EQ(default_timeout(), minutes(10));
  {
    const DefaultTimeout timeout(minutes(3));
    EXPECT_EQ(default_timeout(), minutes(3));
    EXPECT_THROW(set_default_timeout(seconds(0)), c10::Error);
    EXPECT_EQ(default_timeout(), minutes(3));
  }
  EXPECT_EQ(default_timeout(), minutes(10));
}

TEST(CollectiveTimeout, ATimeoutEndsACallThatARankDoesNotMake) {
  if (world->size() == 1) GTEST_SKIP() << "there is nobody to wait for";
  auto group = world->Duplicate();
  ASSERT_TRUE(group.ok());
  if (world->rank() > 0) {
    const DefaultTimeout timeout(milliseconds(100));
    float value = 1;
    const comm::Buffer buffer(&value, 1);
    runtime::Work work = AllReduce(**group, buffer, buffer, comm::ReduceOp::kSum);
    EXPECT_FALSE(work.Wait(seconds(20)).ok());
    EXPECT_TRUE(work.Done());  // else it is this Wait that has ended
  }
  AwaitAll();
}

// A whole wrapper: rank 0 has no backward pass.
TEST(CollectiveTimeout, ATimeoutEndsABackwardPassOfAWrapper) {
  if (world->size() == 1) GTEST_SKIP() << "there is nobody to wait for";
  DistributedDataParallel<Net> ddp(std::make_shared<Net>(), *world);
  const at::Tensor loss = ddp.forward(InputOf(world->rank())).pow(2).mean();
  if (world->rank() > 0) {
    const DefaultTimeout timeout(milliseconds(100));
    EXPECT_THROW(loss.backward(), DistributedError);
  }
  AwaitAll();
}

// Making one, too, where the ranks' modules are compared first: rank 0 makes none.
TEST(CollectiveTimeout, ATimeoutEndsTheConstructionOfAWrapper) {
  if (world->size() == 1) GTEST_SKIP() << "there is nobody to wait for";
  auto group = world->Duplicate();
  ASSERT_TRUE(group.ok());
  if (world->rank() > 0) {
    const DefaultTimeout timeout(milliseconds(200));
    const auto wrap = [&] { DistributedDataParallel<Net>(std::make_shared<Net>(), **group); };
    EXPECT_THROW(wrap(), DistributedError);
  }
  AwaitAll();
}

}  // namespace
}  // namespace cohort::trainer
