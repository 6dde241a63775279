// The picture of a plan says what the plan does.
#include "tools/plan/picture.h"

#include <vector>

#include "cohort/comm/algorithm/registry.h"
#include "gtest/gtest.h"

namespace cohort::tools {
namespace {

std::vector<comm::Plan> PlansOf(comm::CollectiveKind kind, std::string_view name, int size, int32_t pieces) {
  std::vector<comm::Plan> plans;
  for (int rank = 0; rank < size; ++rank) {
    auto plan = comm::BuildPlan(*comm::FindAlgorithm(kind, name), {kind, size, rank, 0, false, pieces});
    EXPECT_TRUE(plan.ok()) << plan.status();
    plans.push_back(*std::move(plan));
  }
  return plans;
}

TEST(PictureTest, DrawsRanksAndRounds) {
  EXPECT_EQ(DrawPlans(PlansOf(comm::CollectiveKind::kAllReduce, "ring", 2, 2)),
            "round  rank 0           rank 1\n"
            "1      in[1]>1          in[0]>0\n"
            "       out[0]=<1+in[0]  out[1]=<0+in[1]\n"
            "2      out[0]>1         out[1]>0\n"
            "       out[1]<1         out[0]<0\n");
}

TEST(PictureTest, DrawsPublishesCopiesAndEmptyMessages) {
  EXPECT_EQ(DrawPlans(PlansOf(comm::CollectiveKind::kBroadcast, "flat", 3, 2)),
            "round  rank 0              rank 1       rank 2\n"
            "0      out[0..1]=in[0..1]\n"
            "1      in[0..1]>*          out[0..1]<0  out[0..1]<0\n");
  EXPECT_EQ(DrawPlans(PlansOf(comm::CollectiveKind::kBarrier, "dissemination", 2, 1)),
            "round  rank 0  rank 1\n"
            "1      ->1     ->0\n"
            "       -<1     -<0\n");
}

TEST(PictureTest, DrawsWrongPlansAsFarAsTheyGet) {
  auto plans = PlansOf(comm::CollectiveKind::kGather, "flat", 2, 1);
  plans[1].lanes[0].steps.clear();
  EXPECT_EQ(DrawPlans(plans),
            "round  rank 0        rank 1\n"
            "0      out[0]=in[0]\n");
}

}  // namespace
}  // namespace cohort::tools
