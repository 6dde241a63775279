#include "cohort/launcher/nodes/share_of.h"

#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::launcher {
namespace {

using testing::ElementsAre;

TEST(ShareOf, CutsOrSharesAllThings) {
  const std::vector<int> eight = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_THAT(ShareOf(eight, 0, 2), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ShareOf(eight, 1, 2), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(ShareOf(std::vector<int>{5}, 3, 4), ElementsAre(5));  // one GPU for all
  EXPECT_THAT(ShareOf(std::vector<int>{}, 0, 2), ElementsAre());
}

TEST(ShareOf, SharesLeaveNothingOut) {
  for (int things = 1; things < 40; ++things) {
    std::vector<int> all(static_cast<size_t>(things));
    std::iota(all.begin(), all.end(), 0);
    for (int nodes = 1; nodes <= things; ++nodes) {
      std::vector<int> together;
      for (int node = 0; node < nodes; ++node) {
        const std::vector<int> part = ShareOf(all, node, nodes);
        EXPECT_GE(part.size(), all.size() / static_cast<size_t>(nodes));
        EXPECT_LE(part.size(), all.size() / static_cast<size_t>(nodes) + 1);
        together.insert(together.end(), part.begin(), part.end());
      }
      EXPECT_EQ(together, all) << nodes << " nodes";
    }
  }
}

}  // namespace
}  // namespace cohort::launcher
