// Files of checkpoints that the system can't read.
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"

#include "cohort/trainer/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cohort::trainer {
namespace {

// The memory of this process is an ordinary file without bytes, which gives EIO where nothing is mapped, as at 0.
constexpr const char* kUnreadable = "/proc/self/mem";

// LoadLatestTrainingState takes the checkpoint before a damaged one, and ends at other errors.
TEST(CheckpointFile, AFileThatTheDiskCannotReadIsDamaged) {
  try {
    const TensorFileReader reader(kUnreadable, {.bytes = 0, .header_bytes = 16, .header_checksum = ""});
    FAIL() << "read";
  } catch (const DistributedError& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(error.what_without_backtrace(),
                testing::HasSubstr("/proc/self/mem is damaged: it can't be read: Input/output error"));
  }
}

}  // namespace
}  // namespace cohort::trainer
