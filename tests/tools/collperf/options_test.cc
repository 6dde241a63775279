#include "tools/collperf/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cohort::collperf {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Parsed Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "collperf");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

TEST(CollperfOptions, OptionsOfNcclTestsAreTaken) {
  const Parsed parsed = Parse({"all_reduce", "-b", "8", "-e", "4K", "-f", "8", "-n", "20", "-w", "5", "-c", "0", "-d",
                               "half", "-o", "max", "-r", "1"});
  ASSERT_FALSE(parsed.ends) << parsed.text;
  const Options& options = parsed.options;
  EXPECT_THAT(options.operations, ElementsAre(measure::Operation::kAllReduce));
  EXPECT_THAT(options.sizes, ElementsAre(8, 64, 512, 4096));
  EXPECT_EQ(options.iterations, 20);
  EXPECT_EQ(options.warmup, 5);
  EXPECT_FALSE(options.check);
  EXPECT_EQ(options.types.at(0).dtype, comm::DataType::kFloat16);
  EXPECT_EQ(options.ops.at(0).op, comm::ReduceOp::kMax);
  EXPECT_EQ(options.root, 1);
}

TEST(CollperfOptions, SizesMayBeStepsAndAllMeansEveryType) {
  const Parsed parsed = Parse({"all", "-b", "1K", "-e", "3K", "-i", "1K", "-d", "all", "-o", "all"});
  ASSERT_FALSE(parsed.ends) << parsed.text;
  EXPECT_EQ(parsed.options.operations.size(), static_cast<size_t>(measure::kOperations));
  EXPECT_THAT(parsed.options.sizes, ElementsAre(1024, 2048, 3072));
  EXPECT_THAT(Parse({"all", "--bytes", "4K,8,64,8"}).options.sizes, ElementsAre(8, 64, 4096));
  EXPECT_GE(parsed.options.types.size(), 12u);
  EXPECT_GE(parsed.options.ops.size(), 5u);
}

TEST(CollperfOptions, DeviceMemoryIsForOperationsWithBuffers) {
  EXPECT_EQ(Parse({"all"}).options.memory, comm::MemoryKind::kHost);
  const Parsed parsed = Parse({"all", "--memory", "cuda", "--in-place", "--batch", "5"});
  ASSERT_FALSE(parsed.ends) << parsed.text;
  EXPECT_EQ(parsed.options.memory, comm::MemoryKind::kCuda);
  EXPECT_EQ(parsed.options.operations.size(), static_cast<size_t>(measure::kOperations) - 1);
  EXPECT_THAT(parsed.options.operations, ::testing::Not(::testing::Contains(measure::Operation::kBarrier)));
  EXPECT_FALSE(Parse({"send_recv", "--memory", "cuda", "--algorithm", "staged"}).ends);
}

TEST(CollperfOptions, ComparisonsMeasureAllCollectivesUnlessTold) {
  const Parsed parsed = Parse({"--peers", "openmpi,mpich", "--quick"});
  ASSERT_FALSE(parsed.ends) << parsed.text;
  EXPECT_EQ(parsed.options.operations, measure::Collectives());
  EXPECT_EQ(parsed.options.sizes.size(), 6u);
  EXPECT_THAT(parsed.options.peers, ElementsAre("openmpi", "mpich"));
  EXPECT_THAT(parsed.options.ranks, ElementsAre(2, 4, 8));
  EXPECT_EQ(parsed.options.transport, "shm,tcp");
  EXPECT_EQ(parsed.options.point_ms, 50);
  const Parsed told = Parse({"broadcast", "--bytes", "8", "--peers", "none", "--ranks", "2", "3", "--turns", "1"});
  ASSERT_FALSE(told.ends) << told.text;
  EXPECT_THAT(told.options.operations, ElementsAre(measure::Operation::kBroadcast));
  EXPECT_THAT(told.options.ranks, ElementsAre(2, 3));
}

TEST(CollperfOptions, ListsOfSizesAlwaysEnd) {
  const auto sizes = [](std::vector<const char*> arguments) { return Parse(arguments).options.sizes; };
  EXPECT_EQ(sizes({"all_reduce", "-b", "9000000000000000000", "-e", "9223372036854775807"}).size(), 1u);
  EXPECT_EQ(sizes({"all_reduce", "-b", "9000000000000000000", "-e", "9223372036854775807", "-i", "9223372036854775807"})
                .size(),
            1u);
  EXPECT_THAT(Parse({"all_reduce", "-e", "1T", "-i", "1"}).text, HasSubstr("take a larger -i or -f"));
  EXPECT_THAT(Parse({"all_reduce", "-f", "nan"}).text, HasSubstr("--stepfactor: needs a number from"));
}

TEST(CollperfOptions, HelpHasExamples) {
  const Parsed parsed = Parse({"--help"});
  EXPECT_TRUE(parsed.ends);
  EXPECT_EQ(parsed.code, 0);
  EXPECT_THAT(parsed.text, HasSubstr("dlaunch --nproc-per-node 2 collperf all_reduce"));
}

TEST(CollperfOptions, RefusesWithTheRemedy) {
  const struct {
    std::vector<const char*> arguments;
    std::string says;
  } cases[] = {
      {{}, "name the operation"},
      {{"allreduce"}, "all_reduce"},
      {{"all_reduce", "-b", "x"}, "128M"},
      {{"all_reduce", "-b", "1M", "-e", "1K"}, "is less than -b"},
      {{"all_reduce", "-e", "2", "-b", "1"}, "less than one float32"},
      {{"all_reduce", "-d", "float128"}, "float32"},
      {{"all_reduce", "-o", "average"}, "avg"},
      {{"all_reduce", "--determinism", "slow"}, "reproducible"},
      {{"all_reduce", "-f", "1"}, "--stepfactor"},
      {{"all_reduce", "-n", "-3"}, "--iters"},
      {{"all_reduce", "--no-such"}, "--no-such"},
      {{"all_reduce", "-g", "1"}, "collperf: not expected: -g 1\nTry collperf --help.\n"},
      {{"all_reduce", "--csv", ""}, "--csv: needs the name of a file"},
      {{"all_reduce", "--json", ""}, "--json: needs the name of a file"},
      {{"all_reduce", "--plot", ""}, "--plot: needs the name of a file"},
      {{"all_reduce", "--algorithm", ""}, "--algorithm: needs the name"},
      {{"--algorithm", "ring"}, "such as all_reduce, which has "},
      {{"--cost", "--algorithm", "ring"}, "such as all_reduce, which has "},
      {{"all_reduce", "--algorithm", "foo"}, "--algorithm foo: all_reduce has flat, recursive_doubling, "},
      {{"all_reduce", "--memory", "gpu"}, "there are host and cuda"},
      {{"all_reduce", "--memory", "cuda", "--window"}, "--memory cuda and --window: "},
      {{"all_reduce", "--memory", "cuda", "--rewrite"}, "--memory cuda and --rewrite: "},
      {{"send_recv", "--memory", "cuda", "--messages", "2"}, "--memory cuda and --messages: "},
      {{"--memory", "cuda", "--cost"}, "--memory cuda and --cost: "},
      {{"--memory", "cuda", "--calibrate"}, "--memory cuda and --calibrate: "},
      {{"all_reduce", "--memory", "cuda", "--transport", "shm"}, "--memory cuda and --transport: "},
      {{"all_reduce", "--memory", "cuda", "--algorithm", "ring"}, "--memory cuda and --algorithm ring: "},
      {{"barrier", "--memory", "cuda"}, "--memory cuda and barrier: "},
      {{"all_reduce,broadcast", "--algorithm", "ring"}, "--algorithm ring: broadcast has "},
      {{"all_reduce", "--ranks", "2"}, "--peers"},
      {{"all_reduce", "--peers", "all", "--window"}, "--window"},
      {{"all_reduce", "--peers", "all", "--bytes", "6"}, "6 B are no block of whole float32"},
      {{"all_reduce", "--each-algorithm", "--algorithm", "ring"}, "--algorithm"},
  };
  for (const auto& test : cases) {
    const Parsed parsed = Parse(test.arguments);
    EXPECT_TRUE(parsed.ends);
    EXPECT_EQ(parsed.code, 2);
    EXPECT_THAT(parsed.text, HasSubstr(test.says));
  }
}

TEST(CollperfOptions, MessagesAreShortWhateverWasTyped) {
  const std::string number(309, '9');
  for (const char* option : {"-r", "-n", "-w", "-f", "-c", "--batch", "--messages", "--point-ms", "--algorithm"}) {
    for (const std::string& value : {number, "-" + number}) {
      const Parsed parsed = Parse({"all_reduce", option, value.c_str()});
      EXPECT_TRUE(parsed.ends) << option;
      EXPECT_LT(parsed.text.size(), 300u) << parsed.text;
    }
  }
}

}  // namespace
}  // namespace cohort::collperf
