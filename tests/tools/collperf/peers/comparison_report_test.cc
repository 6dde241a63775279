#include "tools/collperf/peers/comparison_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/collperf/peers/targets.h"
#include "tools/collperf/peers/turns.h"
#include "tools/collperf/report.h"

namespace cohort::collperf {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

const SystemEntry kOurs{.name = "cohort", .role = Role::kOurs};
const SystemEntry kPeer{.name = "peer"};
const SystemEntry kUcxPeer{.name = "ucx", .uses_ucx = true};
const SystemEntry kFloor{.name = "bare", .role = Role::kFloor};

PointResult Point(double ours, double openmpi, double mpich) {
  PointResult point;
  point.transport = Transport::kSharedMemory;
  point.ranks = 2;
  point.operation = measure::Operation::kAllReduce;
  point.bytes = 64 << 10;
  const auto add = [&point](const std::string& name, const SystemEntry& system, double us) {
    point.contestants.push_back({.name = name,
                                 .system = &system,
                                 .turns = {{.median_us = us}, {.median_us = 2 * us}, {.median_us = us}},
                                 .median_us = us,
                                 .p99_us = 3 * us});
  };
  add("window", kOurs, ours);
  add("openmpi", kPeer, openmpi);
  add("mpich", kUcxPeer, mpich);
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

TEST(Comparison, TcpTargetsNameTheBestPeerAndTheBestUcxPeer) {
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
  EXPECT_THAT(CsvText(ResultsOf({point})),
              HasSubstr("all_reduce,shm,2,mpich,65536,0,,,-1,,,20.0000,60.0000,,,7,,,,,,false,1,,3,0.0500,\n"));
}

// Being quicker than all systems is no merit of its own: it does none of their other work.
TEST(Comparison, TheBarePairIsNoPeer) {
  PointResult point = Point(3, 10, 20);
  Contestant bare = *point.Find("openmpi");
  bare.name = "bare-window";
  bare.system = &kFloor;
  for (Turn& turn : bare.turns) turn.median_us /= 5;
  bare.median_us = 2;
  point.contestants.push_back(bare);
  EXPECT_EQ(point.BestPeer()->name, "openmpi");
  EXPECT_THAT(PointRow(point), ContainsRegex("best openmpi: 0.30 - .. bare-window +2.00 1.50 0.20"));
  EXPECT_THAT(TargetTable({point}), HasSubstr("the bare pair at 1 points: 0.20 x the best peer"));
  EXPECT_THAT(TargetTable({point}), HasSubstr("ours takes 1.50 x that"));
}

Turn At(double us, double before_ns, double after_ns) {
  return {.median_us = us, .flag_before_ns = before_ns, .flag_after_ns = after_ns};
}

// Near twice for us and three times for the peer, so the far turn and the one during which the CPUs moved do not count.
TEST(Comparison, TurnsCompareWithinOnePlacement) {
  PointResult point = Point(1, 10, 20);
  point.contestants.pop_back();
  point.contestants[0].turns = {At(1, 45, 45), At(7, 160, 160), At(3, 45, 45)};
  point.contestants[1].turns = {At(2, 45, 45), At(1, 45, 45), At(100, 45, 160)};
  CountOnePlacement(false, &point);
  EXPECT_EQ(point.placement, "near");
  EXPECT_DOUBLE_EQ(point.contestants[0].median_us, 2);
  EXPECT_DOUBLE_EQ(point.contestants[1].median_us, 1.5);
  EXPECT_DOUBLE_EQ(Ratio(&point.contestants[0], &point.contestants[1]), 0.5);
  EXPECT_THAT(PointRow(point), HasSubstr("| near, 4 of 6 turns"));
  EXPECT_THAT(CsvText(ResultsOf({point})), HasSubstr(",45.0,45.0,near,false,1,,2,,\n"));

  CountOnePlacement(true, &point);
  EXPECT_DOUBLE_EQ(point.contestants[0].median_us, 3);
}

TEST(Comparison, APeerWithoutATurnInThePlacementIsNotTheBest) {
  PointResult point = Point(1, 10, 20);
  for (Turn& turn : point.contestants[0].turns) turn.flag_before_ns = turn.flag_after_ns = 160;
  for (Turn& turn : point.contestants[1].turns) turn.flag_before_ns = turn.flag_after_ns = 45;
  for (Turn& turn : point.contestants[2].turns) turn.flag_before_ns = turn.flag_after_ns = 160;
  CountOnePlacement(false, &point);
  EXPECT_EQ(point.placement, "far");
  EXPECT_EQ(point.BestPeer()->name, "mpich");
  EXPECT_DOUBLE_EQ(Ratio(point.Find("window"), point.Find("openmpi")), 0);
}

TEST(Comparison, RatesAndOverlapHaveRowsOfTheirOwnAndNoTargets) {
  PointResult stream = Point(64, 32, 40);
  stream.messages = 64;
  EXPECT_THAT(PointRow(stream), HasSubstr("| 64 messages | window"));
  EXPECT_THAT(PointRow(stream), HasSubstr("| openmpi 4,000 thousand messages/s, 262 GB/s"));
  PointResult overlap = Point(40, 10, 20);
  overlap.compute_us = 12;
  EXPECT_THAT(PointRow(overlap), HasSubstr("| beside 12.0 us of computing"));
  EXPECT_THAT(CsvText(ResultsOf({overlap})), HasSubstr(",false,1,12.000,3,"));
  EXPECT_EQ(TargetTable({Point(1, 10, 20), stream, overlap}), TargetTable({Point(1, 10, 20)}));
}

TEST(Comparison, RewrittenPointsStandBesideTheTargets) {
  PointResult rewritten = Point(40, 10, 20);
  rewritten.rewritten = true;
  const std::string targets = TargetTable({Point(1, 10, 20), rewritten});
  EXPECT_THAT(targets, HasSubstr("0.10 x   <= 0.20 x  met"));
  EXPECT_THAT(targets, HasSubstr("rewritten before each call: geometric mean of 1 4.00 x"));
  EXPECT_THAT(PointRow(rewritten), HasSubstr("64 KiB | rewritten | window"));
}

}  // namespace
}  // namespace cohort::collperf
