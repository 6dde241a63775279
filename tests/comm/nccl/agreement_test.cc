// Tests the agreement of the members before NCCL is entered, and the order of calls of several communicators.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/nccl/launch_order.h"
#include "cohort/comm/nccl/library/nccl_agreement.h"

namespace cohort::comm::nccl {
namespace {

Offer Good() {
  Offer offer;
  offer.version = 22809;
  return offer;
}

const std::vector<int> kMembers = {4, 5, 6, 9};

TEST(NcclAgreement, EqualOffersMakeANewCommunicator) {
  const std::vector<Offer> offers(4, Good());
  EXPECT_EQ(Decide(offers, kMembers).kind, Decision::Kind::kNew);
}

TEST(NcclAgreement, DifferentVersionsAreRefusedWithRanksAndVersions) {
  std::vector<Offer> offers(4, Good());
  offers[3].version = 22705;
  const Decision decision = Decide(offers, kMembers);
  EXPECT_EQ(decision.kind, Decision::Kind::kRefuse);
  EXPECT_NE(decision.text.find("ranks 4-6: NCCL 2.28.9"), std::string::npos) << decision.text;
  EXPECT_NE(decision.text.find("rank 9: NCCL 2.27.5"), std::string::npos) << decision.text;
}

TEST(NcclAgreement, DifferentSettingsAreRefusedWithRanksAndSettings) {
  std::vector<Offer> offers(4, Good());
  offers[1].settings = "NCCL_ALGO=Ring";
  const Decision decision = Decide(offers, kMembers);
  EXPECT_EQ(decision.kind, Decision::Kind::kRefuse);
  EXPECT_NE(decision.text.find("rank 5: NCCL_ALGO=Ring"), std::string::npos) << decision.text;
}

TEST(NcclAgreement, ARankWithoutNcclSendsAllThroughHostMemory) {
  std::vector<Offer> offers(4, Good());
  offers[2].version = 0;
  offers[2].why = "libnccl is not installed";
  const Decision decision = Decide(offers, kMembers);
  EXPECT_EQ(decision.kind, Decision::Kind::kStaged);
  EXPECT_EQ(decision.text, "rank 6: libnccl is not installed");
}

TEST(NcclAgreement, OnlyCommunicatorsThatAllHaveAreReusedOrShrunk) {
  std::vector<Offer> offers(4, Good());
  for (Offer& offer : offers) offer.idle = "a";
  EXPECT_EQ(Decide(offers, kMembers).kind, Decision::Kind::kReuse);
  EXPECT_EQ(Decide(offers, kMembers).text, "a");
  offers[1].idle = "b";
  EXPECT_EQ(Decide(offers, kMembers).kind, Decision::Kind::kNew);
  for (Offer& offer : offers) offer.revoked = "c";
  EXPECT_EQ(Decide(offers, kMembers).kind, Decision::Kind::kShrink);
  offers[3].revoked = "d";
  EXPECT_EQ(Decide(offers, kMembers).kind, Decision::Kind::kNew);
  offers[3].revoked = "";
  EXPECT_EQ(Decide(offers, kMembers).kind, Decision::Kind::kNew);
}

TEST(NcclAgreement, AbilitiesThatAllHaveAreAgreedOn) {
  std::vector<Offer> offers(4, Good());
  for (Offer& offer : offers) offer.abilities = {.float8 = true, .kernels = true};
  EXPECT_TRUE(Decide(offers, kMembers).abilities.float8);
  EXPECT_TRUE(Decide(offers, kMembers).abilities.kernels);
  offers[2].abilities.kernels = false;
  offers[0].abilities.stops = offers[1].abilities.stops = true;
  const Decision decision = Decide(offers, kMembers);
  EXPECT_TRUE(decision.abilities.float8);
  EXPECT_FALSE(decision.abilities.kernels);
  EXPECT_FALSE(decision.abilities.stops) << "of one member";
  Decision read;
  Decision serializable = decision;
  serializable.text = std::string(128, 'i');
  ASSERT_TRUE(Parse(Serialize(serializable), &read));
  EXPECT_TRUE(read.abilities.float8);
  EXPECT_FALSE(read.abilities.kernels);
}

TEST(NcclAgreement, OffersAreReadBackAndOtherTextsRefused) {
  Offer offer = Good();
  offer.settings = "NCCL_PROTO=LL";
  offer.idle = "nccl/1/2/0";
  offer.revoked = "nccl/1/1/0";
  Offer read;
  ASSERT_TRUE(Parse(Serialize(offer), &read));
  EXPECT_EQ(Serialize(read), Serialize(offer));
  Decision decision;
  for (const std::string text : {"", "q", "nshort", "22809", "x\n"}) {
    if (text != "x\n") {
      EXPECT_FALSE(Parse(text, &decision)) << text;
    }
    EXPECT_FALSE(Parse(text, &read)) << text;
  }
}

runtime::CallRecord Call(uint64_t group, uint64_t sequence, const char* site) {
  runtime::CallRecord record;
  record.signature.group = group;
  record.signature.sequence = sequence;
  record.signature.kind = static_cast<uint16_t>(CollectiveKind::kAllReduce);
  std::strncpy(record.site, site, sizeof record.site - 1);
  return record;
}

TEST(NcclLaunchOrder, AnInversionOfTheOrderIsReportedWithBothCalls) {
  const std::vector<runtime::CallRecord> mine = {Call(1, 5, "a.cc:1"), Call(2, 3, "b.cc:2")};
  const std::vector<runtime::CallRecord> theirs = {Call(2, 3, "b.cc:2"), Call(1, 5, "a.cc:1")};
  const std::string text = CompareOrder(0, mine, 1, theirs);
  EXPECT_NE(text.find("a.cc:1 before"), std::string::npos) << text;
  EXPECT_NE(text.find("b.cc:2, rank 1 the other way round"), std::string::npos) << text;
}

TEST(NcclLaunchOrder, CallsOnDifferentDevicesOfThePeerAreNoConflict) {
  const std::vector<runtime::CallRecord> mine = {Call(1, 5, "a"), Call(2, 3, "b"), Call(3, 1, "c")};
  std::vector<runtime::CallRecord> theirs = {Call(2, 3, "b"), Call(1, 5, "a"), Call(3, 1, "c")};
  for (runtime::CallRecord& call : theirs) call.device = 0;
  theirs[1].device = 1;
  EXPECT_EQ(CompareOrder(0, mine, 1, theirs), "");
  theirs[2].device = 1;
  std::swap(theirs[1], theirs[2]);
  const std::string text = CompareOrder(0, mine, 1, theirs);
  EXPECT_NE(text.find("at a before"), std::string::npos) << text;
}

TEST(NcclLaunchOrder, EqualOrdersAndCallsOfOneRankOnlyAreNoConflict) {
  const std::vector<runtime::CallRecord> mine = {Call(1, 5, "a"), Call(3, 1, "c"), Call(2, 3, "b")};
  const std::vector<runtime::CallRecord> theirs = {Call(1, 5, "a"), Call(2, 3, "b"), Call(4, 1, "d")};
  EXPECT_EQ(CompareOrder(0, mine, 1, theirs), "");
  EXPECT_EQ(CompareOrder(0, mine, 1, {}), "");
}

}  // namespace
}  // namespace cohort::comm::nccl
