// The settings that a Job makes for the process, and restores.
#include "cohort/trainer/transfer/job.h"

#include <chrono>

#include "cohort/trainer/transfer/collectives.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using std::chrono::minutes, std::chrono::seconds;

TEST(Job, ItsTimeoutIsThatOfCollectives) {
  EXPECT_EQ(default_timeout(), minutes(10));
  {
    const Job job({}, minutes(3));
    EXPECT_EQ(default_timeout(), minutes(3));
  }
  EXPECT_EQ(default_timeout(), minutes(10));
  EXPECT_THROW(Job({}, seconds(0)), c10::Error);
}

}  // namespace
}  // namespace cohort::trainer
