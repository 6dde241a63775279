// The selector: what it chooses is the best by its own model, fits the group, and the same on every member.
#include "cohort/comm/select/selector.h"

#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "cohort/comm/algorithm/composition.h"
#include "cohort/comm/select/tuning.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::comm {
namespace {

using testing::HasSubstr;
using testing::Not;

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
          const double weighed = choice->predicted_us / (1 + 1e-9);  // the rest is rounding
          if (choice->runner_up != nullptr) {
            EXPECT_NE(choice->runner_up, choice->algorithm);
            EXPECT_LE(weighed, choice->runner_up_us);
          }
          for (const AlgorithmInfo& algorithm : Algorithms()) {
            if (static_cast<int>(algorithm.kind) != kind || !CheckRequirements(algorithm, size).ok()) continue;
            if (algorithm.traits.single_copy && nodes > 1) continue;  // reaches into memory of one host
            const int32_t pieces = PartsOf(algorithm, size);
            EXPECT_LE(weighed, PredictMicroseconds(algorithm, pieces, bytes, topology, tuning)) << algorithm.name;
          }
        }
      }
    }
  }
}

TEST(SelectorTest, ChoosesTheKnownAlgorithmsOfSmallAndLargeSizes) {
  EXPECT_EQ(Chosen(CollectiveKind::kAllReduce, 8, kOneHost), "flat");
  EXPECT_EQ(Chosen(CollectiveKind::kAllReduce, 8, kTwoHosts), "recursive_doubling");
  EXPECT_NE(Chosen(CollectiveKind::kAllReduce, 64 << 20, kTwoHosts), "recursive_doubling");
  EXPECT_NE(Chosen(CollectiveKind::kAllReduce, 64 << 20, kOneHost), "flat");
  EXPECT_EQ(Chosen(CollectiveKind::kBroadcast, 8, kOneHost), "flat");
  EXPECT_EQ(Chosen(CollectiveKind::kBroadcast, 256 << 20, kTwoHosts), "circulant");
  EXPECT_EQ(Chosen(CollectiveKind::kBarrier, 0, {.size = 64, .nodes = 64, .ranks_per_cpu = 1.0}), "dissemination");
}

TEST(SelectorTest, SendsFewMessagesWhereRanksOverTcpShareCpus) {
  const GroupTopology turns = {.size = 4, .nodes = 4, .smallest_node = 1, .largest_node = 1, .ranks_per_cpu = 2.0};
  EXPECT_EQ(Chosen(CollectiveKind::kBarrier, 0, turns), "dissemination");
  for (const int64_t bytes : {8, 4096}) {
    EXPECT_EQ(Chosen(CollectiveKind::kAllToAll, bytes, turns), "bruck");
    EXPECT_NE(Chosen(CollectiveKind::kAllGather, bytes, turns), "flat");
    EXPECT_NE(Chosen(CollectiveKind::kReduceScatter, bytes, turns), "flat");
  }
}

TEST(SelectorTest, ComposesTwoLevelsWhereHostsHoldSeveralRanks) {
  GroupTopology topology = {.size = 32, .nodes = 4, .smallest_node = 8, .largest_node = 8, .ranks_per_cpu = 1.0};
  for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kBroadcast, CollectiveKind::kAllGather}) {
    for (const int64_t bytes : {8, 65536}) {
      const auto choice = Select(kind, bytes, topology, Tuning());
      ASSERT_TRUE(choice.ok()) << choice.status();
      EXPECT_NE(choice->algorithm->composition, nullptr) << Name(kind) << " " << choice->algorithm->name;
      const NodeShape shape = {4, 8, 8};
      EXPECT_TRUE(CheckRequirements(*choice->algorithm, 32, shape).ok());
      EXPECT_NEAR(choice->predicted_us,
                  PredictMicroseconds(*choice->algorithm, choice->pieces, bytes, topology, Tuning()), 1e-9);
    }
  }
  const auto forced = Select(CollectiveKind::kAllReduce, 8, topology, Tuning(), "shared:flat+ring");
  ASSERT_TRUE(forced.ok()) << forced.status();
  EXPECT_EQ(forced->algorithm->name, "shared:flat+ring");
  EXPECT_EQ(forced->pieces, 32);  // eight parts, in four each
  topology.smallest_node = 7;
  const auto unequal = Select(CollectiveKind::kAllReduce, 8, topology, Tuning(), "shared:flat+ring");
  EXPECT_THAT(std::string(unequal.status().message()), HasSubstr("needs equally many ranks on every host"));
  const auto here = Select(CollectiveKind::kAllReduce, 8, kOneHost, Tuning(), "leader:flat+ring");
  EXPECT_EQ(here.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SelectorTest, SingleCopyIsForOneHostAndHasAFallback) {
  const Tuning tuning;
  EXPECT_EQ(Chosen(CollectiveKind::kAllReduce, 1 << 20, kOneHost), "single_copy");
  EXPECT_NE(Chosen(CollectiveKind::kAllReduce, 1 << 20, kTwoHosts), "single_copy");
  for (const std::string forced : {"", "single_copy"}) {
    const auto choice = Select(CollectiveKind::kAllReduce, 1 << 20, kOneHost, tuning, forced);
    ASSERT_TRUE(choice.ok()) << choice.status();
    ASSERT_NE(choice->fallback, nullptr);
    EXPECT_FALSE(choice->fallback->traits.single_copy);
    EXPECT_GE(choice->fallback_pieces, 1);
  }
  EXPECT_EQ(Select(CollectiveKind::kAllReduce, 8, kTwoHosts, tuning)->fallback, nullptr);
}

TEST(SelectorTest, WindowsAndNearCachesHaveFiguresOfTheirOwn) {
  GroupTopology windows = kOneHost;
  windows.windows = true;
  GroupTopology near = kOneHost;
  near.near_caches = true;
  GroupTopology both = windows;
  both.near_caches = true;
  // Small reductions in windows reach for the others' memory, in private memory that takes a call of the kernel.
  EXPECT_EQ(Chosen(CollectiveKind::kAllReduce, 64 << 10, windows), "single_copy");
  EXPECT_NE(Chosen(CollectiveKind::kReduce, 16 << 10, kOneHost), "single_copy");
  // Nobody reaches for private memory if caches are near, but they still do for windows.
  EXPECT_NE(Chosen(CollectiveKind::kAllReduce, 4 << 20, near), "single_copy");
  EXPECT_EQ(Chosen(CollectiveKind::kAllReduce, 64 << 10, both), "single_copy");
  EXPECT_THAT(ExplainSelection(CollectiveKind::kAllReduce, 4 << 20, near, Tuning()), HasSubstr("in windows only"));
  const auto time = [](const GroupTopology& topology, const char* name, const Tuning& tuning) {
    return PredictMicroseconds(*FindAlgorithm(CollectiveKind::kAllReduce, name), 4, 4 << 20, topology, tuning);
  };
  Tuning slow;
  slow.window.direct.uncached_gigabytes_s = 0.1;
  EXPECT_GT(time(windows, "single_copy", slow), 2 * time(windows, "single_copy", Tuning()));
  EXPECT_EQ(time(kOneHost, "single_copy", slow), time(kOneHost, "single_copy", Tuning()));
  slow = Tuning();
  slow.near.copied_gigabytes_s = slow.near.gigabytes_s = slow.near.uncached_gigabytes_s = 0.1;
  EXPECT_GT(time(near, "ring", slow), 2 * time(near, "ring", Tuning()));
  EXPECT_EQ(time(both, "ring", slow), time(both, "ring", Tuning()));
}

// The same bits wherever buffers lie, also after a window.
TEST(SelectorTest, ReproducibleCallsDontDependOnWindows) {
  const Demands reproducible = {.built_in = true};
  for (const bool near : {false, true}) {
    GroupTopology topology = {.size = 4, .nodes = 1, .ranks_per_cpu = 2, .near_caches = near};
    Selector before(topology, Tuning());
    topology.windows = true;
    Selector after(topology, Tuning());
    for (const int64_t bytes : {8, 4096, 65536, 1 << 20, 16 << 20}) {
      const auto one = before.Choose(CollectiveKind::kAllReduce, bytes, {}, reproducible);
      const auto other = after.Choose(CollectiveKind::kAllReduce, bytes, {}, reproducible);
      ASSERT_TRUE(one.ok() && other.ok());
      EXPECT_EQ(one->algorithm, other->algorithm);
      EXPECT_EQ(one->pieces, other->pieces);
      EXPECT_THAT(after.Explain(CollectiveKind::kAllReduce, bytes, reproducible),
                  HasSubstr("* " + std::string(other->algorithm->name)));
      if (near) {
        EXPECT_FALSE(one->algorithm->traits.single_copy);
      }
    }
  }
}

TEST(SelectorTest, GathersSmallBlocksByMessages) {
  const GroupTopology pair = {.size = 2, .nodes = 1, .ranks_per_cpu = 1.0};
  EXPECT_NE(Chosen(CollectiveKind::kGather, 4096, pair), "single_copy");
  EXPECT_EQ(Chosen(CollectiveKind::kGather, 256 << 10, pair), "single_copy");
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

TEST(SelectorTest, MemoryServesManySizesAndForcedNames) {
  Selector selector(kOneHost, Tuning());
  std::mt19937 random(5);
  std::vector<int64_t> sizes(700);
  for (int64_t& bytes : sizes) bytes = static_cast<int64_t>(random() % (1 << 24));
  for (int round = 0; round < 8; ++round) {
    for (const int64_t bytes : sizes) {
      // The name's memory is gone after the call.
      std::string name = round % 2 == 0 ? "ring" : "";
      const auto remembered = selector.Choose(CollectiveKind::kAllReduce, bytes, name);
      const auto fresh = Select(CollectiveKind::kAllReduce, bytes, kOneHost, Tuning(), name);
      ASSERT_TRUE(remembered.ok() && fresh.ok());
      ASSERT_EQ(remembered->algorithm, fresh->algorithm) << bytes;
      ASSERT_EQ(remembered->pieces, fresh->pieces) << bytes;
      name.assign(name.size(), 'x');
    }
  }
}

TEST(SelectorTest, ExplainsRunnerUpAndFallback) {
  for (int kind = 1; kind < static_cast<int>(CollectiveKind::kBarrier); ++kind) {
    for (const int64_t bytes : {int64_t{8}, int64_t{1} << 20}) {
      const std::string text = ExplainSelection(static_cast<CollectiveKind>(kind), bytes, kOneHost, Tuning());
      EXPECT_THAT(text, HasSubstr(" us, the runner-up")) << text;
    }
  }
  EXPECT_THAT(ExplainSelection(CollectiveKind::kAllReduce, 1 << 20, kOneHost, Tuning()),
              HasSubstr("where members can't reach each other's memory"));
  EXPECT_THAT(ExplainSelection(CollectiveKind::kAllReduce, 1 << 20, kTwoHosts, Tuning()),
              HasSubstr("single_copy: on one host only"));
  EXPECT_THAT(ExplainSelection(CollectiveKind::kAllReduce, 8, kOneHost, Tuning(), {.rank_order = true}),
              HasSubstr("ring: combines in another order"));
}

TEST(SelectorTest, ExplainsEveryAlternative) {
  const GroupTopology six = {.size = 6, .nodes = 1, .ranks_per_cpu = 1.0};
  const std::string text = ExplainSelection(CollectiveKind::kAllGather, 1024, six, Tuning());
  for (const char* name : {"flat", "ring", "circulant", "power of two", "* "}) EXPECT_THAT(text, HasSubstr(name));
}

TEST(SelectorTest, ExplanationsCountInEnglishAndFitIntoLines) {
  const GroupTopology alone = {.size = 1, .nodes = 1, .ranks_per_cpu = 1.0};
  const Tuning tuning = *Tuning::Parse("local.alpha_us=0.25 remote.alpha_us=33 all_reduce:1M-=ring");
  const std::string text = ExplainSelection(CollectiveKind::kAllReduce, 1, alone, tuning);
  EXPECT_THAT(text, HasSubstr("all_reduce of 1 byte among 1 rank on 1 host, "));
  EXPECT_THAT(text, HasSubstr(" 1 piece "));
  EXPECT_THAT(text, Not(HasSubstr(" 1 pieces")));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
  // The printed text is the table still.
  const auto again = Tuning::Parse(text.substr(text.find("table: ") + 7));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->Hash(), tuning.Hash());
}

TEST(TuningTest, TuningReadsBackAsTheSameTable) {
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

// Random tables, written with random spelling: what is printed reads back as the same table.
TEST(TuningTest, PrintedTablesReadBack) {
  std::mt19937 random(7);
  const auto pick = [&](auto bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  int twice = 0;
  for (int trial = 0; trial < 500; ++trial) {
    std::string text;
    for (int64_t item = pick(8); item > 0; --item) {
      const AlgorithmInfo& algorithm = Algorithms()[static_cast<size_t>(pick(Algorithms().size()))];
      const int64_t from = pick(5000) << pick(30);
      const char* const levels[] = {"", "@local", "@remote"};
      const char* const separators[] = {";", "; ", ",", "\n", " "};
      switch (pick(3)) {
        case 0:
          text += "remote.alpha_us=" + std::to_string(1 + pick(1000)) + "." + std::to_string(pick(1000));
          break;
        case 1:
          text += std::string(Name(algorithm.kind)) + ":*=" + std::string(algorithm.name);
          break;
        default:
          text += std::string(Name(algorithm.kind)) + ":" + std::to_string(from) + "-" +
                  (pick(2) == 0 ? "" : std::to_string(from + 1 + pick(1 << 20))) + "=" + std::string(algorithm.name) +
                  levels[pick(3)];
      }
      text += separators[pick(5)];
    }
    const auto tuning = Tuning::Parse(text);
    if (!tuning.ok() && std::string(tuning.status().message()).find("is given twice") != std::string::npos) {
      ++twice;
      continue;
    }
    ASSERT_TRUE(tuning.ok()) << text << ": " << tuning.status();
    const auto again = Tuning::Parse(tuning->ToString());
    ASSERT_TRUE(again.ok()) << tuning->ToString() << ": " << again.status();
    ASSERT_EQ(again->ToString(), tuning->ToString());
    ASSERT_EQ(again->Hash(), tuning->Hash());
  }
  EXPECT_LT(twice, 300);
}

TEST(TuningTest, TakesAKeyOnce) {
  const auto message = [](const char* text) { return std::string(Tuning::Parse(text).status().message()); };
  EXPECT_THAT(message("max_pieces=8\nlocal.switch_us=1; max_pieces=8"),
              HasSubstr("position 33: max_pieces is given twice, in line 1 and in line 2; keep one of them"));
  EXPECT_THAT(message("all_reduce:0-1K=ring@local all_reduce:0-1024=flat@local"),
              HasSubstr("all_reduce:0-1K@local is given twice"));
  EXPECT_EQ(message("all_reduce:0-1K=ring@local all_reduce:0-1K=ring@remote all_reduce:0-2K=ring all_gather:0-1K=ring"),
            "");
  // Another table's are replaced.
  const auto base = Tuning::Parse("max_pieces=8 all_reduce:*=flat all_gather:*=ring");
  ASSERT_TRUE(base.ok());
  const auto both = Tuning::Parse("max_pieces=9 all_reduce:*=ring", *base);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT(both->ToString(), HasSubstr("max_pieces=9; all_gather:*=ring; all_reduce:*=ring"));
  EXPECT_TRUE(Tuning::Parse(both->ToString()).ok());
}

TEST(TuningTest, RulesDecideOverThePredictedTime) {
  const auto tuning =
      Tuning::Parse("all_reduce:*=circulant; all_reduce:0-4K=binomial@remote, all_gather:*=recursive_doubling");
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  const auto chosen = [&](CollectiveKind kind, int64_t bytes, const GroupTopology& topology) {
    const auto choice = Select(kind, bytes, topology, *tuning);
    EXPECT_TRUE(choice.ok()) << choice.status();
    return std::string(choice->algorithm->name);
  };
  EXPECT_EQ(chosen(CollectiveKind::kAllReduce, 8, kOneHost), "circulant");
  EXPECT_EQ(chosen(CollectiveKind::kAllReduce, 4095, kTwoHosts), "binomial");
  EXPECT_EQ(chosen(CollectiveKind::kAllReduce, 4096, kTwoHosts), "circulant");
  EXPECT_EQ(chosen(CollectiveKind::kAllGather, 64, kTwoHosts), "recursive_doubling");
  const GroupTopology six = {.size = 6, .nodes = 1, .ranks_per_cpu = 1.0};
  EXPECT_NE(chosen(CollectiveKind::kAllGather, 64, six), "recursive_doubling");  // can't serve six
  EXPECT_TRUE(Select(CollectiveKind::kAllReduce, 8, kOneHost, *tuning)->ruled);
  EXPECT_EQ(Select(CollectiveKind::kAllReduce, 8, kOneHost, *tuning)->runner_up->name, "flat");
  EXPECT_THAT(ExplainSelection(CollectiveKind::kAllReduce, 8, kOneHost, *tuning),
              HasSubstr("all_reduce:0-4K=binomial@remote"));
}

TEST(TuningTest, NamesPositionAndRemedy) {
  const auto message = [](const char* text) {
    const auto tuning = Tuning::Parse(text);
    EXPECT_EQ(tuning.status().code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(tuning.status().message());
  };
  EXPECT_THAT(message("local.switch_us=1; all_reduce:*=rings"), HasSubstr("position 33"));
  EXPECT_THAT(message("all_reduce:*=rings"), HasSubstr("choose one of flat"));
  EXPECT_THAT(message("allreduce:*=ring"), HasSubstr("no collective is called"));
  EXPECT_THAT(message("all_reduce:4=ring"), HasSubstr("4K-1M"));
  EXPECT_THAT(message("all_reduce:4K-1K=ring"), HasSubstr("empty"));
  EXPECT_THAT(message("all_reduce:*=ring@host"), HasSubstr("local or remote"));
  for (const char* text :
       {"all_reduce:-4K=ring", "all_reduce:0-9999999999G=ring", "send:*=flat", ":=", "x:y", "a:b=c"}) {
    message(text);
  }
}

TEST(TuningTest, RefusesUnknownKeysAndBadValues) {
  for (const char* text : {"alpha=1", "max_pieces", "max_pieces=0", "max_pieces=-3", "max_pieces=1x", "switch_us=nan",
                           "local.switch_us=inf", "max_pieces=99999999999999", "fanout_bytes=", "="}) {
    EXPECT_EQ(Tuning::Parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(Tuning::Parse("alpha=1").status().message()), HasSubstr("local.alpha_us"));
}

}  // namespace
}  // namespace cohort::comm
