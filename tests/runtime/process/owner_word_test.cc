#include "cohort/runtime/process/owner_word.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <optional>
#include <thread>

#include "tests/runtime/child.h"

namespace cohort::runtime {
namespace {

TEST(OwnerWordTest, AGuestWritesUntilAnotherClaims) {
  std::atomic<uint64_t> word{0};
  const OwnerWord owner(&word);
  const std::optional<uint64_t> guest = owner.ClaimSince(owner.Look());
  ASSERT_TRUE(guest.has_value());
  EXPECT_TRUE(owner.Begin(*guest));
  owner.End();
  const std::optional<uint64_t> next = owner.Claim(getpid(), Deadline::Now());
  ASSERT_TRUE(next.has_value());
  EXPECT_NE(*next, *guest);
  EXPECT_FALSE(owner.Begin(*guest));
  EXPECT_FALSE(owner.Is(*guest));
  EXPECT_TRUE(owner.Is(*next));
}

TEST(OwnerWordTest, AClaimComesToNothingWhereThereWasAnotherSinceTheLook) {
  std::atomic<uint64_t> word{0};
  const OwnerWord owner(&word);
  const uint64_t look = owner.Look();
  ASSERT_TRUE(owner.Claim(getpid(), Deadline::Now()).has_value());
  EXPECT_FALSE(owner.ClaimSince(look).has_value());
}

TEST(OwnerWordTest, AWriteIsWaitedFor) {
  std::atomic<uint64_t> word{0};
  const OwnerWord owner(&word);
  const uint64_t guest = *owner.ClaimSince(owner.Look());
  ASSERT_TRUE(owner.Begin(guest));
  EXPECT_FALSE(owner.Claim(getpid(), Deadline::After(std::chrono::milliseconds(10))).has_value());
  EXPECT_FALSE(owner.Is(guest));
  std::optional<uint64_t> next;
  std::thread claims([&] { next = owner.Claim(getpid(), Deadline::After(std::chrono::seconds(20))); });
  owner.End();
  claims.join();
  EXPECT_TRUE(next.has_value());
  EXPECT_FALSE(owner.Begin(guest));
}

TEST(OwnerWordTest, AGuestThatWritesWithoutAPauseIsNoObstacle) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<uint64_t> word{0};
    const OwnerWord owner(&word);
    const uint64_t guest = *owner.ClaimSince(owner.Look());
    std::atomic<bool> writes{false};
    std::thread writer([&] {
      while (owner.Begin(guest)) {
        writes.store(true);
        owner.End();
      }
    });
    while (!writes.load()) std::this_thread::yield();
    EXPECT_TRUE(owner.Claim(getpid(), Deadline::After(std::chrono::seconds(20))).has_value());
    EXPECT_FALSE(owner.Begin(guest));
    writer.join();
  }
}

TEST(OwnerWordTest, ARevokedGuestEndsItsWriteAndBeginsNoOther) {
  std::atomic<uint64_t> word{0};
  const OwnerWord owner(&word);
  const uint64_t guest = *owner.ClaimSince(owner.Look());
  ASSERT_TRUE(owner.Begin(guest));
  owner.Revoke();
  EXPECT_FALSE(owner.ClaimSince(owner.Look()).has_value()) << "it still writes";
  owner.End();
  EXPECT_FALSE(owner.Begin(guest));
  EXPECT_TRUE(owner.ClaimSince(owner.Look()).has_value());
}

TEST(OwnerWordTest, TheWriteOfADeadProcessIsOver) {
  void* const memory =
      mmap(nullptr, sizeof(std::atomic<uint64_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const OwnerWord owner(new (memory) std::atomic<uint64_t>(0));
  testing::Child guest([owner] { return owner.Begin(*owner.ClaimSince(owner.Look())) ? 0 : 1; });
  const pid_t pid = guest.pid();
  EXPECT_EQ(guest.Wait(), 0);
  EXPECT_FALSE(owner.ClaimSince(owner.Look()).has_value());
  EXPECT_TRUE(owner.Claim(pid, Deadline::Now()).has_value());
  munmap(memory, sizeof(std::atomic<uint64_t>));
}

}  // namespace
}  // namespace cohort::runtime
