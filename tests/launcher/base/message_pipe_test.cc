#include "cohort/launcher/base/message_pipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {
namespace {

v1::FromNode Line(int number, size_t size) {
  v1::FromNode message;
  message.mutable_output()->set_rank(static_cast<uint32_t>(number));
  message.mutable_output()->set_text(std::string(size, 'x'));
  return message;
}

TEST(MessageReader, CutsAStreamHoweverItArrives) {
  std::mt19937 random(11);
  std::string stream;
  for (int i = 0; i < 300; ++i)
    AppendDelimited(Line(i, random() % 3 == 0 ? random() % 100'000 : random() % 200), &stream);
  MessageReader reader;
  int next = 0;
  for (size_t at = 0; at < stream.size();) {
    const size_t piece = std::min<size_t>(1 + random() % 70'000, stream.size() - at);
    reader.Append(stream.data() + at, piece);
    at += piece;
    for (v1::FromNode message;;) {
      const auto got = reader.Next(&message);
      ASSERT_TRUE(got.ok()) << got.status();
      if (!*got) break;
      EXPECT_EQ(message.output().rank(), static_cast<uint32_t>(next++));
    }
  }
  EXPECT_EQ(next, 300);
  stream.clear();
  AppendDelimited(Line(300, 10), &stream);
  reader.Append(stream.data(), stream.size());
  v1::FromNode message;
  EXPECT_TRUE(reader.Next(&message).value_or(false)) << "nothing is left of those before it";
  EXPECT_EQ(message.output().rank(), 300u);
}

TEST(MessageReader, RefusesBytesThatAreNoMessage) {
  v1::FromNode message;
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff\xff\xff"), std::string("\xff\xff\xff\x7f"), std::string("\x03\xff\xff\xff", 4)}) {
    MessageReader reader;
    reader.Append(bytes.data(), bytes.size());
    EXPECT_EQ(reader.Next(&message).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// Random bytes are refused or wait for more; they never crash the reader, and to ask again changes nothing.
TEST(MessageReader, SurvivesRandomBytes) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    MessageReader reader;
    reader.Append(bytes.data(), bytes.size());
    v1::FromNode message;
    absl::StatusOr<bool> got = true;
    while (got.ok() && *got) got = reader.Next(&message);
    EXPECT_EQ(reader.Next(&message), got);
  }
}

TEST(MessageWriter, NeverBlocksAndLosesNothing) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EventLoop loop;
  MessageWriter writer(&loop, runtime::FileDescriptor(ends[1]));
  constexpr int kMessages = 500;
  for (int i = 0; i < kMessages; ++i) ASSERT_TRUE(writer.Write(Line(i, 10'000)));  // nobody has read a byte
  EXPECT_TRUE(writer.full());
  std::vector<uint32_t> seen;
  std::thread reader_thread([&] {
    MessageReader reader;
    char buffer[4096];
    while (seen.size() < kMessages) {
      const ssize_t n = ::read(ends[0], buffer, sizeof buffer);
      if (n <= 0) break;
      reader.Append(buffer, static_cast<size_t>(n));
      for (v1::FromNode message; reader.Next(&message).value_or(false);) seen.push_back(message.output().rank());
    }
  });
  writer.set_on_drained([&] {
    if (writer.empty()) loop.Quit();
  });
  loop.After(std::chrono::seconds(60), [&] { loop.Quit(); });
  loop.Run();
  EXPECT_TRUE(writer.empty());
  writer.Close();
  reader_thread.join();
  ::close(ends[0]);
  ASSERT_EQ(seen.size(), static_cast<size_t>(kMessages));
  for (int i = 0; i < kMessages; ++i) EXPECT_EQ(seen[i], static_cast<uint32_t>(i));
}

TEST(MessageWriter, ReportsThatTheOtherEndHasGone) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::signal(SIGPIPE, SIG_IGN);
  ::close(ends[0]);
  EventLoop loop;
  MessageWriter writer(&loop, runtime::FileDescriptor(ends[1]));
  EXPECT_FALSE(writer.Write(Line(1, 10)));
  EXPECT_FALSE(writer.Write(Line(2, 10)));
  EXPECT_TRUE(writer.empty()) << "nothing waits for who has gone";
}

TEST(EventLoop, RunsTimersInOrderAndPostedWork) {
  EventLoop loop;
  std::vector<int> order;
  loop.After(std::chrono::milliseconds(30), [&] { order.push_back(3), loop.Quit(); });
  loop.After(std::chrono::milliseconds(10), [&] { order.push_back(2); });
  const auto cancelled = loop.After(std::chrono::milliseconds(1), [&] { order.push_back(99); });
  loop.Cancel(cancelled);
  std::thread other([&] { loop.Post([&] { order.push_back(1); }); });
  other.join();
  loop.Run();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

}  // namespace
}  // namespace cohort::launcher
