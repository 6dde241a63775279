#include "cohort/trainer/data/prefetching_loader.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "gtest/gtest.h"
#include "tests/trainer/few_threads.h"

namespace cohort::trainer {
namespace {

TEST(PrefetchingLoader, GivesBatchesInOrderWhateverTheWorkers) {
  for (const int workers : {1, 3}) {
    for (const int depth : {1, 2, 5}) {
      PrefetchingLoader<int64_t> loader(50, [](int64_t i) { return i * i; }, {.workers = workers, .depth = depth});
      for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(loader.next(), i * i);
      EXPECT_FALSE(loader.next().has_value());
      EXPECT_FALSE(loader.next().has_value());
    }
  }
  PrefetchingLoader<int64_t> none(0, [](int64_t i) { return i; });
  EXPECT_FALSE(none.next().has_value());
}

TEST(PrefetchingLoader, MakesNoMoreThanItsDepthAhead) {
  std::atomic<int64_t> made{0};
  PrefetchingLoader<int64_t> loader(100, [&](int64_t i) { return made.fetch_add(1), i; }, {.workers = 4, .depth = 3});
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_LE(made.load(), i + 3);
    loader.next();
  }
}

TEST(PrefetchingLoader, ThrowsTheExceptionOfABatchInItsPlace) {
  PrefetchingLoader<std::unique_ptr<int>> loader(10,
                                                 [](int64_t i) {
                                                   if (i == 4) throw std::runtime_error("no such image");
                                                   return std::make_unique<int>(static_cast<int>(i));
                                                 },
                                                 {.workers = 2, .depth = 4});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(**loader.next(), i);
  EXPECT_THROW(loader.next(), std::runtime_error);
  EXPECT_FALSE(loader.next().has_value());
}

TEST(PrefetchingLoader, EndsInTheMiddleOfItsBatches) {
  PrefetchingLoader<int64_t> loader(1000, [](int64_t i) { return i; }, {.workers = 2});
  EXPECT_EQ(loader.next(), 0);
}

TEST(PrefetchingLoader, ThrowsWhereTheSystemGivesNoMoreThreads) {
  const FewThreads few;
  const auto make = [](int64_t i) { return i; };
  EXPECT_THROW(PrefetchingLoader<int64_t>(1, make, {.workers = FewThreads::kTooMany}), std::system_error);
}

TEST(PrefetchingLoader, RefusesToRunWithoutWorkers) {
  const auto make = [](int64_t i) { return i; };
  EXPECT_THROW(PrefetchingLoader<int64_t>(1, make, {.workers = 0}), c10::Error);
  EXPECT_THROW(PrefetchingLoader<int64_t>(1, make, {.depth = 0}), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
