// What a Job sets for the process, and puts back.
#include "cohort/trainer/job.h"

#include <chrono>

#include "gtest/gtest.h"
#include "torch/torch.h"
#include "cohort/trainer/collectives.h"

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
