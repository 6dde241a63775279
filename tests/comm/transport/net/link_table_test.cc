// Links by their keys: made by the program or by a peer's frame, ended, and dropped with their group.
#include "cohort/comm/transport/net/link_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace cohort::comm::net {
namespace {

struct TestLink;
struct TestPeer {
  int world_rank = 3;
  absl::Status status;
  PeerLinks<TestLink> links;
};
struct TestLink : TableEntry<TestPeer> {};

class LinkTableTest : public ::testing::Test {
 protected:
  LinkTableTest() {
    table_.set_released([this](TestLink& link) { released_.push_back(link.key.lane); });
  }
  static LinkKey Key(uint32_t lane, uint64_t group = 5) { return {group, 1, lane, 3}; }
  static LinkSpec Spec(uint16_t lane) { return {.group = 5, .epoch = 1, .peer_world_rank = 3, .lane = lane}; }

  std::vector<uint32_t> released_;
  TestPeer peer_;
  LinkTable<TestLink, TestPeer> table_{[](const LinkKey& key, TestPeer& peer, BufferPool*) {
    return std::make_unique<TestLink>(TestLink{{key, &peer}});
  }};
};

TEST_F(LinkTableTest, MakesALinkOnce) {
  TestLink* link = table_.Claim(Key(0), peer_);
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(table_.Find(Key(0)), link);
  EXPECT_EQ(table_.Claim(Key(0), peer_), nullptr);
  EXPECT_EQ(table_.Connect(Spec(0), peer_).status().code(), absl::StatusCode::kInternal);
}

TEST_F(LinkTableTest, GivesTheProgramTheLinkOfAnEarlyFrame) {
  const auto made = table_.MakeUnclaimed(Key(0), peer_);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(peer_.links.unclaimed, 1u);
  EXPECT_EQ(*table_.Connect(Spec(0), peer_), *made);
  EXPECT_EQ(peer_.links.unclaimed, 0u);
  table_.EndGroup(5, 1);
  EXPECT_TRUE(released_.empty()) << "a link that the program has made is left to its owner";
}

TEST_F(LinkTableTest, RefusesLinksToAFailedPeerUnlessFramesCameBefore) {
  ASSERT_TRUE(table_.MakeUnclaimed(Key(0), peer_).ok());
  peer_.status = absl::UnavailableError("gone");
  EXPECT_TRUE(table_.Connect(Spec(0), peer_).ok());
  EXPECT_EQ(table_.Connect(Spec(1), peer_).status(), peer_.status);
}

TEST_F(LinkTableTest, RemembersWhatHasEnded) {
  table_.Release(table_.Claim(Key(0), peer_));
  EXPECT_EQ(table_.Find(Key(0)), nullptr);
  EXPECT_TRUE(table_.Ended(Key(0)));
  EXPECT_FALSE(table_.Ended(Key(1)));
  ASSERT_TRUE(table_.MakeUnclaimed(Key(2), peer_).ok());
  table_.EndGroup(5, 1);
  EXPECT_EQ(released_, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(peer_.links.unclaimed, 0u);
  EXPECT_TRUE(table_.Ended(Key(7))) << "its group has ended";
  EXPECT_FALSE(table_.Ended(Key(7, 6)));
}

TEST_F(LinkTableTest, ForgetsTheLatestLinkOfAPeerWithTheLink) {
  TestLink* link = table_.Claim(Key(0), peer_);
  EXPECT_EQ(table_.FindFor(Key(0), peer_), link);
  EXPECT_EQ(peer_.links.last, link);
  EXPECT_EQ(table_.FindFor(Key(1), peer_), nullptr);
  EXPECT_EQ(table_.FindFor(Key(0), peer_), link);
  table_.Release(link);
  EXPECT_EQ(peer_.links.last, nullptr);
  EXPECT_EQ(table_.FindFor(Key(0), peer_), nullptr);
}

TEST_F(LinkTableTest, BoundsTheLinksThatAPeerMayOpen) {
  uint32_t lane = 0;
  while (table_.MakeUnclaimed(Key(lane), peer_).ok()) ASSERT_LT(++lane, 5000u);
  EXPECT_EQ(lane, 4096u);
  EXPECT_EQ(table_.MakeUnclaimed(Key(lane), peer_).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(table_.Connect(Spec(0), peer_).ok());
  EXPECT_TRUE(table_.MakeUnclaimed(Key(lane), peer_).ok());
}

TEST_F(LinkTableTest, ClearsLinksThatAReleaseBringsUp) {
  table_.set_released([this](TestLink& link) {
    const bool more = link.key.lane < 100;
    EXPECT_TRUE(!more || table_.MakeUnclaimed(Key(link.key.lane + 1), peer_).ok());
    released_.push_back(link.key.lane);
  });
  table_.Claim(Key(0), peer_);
  table_.Clear();
  EXPECT_EQ(released_.size(), 101u);
}

}  // namespace
}  // namespace cohort::comm::net
