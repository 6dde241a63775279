#include "tools/collperf/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/collperf/report.h"

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

TEST(CollperfReport, TheReportTakesCommandsThatAreNoText) {
  const Parsed parsed = Parse({"all_reduce"});
  RunFacts facts;
  facts.command = "collperf --csv b\xff";
  const auto read = nlohmann::json::parse(JsonText(parsed.options, facts, {}), nullptr, false);
  ASSERT_FALSE(read.is_discarded());
  EXPECT_EQ(read["command"], "collperf --csv b\xef\xbf\xbd");
}

TEST(CollperfReport, TheReportShowsTheCostOfDeterminism) {
  const Parsed parsed = Parse({"all_reduce", "--determinism", "order_invariant"});
  ASSERT_FALSE(parsed.ends) << parsed.text;
  const Result dear{.us = {1, 3, 4}, .fast_us = 1.5};
  const Result cheap{.us = {1, 2, 4}, .fast_us = 4};
  const Result uncompared{.us = {1, 2, 4}};
  EXPECT_THAT(HeadText(parsed.options, {}), HasSubstr("x fast"));
  EXPECT_THAT(RowText(parsed.options, dear), HasSubstr(" 2.000 "));
  EXPECT_EQ(DeterminismText(parsed.options, {dear, cheap, uncompared}),
            "# order_invariant takes 1.000 x fast's time (geometric mean of 2 points, 0.500 to 2.000)\n");
  EXPECT_EQ(DeterminismText(parsed.options, {uncompared}), "");
}

TEST(CollperfReport, TheReportHasTheMeanBandwidthOfEachOperation) {
  Result result{.operation = measure::Operation::kAllReduce, .us = {1, 2, 3}};
  std::vector<Result> results;
  for (const double busbw : {1.0, 2.0, 6.0}) {
    result.busbw = busbw;
    results.push_back(result);
  }
  EXPECT_EQ(SummaryText(results), "# Avg bus bandwidth    : 3.000\n");
  result.operation = measure::Operation::kBarrier;  // has none
  result.busbw = 0;
  results.push_back(result);
  EXPECT_EQ(SummaryText(results), "# Avg bus bandwidth    : 3.000\n");
  result.operation = measure::Operation::kAllGather;
  result.busbw = 0.25;
  results.push_back(result);
  EXPECT_EQ(SummaryText(results), "# Avg bus bandwidth    : all_reduce 3.000, all_gather 0.250\n");
  EXPECT_EQ(SummaryText({}), "");
}

TEST(CollperfReport, SaysWhenTheMachineIsBusy) {
  const Result quiet{.operation = measure::Operation::kBarrier, .us = {1, 2, 99}};
  const Result late{.operation = measure::Operation::kBarrier, .us = {1, 2, 101}};
  const Result slow{.operation = measure::Operation::kBarrier, .us = {1, 150, 151}};
  EXPECT_EQ(SummaryText({quiet, quiet}), "");
  EXPECT_EQ(SummaryText({quiet, late}), "");  // not most of them
  EXPECT_THAT(SummaryText({quiet, late, slow}), HasSubstr("# the machine is busy: at 2 of 3 points"));
}

TEST(CollperfReport, CsvRowsHaveTheColumnsOfTheirHead) {
  Result result{.operation = measure::Operation::kAllReduce,
                .transport = "shm",
                .ranks = 4,
                .system = "private",
                .bytes = 1024,
                .count = 256,
                .type = "float32",
                .op = "sum",
                .root = -1,
                .iterations = 10,
                .us = {1, 2, 3},
                .algbw = 0.5,
                .busbw = 0.75,
                .wrong = 0,
                .algorithm = "ring"};
  EXPECT_EQ(CsvText({result}),
            "op,transport,ranks,system,bytes,count,type,redop,root,iters,min_us,median_us,p99_us,algbw_GBps,busbw_GBps,"
            "wrong,algorithm,fast_median_us,flag_least_ns,flag_most_ns,placement,rewritten,messages,compute_us,turns,"
            "window_ratio,private_ratio\n"
            "all_reduce,shm,4,private,1024,256,float32,sum,-1,10,1.0000,2.0000,3.0000,0.500000,0.750000,0,ring,,,,,"
            "false,1,,1,,\n");
  result.flag_before_ns = 160;
  result.flag_after_ns = 45;
  result.placement = "moved";
  EXPECT_THAT(CsvText({result}), HasSubstr(",ring,,45.0,160.0,moved,false,1,"));
  const auto read = nlohmann::json::parse(JsonText(Parse({"all_reduce"}).options, {}, {result, result}));
  EXPECT_EQ(read["results"].size(), 2u);
  EXPECT_EQ(read["results"][1]["flag_most_ns"], 160);
  EXPECT_EQ(read["results"][1]["placement"], "moved");
  EXPECT_TRUE(read["results"][1]["compute_us"].is_null());
}

}  // namespace
}  // namespace cohort::collperf
