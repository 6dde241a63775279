// The way of long private messages is the quicker one of the pair, and changes when that does.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <random>
#include <vector>

#include "cohort/comm/transport/shm/private_way.h"
#include "tests/comm/transport/shm/local_world.h"

namespace cohort::comm::testing {
namespace {

using shm::ReceivedTimes;
using shm::Way;
using shm::WayChooser;
using shm::WayTime;

constexpr size_t kBytes = 64 << 10;

TEST(WayTime, IsTheMedianOfTheLastFive) {
  WayTime time;
  time.Note(kBytes, 64 * 50);
  time.Note(kBytes, 64 * 50);
  EXPECT_EQ(time.ns_per_kib(), 0u);  // two are not enough
  time.Note(kBytes, 64 * 50);
  EXPECT_EQ(time.ns_per_kib(), 50u);
  time.Note(kBytes, 5'000'000);  // interrupted
  time.Note(kBytes, 5'000'000);
  EXPECT_EQ(time.ns_per_kib(), 50u);
  for (int i = 0; i < 3; ++i) time.Note(kBytes, 64 * 500);
  EXPECT_EQ(time.ns_per_kib(), 500u);
  for (int i = 0; i < 5; ++i) time.Note(kBytes, ~uint64_t{0} >> 12);
  EXPECT_EQ(time.ns_per_kib(), WayTime::kMost);
  for (int i = 0; i < 5; ++i) time.Note(kBytes, 0);
  EXPECT_EQ(time.ns_per_kib(), 1u);
}

TEST(ReceivedTimes, AreToldInOneWord) {
  ReceivedTimes times;
  EXPECT_EQ(times.Told(true), 1u);
  EXPECT_EQ(times.Told(false), 0u);
  const size_t bytes[] = {8 << 10, 64 << 10, 4 << 20};
  for (size_t size = 0; size < shm::kWaySizes; ++size) {
    ASSERT_EQ(shm::WaySizeOf(bytes[size]), size);
    for (int i = 0; i < 3; ++i) {
      times.Note(Way::kCopied, bytes[size], bytes[size] / 1024 * (10 + size));
      times.Note(Way::kRead, bytes[size], bytes[size] / 1024 * (1000 + size));
    }
  }
  const uint64_t told = times.Told(true);
  EXPECT_EQ(told & 1, 1u);
  for (size_t size = 0; size < shm::kWaySizes; ++size) {
    EXPECT_EQ(ReceivedTimes::TimeIn(told, Way::kCopied, size), 10 + size);
    EXPECT_EQ(ReceivedTimes::TimeIn(told, Way::kRead, size), 1000 + size);
  }
}

// A pair of ranks on which either way takes a given time; counts the messages that go each way.
class Pair {
 public:
  explicit Pair(Way first) : chooser_(first) {}
  // Times in ns for a KiB.
  void Take(uint64_t copied_in, uint64_t copied_out, uint64_t read) {
    copied_in_ = copied_in, copied_out_ = copied_out, read_ = read;
  }
  Way Send() {
    const Way way = chooser_.Choose(kBytes, times_.Told(true));
    if (way == Way::kCopied) chooser_.NoteCopiedIn(kBytes, copied_in_ * 64);
    times_.Note(way, kBytes, (way == Way::kCopied ? copied_out_ : read_) * 64);
    return way;
  }
  // How many of `messages` were read.
  int Read(int messages) {
    int read = 0;
    for (int i = 0; i < messages; ++i) read += Send() == Way::kRead ? 1 : 0;
    return read;
  }

 private:
  WayChooser chooser_;
  ReceivedTimes times_;
  uint64_t copied_in_ = 1, copied_out_ = 1, read_ = 1;
};

TEST(WayChooser, TriesBothWaysAndTakesTheQuicker) {
  for (const Way first : {Way::kCopied, Way::kRead}) {
    Pair near(first);
    near.Take(10, 20, 60);
    EXPECT_EQ(near.Send(), first);
    EXPECT_EQ(near.Read(20), first == Way::kRead ? 2 : 3);
    EXPECT_LE(near.Read(50), 3);  // the first try
    Pair far(first);
    far.Take(300, 300, 100);
    EXPECT_EQ(far.Send(), first);
    EXPECT_EQ(far.Read(20), first == Way::kRead ? 17 : 18);
    EXPECT_GE(far.Read(50), 47);
    Pair in_between(first);  // copying out alone would be quicker
    in_between.Take(60, 60, 100);
    in_between.Read(10);
    EXPECT_GE(in_between.Read(50), 44);
  }
}

TEST(WayChooser, ForgivesAWayThatBeganSlowly) {
  Pair pair(Way::kCopied);
  pair.Take(150, 150, 500);  // memory that the reader touches for the first time
  pair.Read(6);
  pair.Take(150, 150, 100);
  pair.Read(30);
  EXPECT_EQ(pair.Read(20), 20);
}

TEST(WayChooser, FollowsAPairThatIsMoved) {
  Pair pair(Way::kCopied);
  pair.Take(10, 20, 60);
  pair.Read(20);
  EXPECT_LE(pair.Read(50), 3);
  pair.Take(300, 300, 100);  // moved away: the way in use shows it at once
  pair.Read(4);
  EXPECT_GE(pair.Read(50), 47);
  pair.Take(10, 20, 60);  // and back: reads are slower than copies used to be, no more; a try shows it
  pair.Read(1000);
  EXPECT_LE(pair.Read(50), 3);
}

TEST(WayChooser, TriesTheSlowerWayTheMoreRarelyTheSlowerItIs) {
  Pair twice(Way::kCopied);
  twice.Take(0, 30, 60);
  const int of_twice = twice.Read(100'000);
  EXPECT_GT(of_twice, 1000);
  EXPECT_LT(of_twice, 1600);
  Pair tenfold(Way::kRead);
  tenfold.Take(0, 500, 50);
  const int copied = 100'000 - tenfold.Read(100'000);
  EXPECT_GT(copied, 200);
  EXPECT_LT(copied, 320);
}

TEST(WayChooser, TakesAnyWordOfAPeer) {
  std::mt19937_64 random(7);
  WayChooser chooser(Way::kCopied);
  int read = 0;
  for (int i = 0; i < 100'000; ++i) {
    if (random() % 2 == 0) chooser.NoteCopiedIn(random() % (1 << 22), random() >> (random() % 64));
    read += chooser.Choose(random() % (1 << 22), random() >> (random() % 64)) == Way::kRead ? 1 : 0;
  }
  EXPECT_GT(read, 0);
  EXPECT_LT(read, 100'000);
}

// One message from private memory. True: it was copied, so that the sender was done at once; false: the sender had to
// wait until it was read.
bool WasCopied(Link& from, Link& to, uint64_t seed) {
  const std::vector<std::byte> data = Pattern(8192, seed);
  std::vector<std::byte> received(data.size());
  SendOperation send = SendOf(data.data(), data.size());
  RecvOperation recv = RecvOf(received.data(), received.size());
  const Progress sent = from.TrySend(send);
  EXPECT_NE(sent, Progress::kFailed) << send.error;
  const bool copied = sent == Progress::kDone;
  std::vector<std::function<Progress()>> attempts = {[&] { return to.TryRecv(recv); }};
  if (!copied) attempts.emplace_back([&] { return from.TrySend(send); });
  EXPECT_TRUE(DriveAll(attempts)) << send.error << recv.error;
  EXPECT_EQ(received, data);
  return copied;
}

int CopiedOf(const ShmOptions& options, uint64_t messages) {
  LocalWorld world(2, options);
  const auto a = world.Connect(0, 1), b = world.Connect(1, 0);
  WasCopied(*a, *b, 0);  // finds out whether the receiver can read
  int copied = 0;
  for (uint64_t message = 0; message < messages; ++message) copied += WasCopied(*a, *b, message) ? 1 : 0;
  return copied;
}

TEST(PrivateMessages, GoEitherWayWhereItIsForced) {
  EXPECT_EQ(CopiedOf({.private_reads = true}, 50), 0);
  EXPECT_EQ(CopiedOf({.private_reads = false}, 50), 50);
}

TEST(PrivateMessages, TryBothWaysWhereItIsNot) {
  const int copied = CopiedOf({}, 400);
  EXPECT_GE(copied, 3);
  EXPECT_LE(copied, 397);
}

}  // namespace
}  // namespace cohort::comm::testing
