// The selector: what it chooses is the best by its own model, fits the group, and the same on every member.
#include "comm/selector.h"

#include <string>
#include <vector>

#include "comm/tuning.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::comm {
namespace {

using testing::HasSubstr;

const GroupTopology kOneHost = {.size = 4, .nodes = 1, .ranks_per_cpu = 1.0};
const GroupTopology kTwoHosts = {.size = 8, .nodes = 2, .ranks_per_cpu = 1.0};

std::string Chosen(CollectiveKind kind, int64_t bytes, const GroupTopology& topology) {
  const auto choice = Select(kind, bytes, topology, Tuning());
  EXPECT_TRUE(choice.ok()) << choice.status();
  return choice.ok() ? std::string(choice->algorithm->name) : "";
}

TEST(SelectorTest, ChoosesTheLeastPredictedTimeAndFits) {
  const Tuning tuning;
  for (int kind = 1; kind <= static_cast<int>(CollectiveKind::kBarrier); ++kind) {
    for (const int size : {1, 2, 3, 6, 16, 100, 4096}) {
      for (const int nodes : {1, 2}) {
        for (int64_t bytes = 0; bytes <= int64_t{1} << 40; bytes = bytes * 33 + 1) {
          const GroupTopology topology = {.size = size, .nodes = nodes, .ranks_per_cpu = 1.0};
          const auto choice = Select(static_cast<CollectiveKind>(kind), bytes, topology, tuning);
          ASSERT_TRUE(choice.ok()) << choice.status();
          ASSERT_TRUE(CheckRequirements(*choice->algorithm, size).ok());
          EXPECT_GE(choice->pieces, 1);
          if (choice->runner_up != nullptr) {
            EXPECT_NE(choice->runner_up, choice->algorithm);
            EXPECT_LE(choice->predicted_us, choice->runner_up_us);
          }
          for (const AlgorithmInfo& algorithm : Algorithms()) {
            if (static_cast<int>(algorithm.kind) != kind || !CheckRequirements(algorithm, size).ok()) continue;
            const int32_t pieces = PartsOf(algorithm, size);
            EXPECT_LE(choice->predicted_us, PredictMicroseconds(algorithm, pieces, bytes, topology, tuning))
                << algorithm.name;
          }
        }
      }
    }
  }
}

TEST(SelectorTest, KnowsTheLandmarks) {
  EXPECT_EQ(Chosen(CollectiveKind::kAllReduce, 8, kOneHost), "flat");
  EXPECT_EQ(Chosen(CollectiveKind::kAllReduce, 8, kTwoHosts), "recursive_doubling");
  EXPECT_NE(Chosen(CollectiveKind::kAllReduce, 64 << 20, kTwoHosts), "recursive_doubling");
  EXPECT_NE(Chosen(CollectiveKind::kAllReduce, 64 << 20, kOneHost), "flat");
  EXPECT_EQ(Chosen(CollectiveKind::kBroadcast, 8, kOneHost), "flat");
  EXPECT_EQ(Chosen(CollectiveKind::kBroadcast, 256 << 20, kTwoHosts), "chain");
  EXPECT_EQ(Chosen(CollectiveKind::kBarrier, 0, {.size = 64, .nodes = 64, .ranks_per_cpu = 1.0}), "dissemination");
}

TEST(SelectorTest, CutsLargeBlocksOfPipelinedAlgorithms) {
  const Tuning tuning;
  const auto large = Select(CollectiveKind::kBroadcast, 256 << 20, kTwoHosts, tuning, "chain");
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_GT(large->pieces, 1);
  EXPECT_LE(large->pieces, tuning.max_pieces);
  const auto small = Select(CollectiveKind::kBroadcast, 1000, kTwoHosts, tuning, "chain");
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->pieces, 1);
}

TEST(SelectorTest, ForcedAlgorithmsAreValidated) {
  const Tuning tuning;
  const auto ring = Select(CollectiveKind::kAllReduce, 8, kOneHost, tuning, "ring");
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(ring->algorithm->name, "ring");
  EXPECT_EQ(ring->pieces, kOneHost.size);

  const auto unknown = Select(CollectiveKind::kAllReduce, 8, kOneHost, tuning, "rings");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("no algorithm \"rings\""));
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("flat, recursive_doubling, direct, ring"));

  const GroupTopology six = {.size = 6, .nodes = 1, .ranks_per_cpu = 1.0};
  const auto unfit = Select(CollectiveKind::kAllGather, 8, six, tuning, "recursive_doubling");
  EXPECT_EQ(unfit.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unfit.status().message()), HasSubstr("power of two of ranks, and this group has 6"));

  EXPECT_EQ(Select(CollectiveKind::kSend, 8, six, tuning).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(SelectorTest, MemoryGivesTheSameChoices) {
  Selector selector(kTwoHosts, Tuning());
  for (int round = 0; round < 2; ++round) {
    for (int64_t bytes = 0; bytes < 100000; bytes = bytes * 3 + 1) {
      for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kBroadcast}) {
        const auto remembered = selector.Choose(kind, bytes);
        const auto fresh = Select(kind, bytes, kTwoHosts, Tuning());
        ASSERT_TRUE(remembered.ok() && fresh.ok());
        EXPECT_EQ(remembered->algorithm, fresh->algorithm);
        EXPECT_EQ(remembered->pieces, fresh->pieces);
      }
    }
  }
  EXPECT_EQ(selector.Choose(CollectiveKind::kAllReduce, 8, "ring")->algorithm->name, "ring");
  EXPECT_FALSE(selector.Choose(CollectiveKind::kAllReduce, 8, "nonsense").ok());
}

TEST(SelectorTest, ExplainsEveryAlternative) {
  const GroupTopology six = {.size = 6, .nodes = 1, .ranks_per_cpu = 1.0};
  const std::string text = ExplainSelection(CollectiveKind::kAllGather, 1024, six, Tuning());
  for (const char* name : {"flat", "ring", "circulant", "power of two", "* "}) EXPECT_THAT(text, HasSubstr(name));
}

TEST(TuningTest, TextReadsBackAsTheSameTable) {
  auto tuning = Tuning::Parse("remote.alpha_us=21.5, max_pieces=8\nlocal.gigabytes_s=0.1");
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  EXPECT_EQ(tuning->remote.alpha_us, 21.5);
  EXPECT_EQ(tuning->max_pieces, 8);
  const auto again = Tuning::Parse(tuning->ToString());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->ToString(), tuning->ToString());
  EXPECT_EQ(again->Hash(), tuning->Hash());
  EXPECT_NE(tuning->Hash(), Tuning().Hash());
}

TEST(TuningTest, RefusesWhatItDoesNotKnow) {
  for (const char* text : {"alpha=1", "max_pieces", "max_pieces=0", "max_pieces=-3", "max_pieces=1x", "switch_us=nan",
                           "switch_us=inf", "max_pieces=99999999999999", "fanout_bytes=", "="}) {
    EXPECT_EQ(Tuning::Parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(Tuning::Parse("alpha=1").status().message()), HasSubstr("local.alpha_us"));
}

}  // namespace
}  // namespace cohort::comm
