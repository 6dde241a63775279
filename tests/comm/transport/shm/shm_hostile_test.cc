// A peer may write anything into the segment: the operation fails or waits, and nothing else is touched. Also calls
// that do not match, which are the honest form of it.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "cohort/comm/transport/shm/layout.h"
#include "cohort/runtime/segment/black_box.h"
#include "tests/comm/transport/shm/local_world.h"

namespace cohort::comm {
namespace {

using testing::kSignature;
using testing::LocalWorld;
using testing::Pattern;
using testing::RecvOf;
using testing::SendOf;

constexpr LinkSpec kVictimSpec{.group = 1, .epoch = 1, .peer_world_rank = 1};

// Holds what rank 1 shares for its link with rank 0.
struct Attacker {
  explicit Attacker(LocalWorld& world) {
    const auto block = world.segment(1).LookUp(1, shm::LinkKey(kVictimSpec, 1, 0));
    EXPECT_TRUE(block.has_value());
    bytes = block->bytes;
    memory = static_cast<std::byte*>(*world.segment(1).Map(*block));
    ack = reinterpret_cast<shm::Ack*>(memory + sizeof(shm::EndpointHeader));
    slots = reinterpret_cast<shm::Slot*>(memory + sizeof(shm::EndpointHeader) + shm::AckBytes(1));
  }
  std::byte* memory = nullptr;
  size_t bytes = 0;
  shm::Ack* ack = nullptr;
  shm::Slot* slots = nullptr;

  // The line of message `number`, counted from 0.
  shm::Line& LineOf(uint64_t number) const { return slots[shm::SlotOf(number, shm::kLinkSlots - 1)].line; }
};

// A receive buffer with guards around it.
struct Guarded {
  explicit Guarded(size_t bytes) : bytes(bytes), memory(bytes + 2 * kGuard, std::byte{0x5a}) {}
  std::byte* data() { return memory.data() + kGuard; }
  bool Intact() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (memory[i] != std::byte{0x5a} || memory[kGuard + bytes + i] != std::byte{0x5a}) return false;
    }
    return true;
  }
  static constexpr size_t kGuard = 4096;
  size_t bytes;
  std::vector<std::byte> memory;
};

uint64_t Interesting(std::mt19937_64& random, size_t bytes, uint64_t segment_bytes) {
  switch (random() % 8) {
    case 0:
      return random();
    case 1:
      return ~uint64_t{0} - random() % 8192;
    case 2:
      return bytes;
    case 3:
      return bytes + 1;
    case 4:
      return shm::kFirstRingBytes;
    case 5:
      return shm::kGrownPastCacheRingBytes;
    case 6:
      return segment_bytes - random() % (2 * bytes + 1);
    default:
      return random() % (2 * bytes + 1);
  }
}

TEST(ShmHostile, AnyDescriptorFailsOrWaitsAndStaysInBounds) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  LocalWorld world(2);
  const auto segment_bytes = static_cast<uint64_t>(lseek(world.agent().fd(), 0, SEEK_END));
  for (uint64_t round = 0; round < 3000; ++round) {
    auto victim = world.Connect(0, 1);
    auto peer = world.Connect(1, 0);
    Attacker attacker(world);
    const size_t bytes = std::vector<size_t>{8, 48, 49, 1024, 1025, 4096, 8192, 40'000, 600'000}[random() % 9];
    Guarded buffer(bytes);
    RecvOperation recv = RecvOf(buffer.data(), bytes);
    std::vector<std::byte> operand(bytes);
    if (random() % 2 == 0 && bytes % 8 == 0) {
      recv.reduce = testing::Subtract<uint64_t>;
      recv.element_bytes = 8;
      recv.operand = operand.data();
    }
    for (int i = 0; i < 8; ++i) {
      shm::Line& line = attacker.LineOf(static_cast<uint64_t>(i));
      shm::Descriptor descriptor{.total = random() % 4 == 0 ? Interesting(random, bytes, segment_bytes) : bytes,
                                 .length = Interesting(random, bytes, segment_bytes),
                                 .area_offset = Interesting(random, bytes, segment_bytes),
                                 .area_bytes = Interesting(random, bytes, segment_bytes),
                                 .position = Interesting(random, bytes, segment_bytes),
                                 .past_cache = static_cast<uint32_t>(
                                     random() % 2 == 0 ? random() % 2 : Interesting(random, bytes, segment_bytes)),
                                 .reading_ns = static_cast<uint32_t>(random() >> (random() % 64))};
      std::memcpy(line.payload, &descriptor, sizeof descriptor);
      line.signature = kSignature;
      line.stamp.store(shm::Stamp(static_cast<uint64_t>(i) + 1, static_cast<shm::MessageKind>(random() % 7),
                                  random() % 4 == 0 ? random() % 256 : bytes % 256));
    }
    for (int i = 0; i < 20; ++i) {
      const Progress progress = victim->TryRecv(recv);
      if (progress == Progress::kDone || progress == Progress::kFailed) break;
    }
    ASSERT_TRUE(buffer.Intact()) << "round " << round;
  }
}

TEST(ShmHostile, RandomBytesAnywhereNeitherCrashNorPass) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    LocalWorld world(2);
    auto victim = world.Connect(0, 1);
    auto peer = world.Connect(1, 0);
    const bool attached_before = random() % 2 == 0;
    Guarded buffer(5000);
    RecvOperation recv = RecvOf(buffer.data(), 5000);
    if (attached_before) {
      ASSERT_EQ(victim->TryRecv(recv), Progress::kBlocked);
    }
    Attacker attacker(world);
    for (size_t i = 0; i + 8 <= attacker.bytes; i += 8) {
      const uint64_t word = random() % 3 == 0 ? 0 : random();
      std::memcpy(attacker.memory + i, &word, 8);
    }
    const std::vector<std::byte> data = Pattern(5000, 1);
    std::vector<SendOperation> sends(40, SendOf(data.data(), data.size()));
    int failed = 0;
    for (SendOperation& send : sends) failed += victim->TrySend(send) == Progress::kFailed;
    for (int i = 0; i < 100; ++i) ASSERT_NE(victim->TryRecv(recv), Progress::kDone);
    ASSERT_TRUE(buffer.Intact());
    // The peer's own memory is in ruins, its link's end must not disturb anybody.
  }
}

TEST(ShmHostile, ImpossibleAckFailsTheSend) {
  LocalWorld world(2);
  auto victim = world.Connect(0, 1), peer = world.Connect(1, 0);
  Attacker(world).ack->messages.store(1'000'000);
  const std::vector<std::byte> data(8);
  Progress progress = Progress::kDone;
  for (int i = 0; i < 100 && progress != Progress::kFailed; ++i) {
    SendOperation send = SendOf(data.data(), data.size());
    progress = victim->TrySend(send);
    if (progress == Progress::kFailed) {
      EXPECT_EQ(send.error.code(), absl::StatusCode::kInternal);
    }
  }
  EXPECT_EQ(progress, Progress::kFailed);
}

TEST(ShmHostile, LengthsThatDifferAreAnErrorAndOverflowNothing) {
  for (auto [sent, expected] :
       std::vector<std::pair<size_t, size_t>>{{8, 16}, {16, 8}, {100, 48}, {48, 100}, {9000, 8999}, {50'000, 8}}) {
    LocalWorld world(2);
    auto a = world.Connect(0, 1), b = world.Connect(1, 0);
    const std::vector<std::byte> data = Pattern(sent, 1);
    SendOperation send = SendOf(data.data(), sent);
    ASSERT_NE(a->TrySend(send), Progress::kFailed);
    Guarded buffer(expected);
    RecvOperation recv = RecvOf(buffer.data(), expected);
    ASSERT_EQ(b->TryRecv(recv), Progress::kFailed);
    EXPECT_EQ(recv.error.code(), absl::StatusCode::kInternal) << recv.error;
    EXPECT_FALSE(recv.mismatch);
    EXPECT_TRUE(buffer.Intact());
  }
}

TEST(ShmHostile, MismatchNamesThePeersCallAndLeavesMemoryAlone) {
  for (size_t bytes : {8u, 100u, 100'000u}) {
    LocalWorld world(2);
    auto a = world.Connect(0, 1), b = world.Connect(1, 0);
    runtime::CallRecord theirs, ours;
    theirs.signature = {.group = 1, .sequence = 42, .count = 3, .epoch = 1, .kind = 5};
    std::strncpy(theirs.site, "theirs.cc:7", sizeof theirs.site - 1);
    ours.signature = {.group = 1, .sequence = 42, .count = 4, .epoch = 1, .kind = 5};
    (void)world.segment(0).black_box().Start(theirs);

    const uint64_t their_hash = runtime::HashSignature(theirs.signature);
    const std::vector<std::byte> data = Pattern(bytes, 1);
    SendOperation send = SendOf(data.data(), bytes, their_hash);
    ASSERT_NE(a->TrySend(send), Progress::kFailed);
    std::vector<std::byte> untouched(bytes, std::byte{0x77});
    const std::vector<std::byte> before = untouched;
    RecvOperation recv = RecvOf(untouched.data(), bytes, runtime::HashSignature(ours.signature));
    recv.call = &ours;
    ASSERT_EQ(b->TryRecv(recv), Progress::kFailed);
    EXPECT_TRUE(recv.mismatch);
    EXPECT_EQ(recv.peer_signature, their_hash);
    EXPECT_EQ(recv.peer_call.signature, theirs.signature);
    EXPECT_STREQ(recv.peer_call.site, "theirs.cc:7");
    EXPECT_EQ(untouched, before);
  }
}

TEST(ShmHostile, AMismatchInAFanoutFailsTheReceive) {
  LocalWorld world(2);
  auto a = world.ConnectFanout(0, 2), b = world.ConnectFanout(1, 2);
  uint64_t value = 1, got = 99;
  SendOperation send = SendOf(reinterpret_cast<std::byte*>(&value), 8, kSignature + 1);
  ASSERT_EQ(a->TryPublish(send), Progress::kDone);
  RecvOperation recv = RecvOf(reinterpret_cast<std::byte*>(&got), 8);
  ASSERT_EQ(b->TryRecv(0, recv), Progress::kFailed);
  EXPECT_TRUE(recv.mismatch);
  EXPECT_EQ(got, 99u);
}

// A rank records a call after its first message: a reader that comes between the two waits for the record.
TEST(ShmHostile, MismatchWaitsForThePeersRecordButNotForever) {
  for (const bool recorded : {true, false}) {
    LocalWorld world(2);
    auto a = world.ConnectFanout(0, 2), b = world.ConnectFanout(1, 2);
    runtime::CallRecord theirs, ours;
    theirs.signature = {.group = 1, .sequence = 42, .count = 3, .epoch = 1, .kind = 5};
    ours.signature = {.group = 1, .sequence = 42, .count = 4, .epoch = 1, .kind = 5};
    uint64_t value = 1, got = 99;
    SendOperation send = SendOf(reinterpret_cast<std::byte*>(&value), 8, runtime::HashSignature(theirs.signature));
    ASSERT_EQ(a->TryPublishQuietly(send), Progress::kDone);
    RecvOperation recv = RecvOf(reinterpret_cast<std::byte*>(&got), 8, runtime::HashSignature(ours.signature));
    recv.call = &ours;
    ASSERT_EQ(b->TryRecv(0, recv), Progress::kBlocked);
    if (recorded) (void)world.segment(0).black_box().Start(theirs);
    const runtime::Deadline deadline = runtime::Deadline::After(std::chrono::seconds(10));
    while (b->TryRecv(0, recv) != Progress::kFailed && !deadline.passed()) std::this_thread::yield();
    EXPECT_TRUE(recv.mismatch);
    EXPECT_EQ(recv.peer_call.signature.count, recorded ? 3u : 0u);
    EXPECT_EQ(got, 99u);
  }
}

}  // namespace
}  // namespace cohort::comm
