// The cost model: predictions are finite, grow with the work, and see what a group shares.
#include "cohort/comm/select/cost_model.h"

#include <cmath>
#include <cstdint>

#include "cohort/comm/algorithm/registry.h"
#include "cohort/comm/select/tuning.h"
#include "gtest/gtest.h"

namespace cohort::comm {
namespace {

template <typename Visit>
void ForEachCase(const Visit& visit) {
  for (const AlgorithmInfo& algorithm : Algorithms()) {
    for (const int size : {2, 3, 4, 8, 17, 1000}) {
      for (const int nodes : {1, 2}) {
        if (!CheckRequirements(algorithm, size).ok() || (algorithm.traits.single_copy && nodes > 1)) continue;
        visit(algorithm, GroupTopology{.size = size, .nodes = nodes, .ranks_per_cpu = 1.0});
      }
    }
  }
}

TEST(CostModelTest, MoreBytesNeverTakeLess) {
  ForEachCase([](const AlgorithmInfo& algorithm, const GroupTopology& topology) {
    const int32_t pieces = PartsOf(algorithm, topology.size);
    double last = 0;
    // Up to the longest publish that is one write; beyond it plans are other ones.
    for (int64_t bytes = 0; bytes <= Tuning().fanout_bytes * pieces; bytes = bytes * 2 + 64) {
      const double time = PredictMicroseconds(algorithm, pieces, bytes, topology, Tuning());
      EXPECT_TRUE(std::isfinite(time));
      EXPECT_GT(time, 0);
      EXPECT_GE(time, last * (1 - 1e-9)) << Name(algorithm.kind) << " " << algorithm.name << ", " << bytes << " bytes";
      last = time;
    }
  });
}

TEST(CostModelTest, SharedCpusNeverHelp) {
  ForEachCase([](const AlgorithmInfo& algorithm, GroupTopology topology) {
    const int32_t pieces = PartsOf(algorithm, topology.size);
    for (const int64_t bytes : {int64_t{0}, int64_t{8}, int64_t{65536}, int64_t{1} << 24}) {
      double last = 0;
      for (const double share : {1.0, 2.0, 4.0}) {
        topology.ranks_per_cpu = share;
        const double time = PredictMicroseconds(algorithm, pieces, bytes, topology, Tuning());
        EXPECT_GE(time, last * (1 - 1e-9)) << Name(algorithm.kind) << " " << algorithm.name << ", " << bytes;
        last = time;
      }
    }
  });
}

TEST(CostModelTest, CpusBoundWhatAllRanksMove) {
  // The fifth rank gives four others its block, and two CPUs move it four times.
  const GroupTopology crowded = {.size = 5, .nodes = 1, .ranks_per_cpu = 2.5};
  const Tuning tuning;
  const int64_t bytes = 64 << 20;
  const double least = 4.0 / 2 * static_cast<double>(bytes) / (tuning.local.gigabytes_s * 1e3);
  for (const char* name : {"flat", "binomial", "chain"}) {
    const AlgorithmInfo* algorithm = FindAlgorithm(CollectiveKind::kBroadcast, name);
    ASSERT_NE(algorithm, nullptr);
    EXPECT_GE(PredictMicroseconds(*algorithm, 1, bytes, crowded, tuning), least) << name;
  }
}

// Four ranks on two CPUs over TCP in the kernel, where a message is work for a CPU at both ends.
const GroupTopology kTurns = {.size = 4, .nodes = 4, .smallest_node = 1, .largest_node = 1, .ranks_per_cpu = 2.0};

TEST(CostModelTest, SharedCpusDoTheWorkOfAllMessages) {
  const AlgorithmInfo* flat = FindAlgorithm(CollectiveKind::kBarrier, "flat");
  const AlgorithmInfo* dissemination = FindAlgorithm(CollectiveKind::kBarrier, "dissemination");
  Tuning tuning;
  tuning.remote.alpha_us = 2;
  tuning.remote.message_us = 5;
  tuning.remote.switch_us = 1;
  // Twelve messages in one round, or eight in two, by two CPUs; a round waits for the two ranks of a CPU.
  EXPECT_NEAR(PredictMicroseconds(*flat, 1, 0, kTurns, tuning), 12 * 5 / 2.0 + 1 * 2 * 1, 1e-9);
  EXPECT_NEAR(PredictMicroseconds(*dissemination, 1, 0, kTurns, tuning), 8 * 5 / 2.0 + 1 * 2 * 2, 1e-9);
}

TEST(CostModelTest, WiresAreNotSharedWithCpus) {
  // In a far network most of a message's time is no CPU's work: taking turns costs the turns alone.
  Tuning tuning;
  tuning.remote.alpha_us = 50;
  tuning.remote.message_us = 0.2;
  GroupTopology own = kTurns;
  own.ranks_per_cpu = 1;
  for (const char* name : {"flat", "dissemination"}) {
    const AlgorithmInfo* algorithm = FindAlgorithm(CollectiveKind::kBarrier, name);
    const double turns = tuning.remote.switch_us * 2 * static_cast<double>(algorithm->cost({.size = 4}).rounds);
    EXPECT_NEAR(PredictMicroseconds(*algorithm, 1, 0, kTurns, tuning),
                PredictMicroseconds(*algorithm, 1, 0, own, tuning) + turns, 1e-9)
        << name;
  }
}

TEST(CostModelTest, PeersOnTheSameHostTakeLess) {
  const AlgorithmInfo* flat = FindAlgorithm(CollectiveKind::kAllToAll, "flat");
  const auto time = [&](const GroupTopology& topology) {
    return PredictMicroseconds(*flat, 1, 1 << 20, topology, Tuning());
  };
  const double apart = time({.size = 8, .nodes = 8, .smallest_node = 1, .largest_node = 1});
  const double in_pairs = time({.size = 8, .nodes = 4, .smallest_node = 2, .largest_node = 2});
  const double halves = time({.size = 8, .nodes = 2, .smallest_node = 4, .largest_node = 4});
  EXPECT_LT(in_pairs, apart);
  EXPECT_LT(halves, in_pairs);
  EXPECT_GT(halves, 4.0 / 7 * apart * 0.99);  // four of seven peers are on the other host
}

TEST(CostModelTest, EachAccessToAnothersMemoryCounts) {
  const GroupTopology four = {.size = 4, .nodes = 1};
  const Tuning tuning;
  const auto time = [&](CollectiveKind kind) {
    return PredictMicroseconds(*FindAlgorithm(kind, "single_copy"), 4, 4, four, tuning);
  };
  // An all-reduce reads from three others and writes to them.
  EXPECT_NEAR(time(CollectiveKind::kAllReduce) - time(CollectiveKind::kBroadcast), 3 * tuning.direct.access_us, 0.01);
}

TEST(CostModelTest, DataBeyondTheCachesTakeLongerPerByte) {
  const AlgorithmInfo* flat = FindAlgorithm(CollectiveKind::kBroadcast, "flat");
  const GroupTopology pair = {.size = 2, .nodes = 1, .ranks_per_cpu = 1.0};
  const Tuning tuning;
  const auto per_byte = [&](int64_t bytes) {
    return PredictMicroseconds(*flat, 1, bytes, pair, tuning) / static_cast<double>(bytes);
  };
  EXPECT_LT(per_byte(tuning.cache_bytes / 2), 0.7 * per_byte(tuning.cache_bytes * 100));
}

TEST(CostModelTest, MessagesTakeTheCheaperWay) {
  const AlgorithmInfo* flat = FindAlgorithm(CollectiveKind::kBroadcast, "flat");
  const GroupTopology pair = {.size = 2, .nodes = 1, .ranks_per_cpu = 1.0};
  Tuning tuning;
  tuning.local.large_us = 1e6;  // never straight
  const double copied = PredictMicroseconds(*flat, 1, 100000, pair, tuning);
  EXPECT_NEAR(copied, tuning.local.alpha_us + 100000 / (tuning.local.copied_gigabytes_s * 1e3), 1e-6);
  EXPECT_LT(PredictMicroseconds(*flat, 1, 100000, pair, Tuning()), copied);
}

}  // namespace
}  // namespace cohort::comm
