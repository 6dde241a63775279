// Frames from outside: whatever does not fit is refused; flow control never cuts an element nor stands still.
#include "cohort/comm/transport/tcp/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <random>
#include <string>

#include "cohort/comm/transport/net/ordered_link.h"

namespace cohort::comm::tcp {
namespace {

FrameHeader Valid(uint64_t message_bytes, uint64_t offset, uint64_t bytes) {
  FrameHeader header;
  header.message_bytes = message_bytes;
  header.offset = offset;
  header.frame_bytes = static_cast<uint32_t>(bytes);
  return header;
}

TEST(TcpWire, AcceptsFramesThatFitAndNothingElse) {
  EXPECT_TRUE(CheckFrame(Valid(0, 0, 0)).ok());
  EXPECT_TRUE(CheckFrame(Valid(8, 0, 8)).ok());
  EXPECT_TRUE(CheckFrame(Valid(uint64_t{1} << 40, 4096, kMostFrameBytes)).ok());
  EXPECT_FALSE(CheckFrame(Valid(8, 0, 9)).ok());
  EXPECT_FALSE(CheckFrame(Valid(8, 8, 1)).ok());
  EXPECT_FALSE(CheckFrame(Valid(8, 9, 0)).ok());
  EXPECT_FALSE(CheckFrame(Valid(8, 0, 0)).ok());
  EXPECT_FALSE(CheckFrame(Valid(uint64_t{1} << 40, 0, kMostFrameBytes + 1)).ok());
  EXPECT_FALSE(CheckFrame(Valid(~uint64_t{0}, ~uint64_t{0} - 1, 4)).ok()) << "must not wrap around";
  FrameHeader header = Valid(8, 0, 8);
  header.magic ^= 1;
  EXPECT_FALSE(CheckFrame(header).ok());
  header = Valid(8, 0, 8);
  header.flags = 1u << 5;
  EXPECT_FALSE(CheckFrame(header).ok());
  FrameHeader grant;
  grant.flags = kGrantOnly;
  EXPECT_TRUE(CheckFrame(grant).ok());
  grant.flags = kGrantOnly | kHasRecord;
  EXPECT_FALSE(CheckFrame(grant).ok());
  grant = Valid(8, 0, 8);
  grant.flags = kGrantOnly;
  EXPECT_FALSE(CheckFrame(grant).ok());
}

TEST(TcpWire, RandomHeadersNeverPassAsAFrameThatDoesNotFit) {
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 50'000; ++round) {
    FrameHeader header = Valid(random() % 10000, 0, random() % 10000);
    auto* raw = reinterpret_cast<unsigned char*>(&header);
    for (int change = 0; change < 3; ++change) raw[random() % sizeof header] = static_cast<unsigned char>(random());
    if (!CheckFrame(header).ok()) continue;
    ASSERT_LE(header.frame_bytes, kMostFrameBytes) << "seed " << seed;
    ASSERT_LE(header.offset, header.message_bytes) << "seed " << seed;
    ASSERT_LE(header.frame_bytes, header.message_bytes - header.offset) << "seed " << seed;
  }
}

TEST(TcpWire, TagCoversEveryByteAndTheNumber) {
  const net::SessionKey key = {1, 2, 3};
  const FrameHeader header = Valid(100, 0, 100);
  const uint64_t tag = TagOf(key, header, 7);
  EXPECT_NE(TagOf(key, header, 8), tag);
  EXPECT_NE(TagOf({1, 2, 4}, header, 7), tag);
  for (size_t byte = 0; byte < offsetof(FrameHeader, tag); ++byte) {
    FrameHeader changed = header;
    reinterpret_cast<unsigned char*>(&changed)[byte] ^= 1;
    EXPECT_NE(TagOf(key, changed, 7), tag) << "byte " << byte;
  }
}

// A sender and a receiver that only count: messages of random sizes, receives posted early or late, reports made when
// they are due. Everything arrives, and what waits for a receive stays within the window.
TEST(TcpWire, FlowControlAlwaysGoesOnAndKeepsWithinTheWindow) {
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const FlowLimits limits = LimitsOf(1 + static_cast<int>(random() % 8000));
    net::SendCredit sender(limits.window);
    net::ReceiveCredit receiver(limits.window);
    uint64_t kept = 0;
    const auto report = [&] {
      if (!receiver.report_due()) return;
      sender.Grant(receiver.granted());
      receiver.Report(receiver.granted());
    };
    for (int message = 0; message < 40; ++message) {
      const uint64_t bytes = random() % (uint64_t{1} << random() % 26);
      uint64_t posted = bytes + 1;  // the receive is posted once so much of the message has been sent
      if (random() % 2 == 0) posted = random() % (bytes + 1);
      uint64_t framed = 0;
      bool is_posted = false;
      int idle = 0;
      do {
        const auto post = [&] {
          if (is_posted) return;
          is_posted = true;
          receiver.Post(bytes - framed);
          receiver.Consume(kept);
          kept = 0;
          report();
        };
        if (framed >= posted) post();
        const int64_t frame = limits.FrameBytes(bytes - framed, sender.allowed());
        if (frame < 0) {
          ASSERT_EQ(idle++, 0) << "stands still though the receive is posted; seed " << seed;
          post();
          continue;
        }
        idle = 0;
        ASSERT_TRUE(framed + static_cast<uint64_t>(frame) == bytes || frame % 64 == 0) << "an element may be cut";
        ASSERT_TRUE(frame > 0 || bytes == 0);
        const uint64_t charge = FlowLimits::Charge(static_cast<uint64_t>(frame));
        ASSERT_LE(charge, sender.allowed());
        sender.Send(charge);
        framed += static_cast<uint64_t>(frame);
        if (is_posted) {
          receiver.Consume(charge);
          receiver.Unpost(static_cast<uint64_t>(frame));
          report();
        } else {
          kept += charge;
          ASSERT_LE(kept, limits.window) << "seed " << seed;
        }
        if (framed == bytes) post();
      } while (framed < bytes);
    }
  }
}

TEST(TcpWire, WindowsOfLargeWorldsAreSmaller) {
  EXPECT_EQ(LimitsOf(2).window, uint64_t{4} << 20);
  EXPECT_LE(LimitsOf(1000).window * 1000, uint64_t{256} << 20);
  EXPECT_EQ(LimitsOf(1'000'000).window, uint64_t{64} << 10);
  EXPECT_NE(ConfigurationOf(LimitsOf(2)), ConfigurationOf(LimitsOf(1000)));
}

TEST(TcpWire, TextsOfARecordEndWhateverThePeerSends) {
  std::array<std::byte, sizeof(runtime::CallRecord)> sent;
  sent.fill(std::byte{'x'});
  const runtime::CallRecord record = RecordAt(sent.data());
  EXPECT_EQ(std::string(record.site), std::string(sizeof record.site - 1, 'x'));
  EXPECT_EQ(std::string(record.user_op), std::string(sizeof record.user_op - 1, 'x'));
}

}  // namespace
}  // namespace cohort::comm::tcp
