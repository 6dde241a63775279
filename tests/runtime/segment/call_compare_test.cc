#include "cohort/runtime/segment/call_compare.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace cohort::runtime {
namespace {

CallRecord RecordedCall(uint16_t kind, uint64_t count, int root, const std::string& site) {
  CallRecord record;
  record.signature = {
      .group = 0xab, .sequence = 7, .count = count, .epoch = 1, .root = root, .kind = kind, .dtype = 11};
  if (kind == 3) record.signature.op = 1;
  record.state = CallState::kStarted;
  std::strncpy(record.site, site.c_str(), sizeof record.site - 1);
  return record;
}

CallView Seen(int rank, const CallRecord& record) { return MakeCallView(rank, "node0", record, true, record); }

const CallRecord kSum = RecordedCall(3, 1024, -1, "a.cc:10");
const CallRecord kBroadcast = RecordedCall(1, 1024, 0, "a.cc:20");

TEST(CallCompareTest, EqualCallsAreNoVerdict) {
  const std::vector<CallView> views = {Seen(1, kSum), Seen(0, kSum)};
  EXPECT_EQ(CompareCalls(0xab, 7, views).kind, CallVerdict::Kind::kNone);
  EXPECT_EQ(CompareCalls(0xab, 7, {}).kind, CallVerdict::Kind::kNone);
}

TEST(CallCompareTest, TheMajorityIsRight) {
  const std::vector<CallView> views = {Seen(3, kSum), Seen(2, kBroadcast), Seen(1, kSum), Seen(0, kSum)};
  const CallVerdict verdict = CompareCalls(0xab, 7, views);
  EXPECT_EQ(verdict.kind, CallVerdict::Kind::kMismatch);
  EXPECT_EQ(verdict.blamed, std::vector<int>({2}));
  EXPECT_TRUE(verdict.majority);
  EXPECT_EQ(verdict.text,
            "calls do not match: ranks 0,1,3 called all_reduce(sum, float32, 1024) at a.cc:10; but rank 2 "
            "called broadcast(float32, 1024, root 0) at a.cc:20 (group 00000000000000ab, operation 7)" +
                std::string(kMismatchRemedy));
}

CallRecord Done(uint32_t result) {
  CallRecord record = kSum;
  record.state = CallState::kDone;
  record.result = result;
  return record;
}

TEST(CallCompareTest, AnotherResultThanThatOfMostIsNamed) {
  const std::vector<CallView> views = {Seen(3, Done(7)), Seen(2, Done(9)), Seen(1, Done(7)), Seen(0, Done(7))};
  const CallVerdict verdict = CompareCalls(0xab, 7, views);
  EXPECT_EQ(verdict.kind, CallVerdict::Kind::kResults);
  EXPECT_EQ(verdict.blamed, std::vector<int>({2}));
  EXPECT_TRUE(verdict.majority);
  EXPECT_EQ(verdict.results, 4);
  EXPECT_EQ(verdict.text,
            "results differ: rank 2 has another result of all_reduce(sum, float32, 1024) at a.cc:10 than ranks 0,1,3 "
            "(group 00000000000000ab, operation 7)" +
                std::string(kResultsRemedy));
}

TEST(CallCompareTest, TwoResultsBlameNobody) {
  const std::vector<CallView> views = {Seen(1, Done(7)), Seen(0, Done(9)), Seen(2, Done(0))};
  const CallVerdict verdict = CompareCalls(0xab, 7, views);
  EXPECT_EQ(verdict.kind, CallVerdict::Kind::kResults);
  EXPECT_FALSE(verdict.majority);
  EXPECT_EQ(verdict.results, 2);
  EXPECT_EQ(verdict.text.find("results differ: rank 0 and rank 1 have different results of all_reduce(sum, float32, "
                              "1024) at a.cc:10, and none is that of most ranks (group"),
            0);
}

TEST(CallCompareTest, EqualAndUnknownResultsAreNoVerdict) {
  EXPECT_EQ(CompareCalls(0xab, 7, std::vector<CallView>{Seen(0, Done(7)), Seen(1, Done(7)), Seen(2, Done(0))}).kind,
            CallVerdict::Kind::kNone);
}

TEST(CallCompareTest, OtherChecksAreAnotherCall) {
  CallRecord checked = kSum;
  checked.signature.determinism |= Checks{.nan = true, .results = true}.bits();
  const CallVerdict verdict =
      CompareCalls(0xab, 7, std::vector<CallView>{Seen(0, kSum), Seen(1, kSum), Seen(2, checked)});
  EXPECT_EQ(verdict.kind, CallVerdict::Kind::kMismatch);
  EXPECT_NE(verdict.text.find("but rank 2 called all_reduce(sum, float32, 1024) with --check nan,results at a.cc:10"),
            std::string::npos)
      << verdict.text;
}

TEST(CallCompareTest, TheMajorityNeedNotHoldTheLowestRank) {
  const std::vector<CallView> views = {Seen(0, kBroadcast), Seen(1, kSum), Seen(2, kSum)};
  const CallVerdict verdict = CompareCalls(0xab, 7, views);
  EXPECT_EQ(verdict.blamed, std::vector<int>({0}));
  EXPECT_EQ(verdict.text.substr(0, 35), "calls do not match: ranks 1,2 calle");
}

TEST(CallCompareTest, TheLowestRankIsTheReferenceWithoutAMajority) {
  const std::vector<CallView> views = {Seen(1, kSum), Seen(0, kBroadcast)};
  const CallVerdict verdict = CompareCalls(0xab, 7, views);
  EXPECT_FALSE(verdict.majority);
  EXPECT_TRUE(verdict.text.starts_with("calls do not match: ranks 0,1 called different things: rank 0 called "))
      << verdict.text;
  EXPECT_EQ(verdict.blamed, std::vector<int>({1}));
}

TEST(CallCompareTest, NamesTheAbsentRanks) {
  CallRecord earlier = kBroadcast;
  earlier.signature.sequence = 6;
  earlier.state = CallState::kDone;
  const std::vector<CallView> views = {Seen(0, kSum), Seen(1, kSum), MakeCallView(2, "node1", {}, false, earlier),
                                       MakeCallView(3, "node1", {}, false, {})};
  const CallVerdict verdict = CompareCalls(0xab, 7, views);
  EXPECT_EQ(verdict.kind, CallVerdict::Kind::kAbsent);
  EXPECT_EQ(verdict.blamed, std::vector<int>({2, 3}));
  EXPECT_NE(verdict.text.find("ranks 2,3 have not made the call that ranks 0,1 wait in: all_reduce(sum, float32, "
                              "1024) at a.cc:10"),
            std::string::npos)
      << verdict.text;
  EXPECT_NE(verdict.text.find("rank 2 (node1) last finished broadcast(float32, 1024, root 0) at a.cc:20"),
            std::string::npos)
      << verdict.text;
  EXPECT_NE(verdict.text.find("rank 3 (node1) has made no call"), std::string::npos) << verdict.text;
}

TEST(CallCompareTest, ARankThatIsFarAheadIsNotAbsent) {
  CallRecord later = kSum;
  later.signature.sequence = 2000;
  const std::vector<CallView> views = {Seen(0, kSum), MakeCallView(1, "node0", {}, true, later)};
  EXPECT_EQ(CompareCalls(0xab, 7, views).kind, CallVerdict::Kind::kNone);
}

TEST(CallCompareTest, EqualWordsWithAnotherAlgorithmAreAMismatch) {
  CallRecord other = kSum;
  other.signature.algorithm = 4;
  const std::vector<CallView> views = {Seen(0, kSum), Seen(1, kSum), Seen(2, other)};
  const CallVerdict verdict = CompareCalls(0xab, 7, views);
  EXPECT_EQ(verdict.kind, CallVerdict::Kind::kMismatch);
  EXPECT_NE(verdict.text.find("with another algorithm"), std::string::npos) << verdict.text;
}

TEST(CallSignatureTest, EveryBitOfASignatureChangesItsHash) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::set<uint64_t> hashes;
  CallSignature signature;
  for (int round = 0; round < 200; ++round) {
    for (size_t bit = 0; bit < sizeof signature * 8; ++bit) {
      CallSignature other = signature;
      reinterpret_cast<unsigned char*>(&other)[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
      ASSERT_NE(HashSignature(other), 0u);
      ASSERT_NE(HashSignature(other), HashSignature(signature)) << "bit " << bit;
      ASSERT_TRUE(hashes.insert(HashSignature(other)).second) << "bit " << bit;
    }
    for (size_t i = 0; i < sizeof signature; ++i) reinterpret_cast<unsigned char*>(&signature)[i] = random();
  }
}

TEST(CallCompareTest, RankListsAreWrittenAsRanges) {
  EXPECT_EQ(DescribeRanks(std::vector<int>{4}), "rank 4");
  EXPECT_EQ(DescribeRanks(std::vector<int>{0, 1, 3}), "ranks 0,1,3");
  EXPECT_EQ(DescribeRanks(std::vector<int>{0, 1, 2, 3, 7, 9, 10, 11}), "ranks 0-3,7,9-11");
}

}  // namespace
}  // namespace cohort::runtime
