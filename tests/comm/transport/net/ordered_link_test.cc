// The parts of a link: numbers of messages, early frames within their bound, credit, and the calls of a mismatch.
#include "cohort/comm/transport/net/ordered_link.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace cohort::comm::net {
namespace {

struct Received : PostedMessage<RecvOperation> {};
struct Header {
  int number = 0;
};
struct Frame : EarlyFrame<Header> {};

TEST(MessageQueueTest, NumbersMessagesInTheOrderOfTheirFirstTry) {
  size_t pending = 0;
  MessageQueue<Received> queue(&pending);
  RecvOperation first, second, third;
  Received& one = queue.Add(first);
  Received& two = queue.Add(second, 3);
  EXPECT_EQ(pending, 2u);
  EXPECT_EQ(queue.Find(0), &one);
  EXPECT_EQ(queue.Find(3), &two);
  EXPECT_EQ(queue.Find(4), nullptr);
  EXPECT_EQ(queue.Add(third).first, 4u);
  queue.Remove(two);
  EXPECT_EQ(second.state, nullptr);
  EXPECT_EQ(queue.Find(3), nullptr);
  EXPECT_EQ(queue.Find(0), &one);
  EXPECT_EQ(pending, 2u);
}

TEST(EarlyFramesTest, KeepsNoMoreThanItsBound) {
  BufferPool buffers;
  EarlyFrames<Frame> early(&buffers, 100);
  ASSERT_NE(early.Add(early.end(), Header{2}, 60, 10), nullptr);
  EXPECT_EQ(early.Add(early.end(), Header{3}, 41, 10), nullptr);
  ASSERT_NE(early.Add(early.begin(), Header{1}, 40, 0), nullptr);
  EXPECT_EQ(early.front().header.number, 1);
  EXPECT_EQ(early.front().data.data, nullptr);
  EXPECT_NE(early.back().data.data, nullptr);
  const auto next = early.Remove(early.begin());
  EXPECT_EQ(next->header.number, 2);
  EXPECT_NE(early.Add(early.end(), Header{3}, 40, 10), nullptr);
}

TEST(CreditTest, GrantsAWindowBeyondWhatIsConsumedAndAwaited) {
  SendCredit sender(1000);
  ReceiveCredit receiver(1000);
  sender.Send(900);
  EXPECT_EQ(sender.allowed(), 100u);
  receiver.Consume(400);
  EXPECT_FALSE(receiver.report_due());
  receiver.Post(200);
  EXPECT_TRUE(receiver.report_due());
  sender.Grant(receiver.granted());
  receiver.Report(receiver.granted());
  EXPECT_FALSE(receiver.report_due());
  EXPECT_EQ(sender.allowed(), 700u);
  sender.Grant(5);  // an old report
  EXPECT_EQ(sender.allowed(), 700u);
}

TEST(CallHistoryTest, NamesThePeersCallOfAMismatch) {
  CallHistory history;
  runtime::CallRecord call;
  for (uint64_t signature = 1; signature < 12; ++signature) {
    call.tag = call.wire_signature = signature;
    history.Add(call);
  }
  RecvOperation known, forgotten;
  known.bytes = 8;
  history.Mismatch(3, 11, 16, &known);
  EXPECT_TRUE(known.mismatch);
  EXPECT_EQ(known.peer_signature, 11u);
  EXPECT_EQ(known.peer_call.tag, 11u);
  EXPECT_NE(known.error.message().find("rank 3"), std::string::npos) << known.error;
  EXPECT_NE(known.error.message().find("16 bytes where 8"), std::string::npos) << known.error;
  history.Mismatch(3, 2, 16, &forgotten);
  EXPECT_EQ(forgotten.peer_call.tag, 0u);
}

TEST(DeliverTest, ReducesInTheOrderThatTheReceiveAsksFor) {
  const std::array<int32_t, 2> incoming = {10, 20};
  std::array<int32_t, 4> data{}, operand = {0, 1, 2, 3};
  RecvOperation receive;
  receive.data = reinterpret_cast<std::byte*>(data.data());
  receive.operand = reinterpret_cast<const std::byte*>(operand.data());
  receive.element_bytes = 4;
  receive.reduce = [](void* to, const void* a, const void* b, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      static_cast<int32_t*>(to)[i] = static_cast<const int32_t*>(a)[i] - static_cast<const int32_t*>(b)[i];
    }
  };
  const auto* bytes = reinterpret_cast<const std::byte*>(incoming.data());
  Deliver(receive, 8, bytes, 8);
  EXPECT_EQ(data, (std::array<int32_t, 4>{0, 0, -8, -17}));
  receive.incoming_first = true;
  Deliver(receive, 0, bytes, 8);
  EXPECT_EQ(data, (std::array<int32_t, 4>{10, 19, -8, -17}));
  receive.reduce = nullptr;
  Deliver(receive, 0, bytes, 4);
  Deliver(receive, 4, nullptr, 0);
  EXPECT_EQ(data, (std::array<int32_t, 4>{10, 19, -8, -17}));
}

}  // namespace
}  // namespace cohort::comm::net
