// SummonFullParams where there is no memory to write back with.
#include <cstring>
#include <memory>
#include <stdexcept>

#include "c10/core/CPUAllocator.h"
#include "tests/trainer/tower.h"

namespace cohort::trainer {
namespace {

using testing::HasSubstr;

// Without `override`, since libtorch's versions differ in what they have of these, and in its `const`.
struct RefusingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t) const { return Refuse(); }
  c10::DataPtr allocate(size_t) { return Refuse(); }
  void copy_data(void* to, const void* from, size_t count) const { std::memcpy(to, from, count); }
  static c10::DataPtr Refuse() { TORCH_CHECK(false, "no memory is left"); }
};

// While it lives, tensors in host memory can't be made.
class NoMoreMemory {
 public:
  NoMoreMemory() { c10::SetCPUAllocator(&refuses_); }
  ~NoMoreMemory() { c10::SetCPUAllocator(before_); }
  NoMoreMemory(const NoMoreMemory&) = delete;
  NoMoreMemory& operator=(const NoMoreMemory&) = delete;

 private:
  c10::Allocator* before_ = c10::GetCPUAllocator();
  RefusingAllocator refuses_;
};

FullyShardedDataParallelOptions SmallTypes() {  // writing back compares in them, which takes memory
  FullyShardedDataParallelOptions options;
  options.mixed_precision.param_dtype = torch::kBFloat16;
  return options;
}

TEST(FsdpWriteBack, WritingBackThrowsAndLeavesNoRankWaiting) {
  const auto model = Shard(*world, SmallTypes());
  std::unique_ptr<NoMoreMemory> none;  // gone after what it keeps from writing back
  const bool fails = world->rank() == world->size() - 1;
  bool threw = false;
  try {
    const SummonFullParams whole(*model);
    ASSERT_TRUE(world->Barrier().Wait().ok());  // all have gathered: the abort below is heard later
    if (fails) none = std::make_unique<NoMoreMemory>();
  } catch (const c10::Error& error) {
    none.reset();
    threw = true;
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("no memory is left"));
  }
  none.reset();
  EXPECT_EQ(threw, fails);
  if (world->size() == 1) return;  // the one that has got the error
  try {
    model->forward(InputOf(world->rank(), 0));
    FAIL() << "trained with changes that are lost in part";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("writing back what was changed under SummonFullParams"));
  }
}

TEST(FsdpWriteBack, WritingBackLetsAnEarlierExceptionPass) {
  const auto model = Shard(*world, SmallTypes());
  std::unique_ptr<NoMoreMemory> none;
  try {
    const SummonFullParams whole(*model);
    ASSERT_TRUE(world->Barrier().Wait().ok());
    none = std::make_unique<NoMoreMemory>();
    throw std::runtime_error("of the user's own");
  } catch (const std::runtime_error& error) {
    none.reset();
    EXPECT_STREQ(error.what(), "of the user's own");
  }
}

}  // namespace
}  // namespace cohort::trainer
