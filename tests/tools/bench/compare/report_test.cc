#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/bench/compare/compare.h"
#include "tools/bench/compare/compare_report.h"

namespace cohort::bench {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

PointResult Point(double ours, double openmpi, double mpich) {
  PointResult point{.transport = Transport::kSharedMemory,
                    .ranks = 2,
                    .operation = measure::Operation::kAllReduce,
                    .bytes = 64 << 10,
                    .contestants = {}};
  const auto add = [&point](const std::string& name, bool is_ours, bool ucx, double us) {
    point.contestants.push_back({.name = name,
                                 .ours = is_ours,
                                 .uses_ucx = ucx,
                                 .medians_us = {us, 2 * us, us},
                                 .median_us = us,
                                 .p99_us = 3 * us});
  };
  add("window", true, false, ours);
  add("openmpi", false, false, openmpi);
  add("mpich", false, true, mpich);
  return point;
}

TEST(Comparison, RatiosAreThoseOfEachAlternation) {
  const PointResult point = Point(1, 10, 20);
  EXPECT_DOUBLE_EQ(Ratio(point.Find("window"), point.Find("mpich")), 0.05);
  EXPECT_EQ(point.BestPeer()->name, "openmpi");
  EXPECT_EQ(point.BestPeer(true)->name, "mpich");
  EXPECT_EQ(point.Find("private"), nullptr);
  EXPECT_DOUBLE_EQ(Ratio(nullptr, point.Find("mpich")), 0);
}

TEST(Comparison, OverTcpTheBestOfAllPeersCountsBesideTheBestThatUsesUcx) {
  PointResult point = Point(10, 10, 20);
  point.transport = Transport::kTcp;
  point.contestants[0].name = "private";
  const std::string targets = TargetTable({point});
  EXPECT_THAT(targets, ContainsRegex("best ucx peer, geometric mean of 1 +0.50 x"));
  EXPECT_THAT(targets, ContainsRegex("best peer, geometric mean of 1 +1.00 x"));
}

TEST(Comparison, TargetsAreMetOrMissedAndOthersAreNotNamed) {
  const std::string met = TargetTable({Point(1, 10, 20)});
  EXPECT_THAT(met, HasSubstr("all_reduce 64 KiB, 2 ranks, one host, window memory"));
  EXPECT_THAT(met, HasSubstr("0.10 x   <= 0.20 x  met"));
  EXPECT_THAT(met, Not(HasSubstr("MISSED")));
  EXPECT_THAT(met, Not(HasSubstr("32 MiB")));
  EXPECT_THAT(TargetTable({Point(20, 10, 20)}), HasSubstr("MISSED"));
}

TEST(Comparison, RowsNameTheBestPeerAndWrongResults) {
  PointResult point = Point(1, 10, 20);
  EXPECT_THAT(PointRow(point), HasSubstr("best openmpi: 0.10"));
  EXPECT_THAT(PointRow(point), Not(HasSubstr("WRONG")));
  point.contestants[2].wrong = 7;
  EXPECT_THAT(PointRow(point), HasSubstr("WRONG: mpich 7"));
  EXPECT_THAT(ComparisonCsv({point}), HasSubstr("shm,2,all_reduce,65536,mpich,20.0000,60.0000,7,0.0500,0.0000"));
}

}  // namespace
}  // namespace cohort::bench
