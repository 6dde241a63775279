// A RAS service of this process, which stands for a rank.
#include "cohort/launcher/agent/evidence/nccl_ras.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/evidence/evidence_gatherer.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

TEST(NcclRas, TheRasPortIsThatOfTheEnvironment) {
  EXPECT_EQ(RasPort({}), 28028);
  EXPECT_EQ(RasPort({"NCCL_RAS_ENABLE=1", "NCCL_RAS_ADDR=localhost:17"}), 17);
  EXPECT_EQ(RasPort({"NCCL_RAS_ADDR=[fe80::1%eth0]:4711"}), 4711);
  EXPECT_EQ(RasPort({"NCCL_RAS_ENABLE=0"}), std::nullopt);
  for (const char* wrong : {"localhost", "localhost:", "h:0", "h:65536", "h:-1", "h:12x", ":"}) {
    EXPECT_EQ(RasPort({std::string("NCCL_RAS_ADDR=") + wrong}), std::nullopt) << wrong;
  }
}

TEST(NcclRas, TheAnswerIsTheTextForPeople) {
  const std::string begin = "SERVER PROTOCOL 2\nOK\n\n";
  EXPECT_EQ(ReadRasAnswer(begin + "Job summary\r\n\n  OK\n\n\n", true), "Job summary\n\n  OK\n");
  EXPECT_EQ(ReadRasAnswer(begin, true), "");
  EXPECT_EQ(ReadRasAnswer("220 mail.example.org ESMTP\n", true), "");
  EXPECT_EQ(ReadRasAnswer("", false), "");
  EXPECT_THAT(ReadRasAnswer(begin + "Job summary\nin th", false), HasSubstr("in th\n... (it had no more to say"));
  const std::string text = ReadRasAnswer(begin + std::string(100'000, '\n') + std::string(99, 'x'), true);
  EXPECT_EQ(text, std::string(99, 'x') + "\n");
  std::string lines = begin;
  for (int i = 0; i < 5000; ++i) lines += "a communicator\n";
  EXPECT_LT(ReadRasAnswer(lines, true).size(), NcclRas::kMaxText + 100);
  EXPECT_THAT(ReadRasAnswer(lines, true), HasSubstr("or too much)"));
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = begin;
    while (random() % 16 != 0) bytes += static_cast<char>(random());
    EXPECT_LE(ReadRasAnswer(bytes, random() % 2 == 0).size(), bytes.size() + 100);
  }
}

std::vector<std::unique_ptr<EvidenceSource>> RasAlone(EventLoop* loop) {
  std::vector<std::unique_ptr<EvidenceSource>> sources;
  sources.push_back(std::make_unique<NcclRas>("NCCL RAS", loop));
  return sources;
}

class AskedRas : public testing::Test {
 protected:
  void SetUp() override {
    listener_ = runtime::FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    ASSERT_EQ(::listen(listener_.get(), 4), 0);
    ASSERT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    ASSERT_TRUE(loop_.Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); }));
  }
  ~AskedRas() override {
    loop_.Unwatch(listener_.get());
    if (client_.valid()) loop_.Unwatch(client_.get());
  }
  EvidenceRank Self() const {
    return {3, ::getpgrp(), {"NCCL_RAS_ADDR=127.0.0.1:" + std::to_string(port_)}, ::getpid()};
  }
  // Returns what came; nothing if there was nothing to ask, or no end of it.
  std::optional<std::vector<Evidence>> Gather(const std::vector<EvidenceRank>& ranks, milliseconds limit,
                                              bool for_job = true) {
    std::optional<std::vector<Evidence>> found;
    const bool asks = gatherer_.Gather({ranks, limit, for_job}, [&](std::vector<Evidence> evidence) {
      found = std::move(evidence);
      loop_.Quit();
    });
    EXPECT_FALSE(found.has_value());
    if (!asks) return std::nullopt;
    const EventLoop::TimerId patience = loop_.After(seconds(60), [this] { loop_.Quit(); });
    loop_.Run();
    loop_.Cancel(patience);
    return found;
  }

  EventLoop loop_;
  EvidenceGatherer gatherer_{RasAlone(&loop_)};
  runtime::FileDescriptor listener_;
  runtime::FileDescriptor client_;
  uint16_t port_ = 0;
  std::string asked_;
  std::string answer_;  // empty: the service is mute
  bool closes_ = true;

 private:
  void Accept() {
    client_ = runtime::FileDescriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    ASSERT_TRUE(loop_.Watch(client_.get(), EPOLLIN, [this](uint32_t) { Read(); }));
  }
  void Read() {
    char part[256];
    const ssize_t got = ::read(client_.get(), part, sizeof(part));
    if (got > 0) asked_.append(part, static_cast<size_t>(got));
    const bool all = asked_.find("STATUS\n") != std::string::npos;
    if (all && !answer_.empty()) {
      EXPECT_EQ(::send(client_.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(answer_.size()));
    }
    if (got <= 0 || (all && closes_ && !answer_.empty())) {
      loop_.Unwatch(client_.get());
      client_.Close();
    }
  }
};

TEST_F(AskedRas, TheAnswerNamesTheRankThatListens) {
  answer_ = "SERVER PROTOCOL 2\nOK\nJob summary\n===\n";
  const auto found = Gather({{1, ::getpgrp() + 1, Self().environment, 1}, Self()}, seconds(60));
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ((*found)[0].source, "NCCL RAS");
  EXPECT_EQ((*found)[0].rank, 3u);
  EXPECT_EQ((*found)[0].text, "Job summary\n===\n");
  EXPECT_EQ(asked_, "CLIENT PROTOCOL 2\nTIMEOUT 1\nSTATUS\n");
}

TEST_F(AskedRas, ASlowAnswerIsCutAtTheLimit) {
  answer_ = "SERVER PROTOCOL 2\nOK\nJob summary\n";
  closes_ = false;
  const auto found = Gather({Self()}, seconds(2));
  ASSERT_TRUE(found.has_value() && found->size() == 1);
  EXPECT_THAT((*found)[0].text, HasSubstr("Job summary\n... ("));
}

TEST_F(AskedRas, AMuteServiceIsNoEvidence) {
  const auto found = Gather({Self()}, milliseconds(100));
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->empty());
}

TEST_F(AskedRas, AnotherServiceIsLeftAtItsFirstBytes) {
  answer_ = "HTTP/1.0 400 Bad Request\r\n";
  closes_ = false;
  const auto found = Gather({Self()}, seconds(60));
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->empty());
}

TEST_F(AskedRas, AnEndlessAnswerIsCut) {
  answer_ = "SERVER PROTOCOL 2\nOK\n";
  while (answer_.size() < 2 * NcclRas::kMaxText) answer_ += "a communicator\n";
  closes_ = false;
  const auto found = Gather({Self()}, seconds(60));
  ASSERT_TRUE(found.has_value() && found->size() == 1);
  EXPECT_LT((*found)[0].text.size(), NcclRas::kMaxText + 100);
}

TEST_F(AskedRas, SocketsOfOthersAreNotAsked) {
  EXPECT_FALSE(Gather({}, seconds(60)).has_value());
  EXPECT_FALSE(Gather({{0, ::getpgrp() + 1, Self().environment, 1}}, seconds(60)).has_value());
  EXPECT_FALSE(Gather({{0, ::getpgrp(), {"NCCL_RAS_ENABLE=0", Self().environment[0]}, 1}}, seconds(60)).has_value());
  EXPECT_FALSE(Gather({{0, ::getpgrp(), Self().environment, 0}}, seconds(60)).has_value());
  EXPECT_FALSE(Gather({Self()}, seconds(60), false).has_value());
}

}  // namespace
}  // namespace cohort::launcher
