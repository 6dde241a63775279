// Two sides that share the secret prove each other; nobody else gets further than a hello, and nothing serves twice.
#include "cohort/comm/transport/tcp/handshake.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/comm/transport/tcp/terms_of.h"

namespace cohort::comm::tcp {
namespace {

using State = Handshake::State;

// Runs a handshake of `from` with `to`; the frames in order.
struct Conversation {
  Conversation(const HandshakeTerms& from, const HandshakeTerms& to)
      : initiator(*Handshake::Initiate(from, to.rank)), acceptor(*Handshake::Accept(to)) {
    std::optional<HandshakeFrame> frame = initiator.Hello();
    for (bool to_acceptor = true; frame.has_value(); to_acceptor = !to_acceptor) {
      frames.push_back(*frame);
      auto reply = (to_acceptor ? acceptor : initiator).Take(*frame);
      status = reply.status();
      frame = reply.ok() ? *reply : std::nullopt;
    }
  }
  bool proved() const { return initiator.state() == State::kProved && acceptor.state() == State::kProved; }

  Handshake initiator, acceptor;
  std::vector<HandshakeFrame> frames;
  absl::Status status;
};

TEST(TcpHandshake, BothSidesAreProvedAndHaveTheSameKeys) {
  for (const auto& [from, to] : {std::pair(0, 3), std::pair(3, 0)}) {
    const HandshakeTerms own = TermsOf(from), others = TermsOf(to);
    const Conversation run(own, others);
    ASSERT_TRUE(run.proved()) << run.status;
    EXPECT_EQ(run.frames.size(), 4u);
    EXPECT_EQ(run.acceptor.peer(), from);
    EXPECT_EQ(run.initiator.send_key(), run.acceptor.receive_key());
    EXPECT_EQ(run.initiator.receive_key(), run.acceptor.send_key());
    EXPECT_NE(run.initiator.send_key(), run.initiator.receive_key());
    ASSERT_TRUE(run.initiator.TlsKey().ok() && run.acceptor.TlsKey().ok());
    EXPECT_EQ(*run.initiator.TlsKey(), *run.acceptor.TlsKey());
    EXPECT_NE(*run.initiator.TlsKey(), *Conversation(own, others).initiator.TlsKey());
    EXPECT_NE(run.initiator.send_key(), Conversation(own, others).initiator.send_key());
  }
}

TEST(TcpHandshake, EveryTermThatDiffersIsRefusedAtTheHello) {
  const std::vector<std::function<void(HandshakeTerms&)>> changes = {
      [](HandshakeTerms& terms) { terms.secret = "secreu"; },
      [](HandshakeTerms& terms) { terms.job_id = "jo"; },
      [](HandshakeTerms& terms) { terms.job_id = "job1:1"; },
      [](HandshakeTerms& terms) { terms.epoch = 2; },
      [](HandshakeTerms& terms) { terms.configuration = "conf"; },
      [](HandshakeTerms& terms) { terms.rank = 7; },
      [](HandshakeTerms& terms) { terms.rank = 3; },
  };
  const HandshakeTerms others = TermsOf(3);
  for (size_t i = 0; i < changes.size(); ++i) {
    HandshakeTerms own = TermsOf(1);
    changes[i](own);
    const Conversation run(own, others);
    EXPECT_FALSE(run.status.ok()) << i;
    EXPECT_EQ(run.frames.size(), 1u) << i;
    EXPECT_EQ(run.acceptor.state(), State::kRefused) << i;
    EXPECT_EQ(run.acceptor.peer(), -1) << i;
  }
}

TEST(TcpHandshake, EveryChangedByteIsRefused) {
  const HandshakeTerms low = TermsOf(0), high = TermsOf(3);
  const Conversation run(high, low);
  ASSERT_EQ(run.frames.size(), 4u);
  for (size_t byte = 0; byte < sizeof(HandshakeFrame); ++byte) {
    HandshakeFrame hello = run.frames[0];
    reinterpret_cast<unsigned char*>(&hello)[byte] ^= 0x20;
    Handshake acceptor = *Handshake::Accept(low);
    EXPECT_FALSE(acceptor.Take(hello).ok()) << "hello, byte " << byte;
    // In a handshake that goes on: the answer, the confirmation, the welcome.
    for (int step = 1; step <= 3; ++step) {
      Handshake from = *Handshake::Initiate(high, 0), to = *Handshake::Accept(low);
      HandshakeFrame frame = **to.Take(from.Hello());
      if (step > 1) frame = **from.Take(frame);
      if (step > 2) frame = **to.Take(frame);
      reinterpret_cast<unsigned char*>(&frame)[byte] ^= 0x20;
      Handshake& taker = step == 2 ? to : from;
      EXPECT_FALSE(taker.Take(frame).ok()) << "step " << step << ", byte " << byte;
      EXPECT_EQ(taker.state(), State::kRefused);
    }
  }
}

TEST(TcpHandshake, RecordedFramesAreWorthless) {
  const HandshakeTerms low = TermsOf(0), high = TermsOf(3);
  for (const auto& [own, others] : {std::pair(&low, &high), std::pair(&high, &low)}) {
    const Conversation recorded(*own, *others);
    // To the acceptor of another connection of the same process: it answers, and refuses the recorded confirmation.
    Handshake acceptor = *Handshake::Accept(*others);
    EXPECT_TRUE(acceptor.Take(recorded.frames[0]).ok());
    EXPECT_FALSE(acceptor.Take(recorded.frames[2]).ok());
    EXPECT_EQ(acceptor.state(), State::kRefused);
    // To an initiator: the recorded answer is to another hello.
    Handshake initiator = *Handshake::Initiate(*own, others->rank);
    EXPECT_FALSE(initiator.Take(recorded.frames[1]).ok());
    // A frame that is sent back to its sender.
    Handshake mirrored = *Handshake::Initiate(*own, others->rank);
    EXPECT_FALSE(mirrored.Take(mirrored.Hello()).ok());
  }
}

TEST(TcpHandshake, NoFrameIsTakenAfterTheEnd) {
  const HandshakeTerms low = TermsOf(0), high = TermsOf(3);
  Conversation run(low, high);
  ASSERT_TRUE(run.proved());
  for (const HandshakeFrame& frame : run.frames) EXPECT_FALSE(run.acceptor.Take(frame).ok());
}

TEST(TcpHandshake, PublishedTextComesBackWhole) {
  const Published published = {"window64", {"10.0.0.1:4711", "[fe80::1]:80"}, {"10.1.0.1:1", "[fe80::2]:2"}};
  const auto parsed = ParsePublished(ToText(published));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->configuration, published.configuration);
  EXPECT_EQ(parsed->addresses, published.addresses);
  EXPECT_EQ(parsed->rails, published.rails);
  EXPECT_NE(std::string(ParsePublished("cohort-tcp-0 a b").status().message()).find("same build"), std::string::npos);
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  const std::string text = ToText(published);
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = text.substr(0, random() % (text.size() + 1));
    for (int change = 0; change < 3 && !damaged.empty(); ++change) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    (void)ParsePublished(damaged);  // must bear anything; the sanitizers watch
  }
}

}  // namespace
}  // namespace cohort::comm::tcp
