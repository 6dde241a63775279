#include "cohort/trainer/data/distributed_sampler.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "c10/util/Exception.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

using Indices = std::vector<int64_t>;

TEST(DistributedSampler, PadsWithTheHeadWithoutShuffle) {
  const DistributedSamplerOptions options = {.shuffle = false};
  EXPECT_EQ(DistributedSampler(5, 2, 0, options).indices(), (Indices{0, 2, 4}));
  EXPECT_EQ(DistributedSampler(5, 2, 1, options).indices(), (Indices{1, 3, 0}));
}

TEST(DistributedSampler, DropLastTruncatesTheIndices) {
  const DistributedSamplerOptions options = {.shuffle = false, .drop_last = true};
  EXPECT_EQ(DistributedSampler(5, 2, 0, options).indices(), (Indices{0, 2}));
  EXPECT_EQ(DistributedSampler(5, 2, 1, options).indices(), (Indices{1, 3}));
  EXPECT_EQ(DistributedSampler(2, 3, 1, options).num_samples(), 0);
}

TEST(DistributedSampler, SmallDatasetsAreRepeated) {
  const DistributedSamplerOptions options = {.shuffle = false};
  for (int rank = 0; rank < 7; ++rank) {
    EXPECT_EQ(DistributedSampler(2, 7, rank, options).indices(), Indices{rank % 2});
  }
}

// Python: torch.randperm(10, generator=torch.Generator().manual_seed(0)) = [4, 1, 7, 5, 3, 9, 0, 8, 6, 2].
TEST(DistributedSampler, ShufflesAsPythonDoes) {
  EXPECT_EQ(DistributedSampler(10, 1, 0).indices(), (Indices{4, 1, 7, 5, 3, 9, 0, 8, 6, 2}));
  EXPECT_EQ(DistributedSampler(10, 3, 0).indices(), (Indices{4, 5, 0, 2}));
  EXPECT_EQ(DistributedSampler(10, 3, 1).indices(), (Indices{1, 3, 8, 4}));
  EXPECT_EQ(DistributedSampler(10, 3, 2).indices(), (Indices{7, 9, 6, 1}));
}

TEST(DistributedSampler, EpochAndSeedAddUp) {
  DistributedSampler by_epoch(100, 4, 2, {.seed = 3});
  by_epoch.set_epoch(5);
  EXPECT_EQ(by_epoch.indices(), DistributedSampler(100, 4, 2, {.seed = 8}).indices());
  EXPECT_NE(by_epoch.indices(), DistributedSampler(100, 4, 2, {.seed = 3}).indices());
}

TEST(DistributedSampler, RanksShareTheDatasetEvenly) {
  for (int64_t size : {1, 2, 7, 24, 25}) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      std::map<int64_t, int> times;
      for (int rank = 0; rank < ranks; ++rank) {
        const DistributedSampler sampler(size, ranks, rank, {.seed = 11});
        const Indices mine = sampler.indices();
        EXPECT_EQ(static_cast<int64_t>(mine.size()), (size + ranks - 1) / ranks);
        for (int64_t index : mine) ++times[index];
      }
      EXPECT_EQ(static_cast<int64_t>(times.size()), size) << "an example is left out";
      const auto [least, most] =
          std::minmax_element(times.begin(), times.end(), [](auto& a, auto& b) { return a.second < b.second; });
      EXPECT_LE(most->second - least->second, 1);
    }
  }
}

TEST(DistributedSampler, RefusesImpossibleRanksAndSizes) {
  EXPECT_THROW(DistributedSampler(0, 1, 0), c10::Error);
  EXPECT_THROW(DistributedSampler(5, 0, 0), c10::Error);
  EXPECT_THROW(DistributedSampler(5, 2, 2), c10::Error);
  EXPECT_THROW(DistributedSampler(5, 2, -1), c10::Error);
}

// Half an epoch on four ranks, the rest on three: every example once, in the order of one rank.
TEST(DistributedSampler, AnEpochGoesOnWithAnotherNumberOfRanks) {
  constexpr int64_t kSize = 40;
  DistributedSampler whole(kSize, 1, 0, {.seed = 5});
  whole.set_epoch(3);
  const Indices order = whole.indices();
  std::map<std::string, std::string> state;
  for (int rank = 0; rank < 4; ++rank) {
    DistributedSampler sampler(kSize, 4, rank, {.seed = 5});
    sampler.set_epoch(3);
    const Indices mine = sampler.indices();
    for (int i = 0; i < 4; ++i) EXPECT_EQ(mine[i], order[4 * i + rank]);
    sampler.set_consumed(4 * 4);
    state = sampler.state_dict();
  }
  for (int rank = 0; rank < 3; ++rank) {
    DistributedSampler sampler(kSize, 3, rank, {.seed = 5});
    sampler.load_state_dict(state);
    EXPECT_EQ(sampler.epoch(), 3);
    sampler.set_epoch(3);  // by the loop
    EXPECT_EQ(sampler.num_samples(), 8);
    const Indices mine = sampler.indices();
    for (int i = 0; i < 8; ++i) EXPECT_EQ(mine[i], order[16 + 3 * i + rank]);
    sampler.set_epoch(4);
    EXPECT_EQ(sampler.consumed(), 0);
    EXPECT_EQ(sampler.num_samples(), 14);
  }
  DistributedSampler done(kSize, 3, 1);
  done.set_consumed(kSize + 2);
  EXPECT_TRUE(done.indices().empty());
  EXPECT_THROW(done.set_consumed(-1), c10::Error);
}

// The same ranks continue with the examples they would have had, also if they do not share the examples evenly.
TEST(DistributedSampler, GoesOnAfterConsumedExamplesAsIfUndisturbed) {
  constexpr int64_t kSize = 1003, kConsumed = 400;
  for (const bool drop_last : {false, true}) {
    for (int rank = 0; rank < 4; ++rank) {
      DistributedSampler sampler(kSize, 4, rank, {.seed = 5, .drop_last = drop_last});
      sampler.set_epoch(2);
      const Indices undisturbed = sampler.indices();
      sampler.set_consumed(kConsumed);
      EXPECT_EQ(sampler.indices(), Indices(undisturbed.begin() + kConsumed / 4, undisturbed.end()))
          << "rank " << rank << (drop_last ? ", without the last" : "");
    }
  }
}

TEST(DistributedSampler, RefusesTheStateOfAnotherOrder) {
  auto state = DistributedSampler(40, 4, 0).state_dict();
  EXPECT_THROW(DistributedSampler(41, 4, 0).load_state_dict(state), c10::Error);
  EXPECT_THROW(DistributedSampler(40, 4, 0, {.seed = 1}).load_state_dict(state), c10::Error);
  EXPECT_THROW(DistributedSampler(40, 4, 0, {.shuffle = false}).load_state_dict(state), c10::Error);
  state["sampler.consumed"] = "-4";
  EXPECT_THROW(DistributedSampler(40, 4, 0).load_state_dict(state), c10::Error);
  state.erase("sampler.consumed");
  EXPECT_THROW(DistributedSampler(40, 4, 0).load_state_dict(state), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
