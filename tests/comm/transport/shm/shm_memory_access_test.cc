// Direct access to other members' memory (MemoryAccess of the shared-memory transport), with all members in one
// process: what it refuses, and how it ends.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "cohort/comm/transport/memory_access.h"
#include "tests/comm/transport/shm/local_world.h"

namespace cohort::comm::testing {
namespace {

class MemoryAccessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int rank = 0; rank < 2; ++rank) fanouts_.push_back(world_.ConnectFanout(rank, 2));
    for (int rank = 0; rank < 2; ++rank) {
      bool reaches = false;
      int missing = -1;
      ASSERT_EQ(memory(rank).ReachesPrivate(&reaches, &missing), Progress::kDone);
      EXPECT_TRUE(reaches);
    }
  }
  MemoryAccess& memory(int rank) { return *fanouts_[static_cast<size_t>(rank)]->memory(); }

  LocalWorld world_{2};
  std::vector<std::unique_ptr<Fanout>> fanouts_;
};

TEST_F(MemoryAccessTest, WaitsForMembersThatHaveNotCome) {
  auto early = world_.ConnectFanout(0, 2, 9);
  bool reaches = false;
  int missing = -1;
  EXPECT_EQ(early->memory()->ReachesPrivate(&reaches, &missing), Progress::kBlocked);
  EXPECT_EQ(missing, 1);
  auto late = world_.ConnectFanout(1, 2, 9);
  EXPECT_EQ(early->memory()->ReachesPrivate(&reaches, &missing), Progress::kDone);
  EXPECT_TRUE(reaches);
}

TEST_F(MemoryAccessTest, PermissionToReadPrivateMemoryIsProbed) {
  LocalWorld forbidden(2, {.private_reads = false});
  auto own = forbidden.ConnectFanout(0, 2);
  auto other = forbidden.ConnectFanout(1, 2);
  bool reaches = true;
  int missing = -1;
  EXPECT_EQ(own->memory()->ReachesPrivate(&reaches, &missing), Progress::kDone);
  EXPECT_FALSE(reaches);
}

TEST_F(MemoryAccessTest, SharedMemoryIsTheSameMemory) {
  std::byte* theirs = world_.Window(1, 300'000);
  const MemoryName name = memory(1).NameOf(theirs + 100, 200'000);
  EXPECT_EQ(name.shared, 1u);
  std::byte* here = memory(0).Resolve(1, name, 200'000);
  ASSERT_NE(here, nullptr);
  ASSERT_TRUE(memory(0).Enter());
  std::memset(here, 7, 200'000);
  memory(0).Leave();
  EXPECT_EQ(theirs[99], std::byte{0});
  EXPECT_EQ(theirs[100], std::byte{7});
  EXPECT_EQ(theirs[200'099], std::byte{7});
  EXPECT_EQ(theirs[200'100], std::byte{0});
}

TEST_F(MemoryAccessTest, PrivateMemoryIsReadAndWritten) {
  std::vector<std::byte> theirs = Pattern(100'000, 3);
  const std::vector<std::byte> before = theirs;
  const MemoryName name = memory(1).NameOf(theirs.data(), theirs.size());
  EXPECT_EQ(name.shared, 0u);
  std::vector<std::byte> copy(theirs.size());
  absl::Status error;
  ASSERT_TRUE(memory(0).Enter());
  EXPECT_EQ(memory(0).Read(1, name.place, copy.data(), copy.size(), &error), Progress::kDone) << error;
  EXPECT_EQ(copy, before);
  const std::vector<std::byte> other = Pattern(100'000, 4);
  EXPECT_EQ(memory(0).Write(1, name.place, other.data(), other.size(), &error), Progress::kDone) << error;
  memory(0).Leave();
  EXPECT_EQ(theirs, other);
}

// Whatever a peer names: an error, and nothing outside the segment's allocated memory is touched.
TEST_F(MemoryAccessTest, NamesThatLieAreRefused) {
  std::byte* window = world_.Window(1, 1 << 20);
  const MemoryName name = memory(1).NameOf(window, 1 << 20);
  const uint64_t places[] = {
      0, 1, 4096, name.place + (uint64_t{1} << 30), ~uint64_t{0}, ~uint64_t{0} - 4096, uint64_t{1} << 62};
  for (const uint64_t place : places) {
    EXPECT_EQ(memory(0).Resolve(1, {.place = place, .shared = 1}, 1 << 20), nullptr) << place;
  }
  EXPECT_EQ(memory(0).Resolve(1, name, size_t{1} << 40), nullptr);
  EXPECT_EQ(memory(0).Resolve(1, name, SIZE_MAX), nullptr);
  std::mt19937_64 random(std::random_device{}());
  for (int i = 0; i < 2000; ++i) {
    const uint64_t place = random() >> (random() % 40);
    const size_t bytes = random() >> (24 + random() % 30);
    std::byte* data = memory(0).Resolve(1, {.place = place, .shared = 1}, bytes);
    if (data == nullptr || bytes == 0) continue;
    volatile std::byte sink = data[bytes - 1];  // mapped, or this crashes
    (void)sink;
  }
  std::vector<std::byte> to(1000);
  absl::Status error;
  ASSERT_TRUE(memory(0).Enter());
  EXPECT_EQ(memory(0).Read(1, 4096, to.data(), to.size(), &error), Progress::kFailed);
  EXPECT_TRUE(absl::IsUnavailable(error));
  EXPECT_EQ(memory(0).Write(1, 4096, to.data(), to.size(), &error), Progress::kFailed);
  memory(0).Leave();
}

TEST_F(MemoryAccessTest, NobodyEntersAfterAMemberHasGivenUp) {
  ASSERT_TRUE(memory(0).Enter());
  memory(0).Leave();
  fanouts_[1].reset();
  EXPECT_FALSE(memory(0).Enter());
}

// A member that is stopped inside is waited for, but not for ever, and its late write to private memory does nothing.
TEST_F(MemoryAccessTest, EndingIsBoundedAndLateWritesAreKeptOut) {
  std::vector<std::byte> theirs(10'000, std::byte{1});
  const MemoryName name = memory(1).NameOf(theirs.data(), theirs.size());
  ASSERT_TRUE(memory(0).Enter());
  const auto begin = std::chrono::steady_clock::now();
  fanouts_[1].reset();
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, std::chrono::milliseconds(100));
  EXPECT_LT(took, std::chrono::seconds(2));
  const std::vector<std::byte> late(10'000, std::byte{9});
  absl::Status error;
  EXPECT_EQ(memory(0).Write(1, name.place, late.data(), late.size(), &error), Progress::kBlocked);
  EXPECT_EQ(theirs, std::vector<std::byte>(10'000, std::byte{1}));
  memory(0).Leave();
}

}  // namespace
}  // namespace cohort::comm::testing
