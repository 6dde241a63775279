// Descriptions of networks read back as they are printed, and wrong ones are refused with their position.
#include "cohort/comm/simulate/network.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::comm {
namespace {

using testing::HasSubstr;

TEST(NetworkTest, ReadsBackWhatItPrints) {
  for (const char* text : {"flat", "host:ranks-per-node=3", "fat-tree:nodes=8192,ranks-per-node=8,oversubscription=2.5",
                           "gpu:remote-alpha-us=0", "ethernet:placement=cyclic,nic-gigabytes-s=0.125"}) {
    const auto network = Network::Parse(text);
    ASSERT_TRUE(network.ok()) << network.status();
    const auto again = Network::Parse(network->ToString());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->ToString(), network->ToString());
  }
  const auto fat = Network::Parse("fat-tree:nodes=16,ranks-per-node=4");
  ASSERT_TRUE(fat.ok());
  EXPECT_EQ(fat->ranks(), 64);
  EXPECT_EQ(fat->NodeOf(5), 1);
  EXPECT_EQ(Network::Parse("fat-tree:nodes=16,placement=cyclic")->NodeOf(17), 1);
}

TEST(NetworkTest, RefusesWithPositionAndRemedy) {
  const auto message = [](const char* text) { return std::string(Network::Parse(text).status().message()); };
  EXPECT_THAT(message("torus"), HasSubstr("choose flat, host, fat-tree"));
  EXPECT_THAT(message("flat:nodes=4,hosts=2"), HasSubstr("position 14"));
  EXPECT_THAT(message("flat:nodes=4,hosts=2"), HasSubstr("use nodes, ranks-per-node"));
  EXPECT_THAT(message("flat:nodes"), HasSubstr("needs name=value"));
  for (const char* text : {"", "flat:nodes=0", "flat:nodes=-1", "flat:nodes=1e3", "flat:nodes=99999999",
                           "flat:nic-gigabytes-s=0", "flat:remote-alpha-us=nan", "flat:placement=random", "flat:,"}) {
    EXPECT_EQ(Network::Parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace cohort::comm
