// The settings that a Job makes for the process, and restores.
#include "cohort/trainer/transfer/job.h"

#include <chrono>
#include <string>

#include "cohort/trainer/base/error.h"
#include "cohort/trainer/transfer/collectives.h"
#include "gtest/gtest.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

using std::chrono::minutes, std::chrono::seconds;

TEST(Job, TheTimeoutOfAJobIsThatOfCollectives) {
  EXPECT_EQ(default_timeout(), minutes(10));
  {
    const Job job({}, minutes(3));
    EXPECT_EQ(default_timeout(), minutes(3));
  }
  EXPECT_EQ(default_timeout(), minutes(10));
  EXPECT_THROW(Job({}, seconds(0)), c10::Error);
}

// The text that a program writes which fails a group of its job and maybe throws.
std::string Written(bool throws) {
  testing::internal::CaptureStderr();
  RunRank("a program", [throws] {
    Job job;
    const auto group = job.world().Duplicate();
    group.value()->Abort("a bucket is missing");
    if (throws) throw DistributedError(absl::StatusCode::kAborted, "averaging: a bucket is missing");
  });
  return testing::internal::GetCapturedStderr();
}

TEST(Job, AJobReportsAnErrorOnce) {
  for (const bool throws : {true, false}) {
    const std::string text = Written(throws);
    const size_t first = text.find("a bucket is missing");
    ASSERT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.find("a bucket is missing", first + 1), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace cohort::trainer
