#include "cohort/trainer/data/distributed_group_sampler.h"

#include "c10/util/Exception.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

TEST(DistributedGroupSampler, GivesAGroupTheSameExamplesAndOtherGroupsOthers) {
  for (int rank = 0; rank < 6; ++rank) {
    DistributedGroupSampler sampler(11, 6, rank, 3, {.seed = 4});
    DistributedSampler of_group(11, 2, rank / 3, {.seed = 4});
    sampler.set_epoch(2);
    of_group.set_epoch(2);
    EXPECT_EQ(sampler.indices(), of_group.indices()) << rank;
    EXPECT_EQ(sampler.num_samples(), 6);
  }
  EXPECT_NE(DistributedGroupSampler(11, 6, 2, 3).indices(), DistributedGroupSampler(11, 6, 3, 3).indices());
}

TEST(DistributedGroupSampler, RefusesGroupsThatDoNotDivide) {
  EXPECT_THROW(DistributedGroupSampler(11, 6, 0, 4), c10::Error);
  EXPECT_THROW(DistributedGroupSampler(11, 6, 0, 0), c10::Error);
  EXPECT_THROW(DistributedGroupSampler(11, 6, 6, 3), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
