#include "tools/collperf/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/collperf/options.h"

namespace cohort::collperf {
namespace {

using ::testing::HasSubstr;

TEST(CollperfReport, TheReportTakesCommandsThatAreNoText) {
  RunFacts facts;
  facts.command = "collperf --csv b\xff";
  const auto read = nlohmann::json::parse(JsonText({}, facts, {}), nullptr, false);
  ASSERT_FALSE(read.is_discarded());
  EXPECT_EQ(read["command"], "collperf --csv b\xef\xbf\xbd");
}

TEST(CollperfReport, TheReportShowsTheCostOfDeterminism) {
  Options options;
  options.operations = {measure::Operation::kAllReduce};
  options.determinism = comm::Determinism::kOrderInvariant;
  const Result dear{.us = {1, 3, 4}, .fast_us = 1.5};
  const Result cheap{.us = {1, 2, 4}, .fast_us = 4};
  const Result uncompared{.us = {1, 2, 4}};
  EXPECT_THAT(HeadText(options, {}), HasSubstr("x fast"));
  EXPECT_THAT(RowText(options, dear), HasSubstr(" 2.000 "));
  EXPECT_EQ(DeterminismText(options, {dear, cheap, uncompared}),
            "# order_invariant takes 1.000 x fast's time (geometric mean of 2 points, 0.500 to 2.000)\n");
  EXPECT_EQ(DeterminismText(options, {uncompared}), "");
}

TEST(CollperfReport, ColumnsStandBelowTheirNamesAndAreNeverCut) {
  Options options;
  options.operations = {measure::Operation::kAllReduce};
  const std::string head = HeadText(options, {});
  const std::string names = head.substr(head.rfind('\n', head.size() - 2) + 1);
  Result result{.operation = measure::Operation::kAllReduce,
                .type = "float32",
                .op = "sum",
                .us = {1, 2, 3},
                .algorithm = std::string(400, 'a')};
  const std::string row = RowText(options, result);
  EXPECT_EQ(row.find("float32"), names.find("type"));
  EXPECT_EQ(row.find("sum"), names.find("redop"));
  EXPECT_EQ(row.find("2.00") + 4, names.find("time us") + 7);
  EXPECT_EQ(row.find("3.00") + 4, names.find("p99 us") + 6);
  EXPECT_EQ(row.find(result.algorithm + "\n"), names.find("algorithm"));
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
  const auto read = nlohmann::json::parse(JsonText({}, {}, {result, result}));
  EXPECT_EQ(read["results"].size(), 2u);
  EXPECT_EQ(read["results"][1]["flag_most_ns"], 160);
  EXPECT_EQ(read["results"][1]["placement"], "moved");
  EXPECT_TRUE(read["results"][1]["compute_us"].is_null());
}

}  // namespace
}  // namespace cohort::collperf
