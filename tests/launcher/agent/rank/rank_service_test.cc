// The agent's side of agent.proto, spoken to by hand: who is let in, what each request is answered with.
#include "cohort/launcher/agent/rank/rank_service.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cohort/runtime/segment/agent_protocol.h"
#include "cohort/runtime/segment/segment.h"
#include "tests/launcher/agent/rank/served_ranks.h"

namespace cohort::launcher {
namespace {

TEST_F(RankServiceTest, WelcomesARankAndHandsOutTheSegment) {
  Client client(address_);
  ASSERT_TRUE(client.connected());
  client.SayHello(0);
  const v1::AgentMessage message = client.Receive();
  ASSERT_TRUE(message.has_welcome()) << message.ShortDebugString();
  EXPECT_EQ(message.welcome().rank(), 1u);
  EXPECT_EQ(message.welcome().node(), 1u);
  EXPECT_EQ(message.welcome().world_size(), 1002u);
  EXPECT_EQ(message.welcome().local_world_size(), 2u);
  EXPECT_EQ(message.welcome().job_secret().size(), 32u);
  EXPECT_EQ(message.welcome().data_interface_ip(), "127.0.0.1");
  ASSERT_TRUE(client.segment().valid());
  const auto segment = runtime::Segment::Attach(client.segment().Release(), 0);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ((*segment)->local_ranks(), 2);

  // The rest of the nodes, page by page, and news with a raised event count.
  int nodes = message.welcome().nodes_size();
  while (nodes < 1000) {
    v1::RankMessage request;
    request.mutable_nodes()->set_request(5);
    request.mutable_nodes()->set_first(static_cast<uint32_t>(nodes));
    client.Send(request);
    const v1::NodesReply reply = client.Receive().nodes();
    ASSERT_GT(reply.nodes_size(), 0);
    EXPECT_EQ(reply.nodes(0).index(), static_cast<uint32_t>(nodes));
    nodes += reply.nodes_size();
  }
  EXPECT_EQ(nodes, 1000);
  const uint32_t before = (*segment)->control(0).events.load();
  v1::RanksLost lost;
  lost.add_ranks(2);
  lost.add_ranks(700);
  lost.set_text("rank 2 is gone");
  loop_.Post([&] { service_->OnRanksLost(lost); });
  EXPECT_EQ(client.Receive().ranks_lost().text(), "rank 2 is gone");
  EXPECT_EQ((*segment)->control(1).state.load(), runtime::kRankLost);
  // The packet comes first, then the count: look until it is there.
  while ((*segment)->control(0).events.load() == before) std::this_thread::yield();
}

TEST_F(RankServiceTest, RefusesStrangersByName) {
  struct Case {
    uint32_t local_rank;
    uint32_t protocol;
    const char* says;
  };
  for (const Case& wrong : {Case{0, 99, "version 99"}, Case{7, runtime::kAgentProtocol, "no local rank 7"},
                            Case{1, runtime::kAgentProtocol, "does not belong to local rank 1"}}) {
    if (wrong.local_rank == 1) {
      // A group that exists and is not ours.
      stranger_ = ::fork();
      if (stranger_ == 0) {
        ::pause();
        ::_exit(0);
      }
    }
    Client client(address_);
    client.SayHello(wrong.local_rank, wrong.protocol);
    const v1::AgentMessage message = client.Receive();
    EXPECT_NE(message.refused().find(wrong.says), std::string::npos) << message.ShortDebugString();
    EXPECT_FALSE(client.segment().valid());
    EXPECT_EQ(client.Receive().kind_case(), v1::AgentMessage::KIND_NOT_SET) << "and the connection is closed";
  }
  ::kill(stranger_, SIGKILL);
  ::waitpid(stranger_, nullptr, 0);
}

TEST_F(RankServiceTest, ARankIsOneProcess) {
  Client first(address_);
  first.SayHello(0);
  ASSERT_TRUE(first.Receive().has_welcome());
  Client second(address_);
  second.SayHello(0);
  EXPECT_NE(second.Receive().refused().find("already"), std::string::npos);
}

TEST_F(RankServiceTest, AProcessThatIsStillARankIsRefusedWithThatReason) {
  Client first(address_);
  first.SayHello(0);
  ASSERT_TRUE(first.Receive().has_welcome());
  Client second(address_);
  second.SayHello(0);
  EXPECT_NE(second.Receive().refused().find("has a runtime already: finalize it"), std::string::npos);
  EXPECT_EQ(Get(&first, "key", 1).value(), "value of key") << "and the first goes on";
}

// The second hello may come before the agent has read the goodbye, and while the first connection is open.
TEST_F(RankServiceTest, ARankMayJoinAgainAfterItsGoodbyeInASegmentOfItsOwn) {
  v1::RankMessage goodbye;
  goodbye.mutable_goodbye();
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::unique_ptr<runtime::Segment>> segments;
  for (uint64_t k = 0; k < 3; ++k) {
    std::atomic<bool> sent{false};
    loop_.Post([&] {
      while (!sent) std::this_thread::yield();  // goodbye and hello are there together
    });
    if (k > 0) clients.back()->Send(goodbye);
    clients.push_back(std::make_unique<Client>(address_));
    clients.back()->SayHello(0);
    sent = true;
    ASSERT_TRUE(clients.back()->Receive().has_welcome());
    auto segment = runtime::Segment::Attach(clients.back()->segment().Release(), 0);
    ASSERT_TRUE(segment.ok()) << segment.status();
    EXPECT_EQ(runtime::ReopenedOf((*segment)->epoch()), k);
    EXPECT_EQ(runtime::EpochOf((*segment)->epoch()), 1u);
    segments.push_back(*std::move(segment));
  }
  EXPECT_EQ(goodbyes_, 2);
  EXPECT_EQ(clients.front()->Receive().kind_case(), v1::AgentMessage::KIND_NOT_SET) << "its connection has ended";
  // A lost rank is lost for every runtime, those that come later too.
  v1::RanksLost lost;
  lost.add_ranks(2);
  lost.set_text("rank 2 is gone");
  loop_.Post([&] { service_->OnRanksLost(lost); });
  EXPECT_EQ(clients.back()->Receive().ranks_lost().text(), "rank 2 is gone");
  clients.back()->Send(goodbye);
  Client last(address_);
  last.SayHello(0);
  ASSERT_TRUE(last.Receive().has_welcome());
  EXPECT_EQ(last.Receive().ranks_lost().text(), "rank 2 is gone");
  const auto segment = runtime::Segment::Attach(last.segment().Release(), 0);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ((*segment)->control(1).state.load(), runtime::kRankLost);
  EXPECT_EQ(segments.front()->control(1).state.load(), runtime::kRankLost);
  EXPECT_EQ(vanished_, 0);
}

TEST_F(RankServiceTest, ARankIsNotFarAheadOfAnother) {
  v1::RankMessage goodbye;
  goodbye.mutable_goodbye();
  std::string refused;
  size_t opened = 0;
  for (; refused.empty() && opened < 2 * runtime::EpochSegments::kMostAhead; ++opened) {
    Client client(address_);
    client.SayHello(0);
    refused = client.Receive().refused();
    client.Send(goodbye);
    (void)Get(&client, "key", 1);
  }
  EXPECT_NE(refused.find("ranks open equally many"), std::string::npos) << refused;
  EXPECT_EQ(opened, runtime::EpochSegments::kMostAhead + 2);
}

TEST_F(RankServiceTest, ARankThatJoinsLateIsToldOfEarlierFailures) {
  loop_.Post([this] {
    v1::GroupFailure failure;
    failure.set_group(7);
    failure.mutable_members()->set_everyone(true);
    failure.set_from_rank(0);
    service_->OnGroupFailure(failure);
    v1::RanksLost lost;
    lost.add_ranks(0);
    service_->OnRanksLost(lost);
  });
  Client client(address_);
  client.SayHello(0);
  ASSERT_TRUE(client.Receive().has_welcome());
  EXPECT_EQ(client.Receive().group_failure().group(), 7u);
  EXPECT_EQ(client.Receive().ranks_lost().ranks_size(), 1);
}

// All ranks of a large group say so when its time is over; the rendezvous need hear it once from a node.
TEST_F(RankServiceTest, AGroupWhoseTimeIsOverIsPassedOnOnce) {
  Client client(address_);
  client.SayHello(0);
  ASSERT_TRUE(client.Receive().has_welcome());
  const auto say = [&client](uint64_t group, absl::StatusCode code) {
    v1::RankMessage message;
    message.mutable_group_failure()->set_group(group);
    message.mutable_group_failure()->set_code(static_cast<uint32_t>(code));
    client.Send(message);
  };
  for (int i = 0; i < 3; ++i) say(7, absl::StatusCode::kDeadlineExceeded);
  for (int i = 0; i < 3; ++i) say(8, absl::StatusCode::kDeadlineExceeded);
  for (int i = 0; i < 3; ++i) say(9, absl::StatusCode::kUnavailable);  // these tell who blames whom
  EXPECT_EQ(Get(&client, "key", 1).value(), "value of key");           // all of them were handled before it
  EXPECT_EQ(failures_, 1 + 1 + 3);
}

TEST_F(RankServiceTest, CachesWhatTheStoreAnswered) {
  Client client(address_);
  client.SayHello(0);
  ASSERT_TRUE(client.Receive().has_welcome());
  for (uint64_t request = 1; request <= 5; ++request) {
    const v1::GetReply reply = Get(&client, "key", request);
    EXPECT_EQ(reply.request(), request);
    EXPECT_EQ(reply.value(), "value of key");
  }
  EXPECT_EQ(gets_, 1);
  EXPECT_FALSE(Get(&client, "absent", 9).found());
  EXPECT_FALSE(Get(&client, "absent", 10).found());
  EXPECT_EQ(gets_, 3) << "what was not found is asked for again";
  v1::RankMessage put;
  put.mutable_put()->set_request(77);
  put.mutable_put()->set_key("mine");
  client.Send(put);
  EXPECT_EQ(client.Receive().put().request(), 77u);
}

TEST_F(RankServiceTest, DistinguishesAnOrderlyEndFromAVanishedRank) {
  {
    Client client(address_);
    client.SayHello(0);
    ASSERT_TRUE(client.Receive().has_welcome());
    v1::RankMessage goodbye;
    goodbye.mutable_goodbye();
    client.Send(goodbye);
    EXPECT_EQ(Get(&client, "key", 1).value(), "value of key");  // the goodbye was handled before it
  }
  EXPECT_EQ(goodbyes_, 1);
  for (int i = 0; i < 2; ++i) {
    // The agent sees the old connection's end before it lets the rank in again.
    for (bool welcome = false; !welcome;) {
      Client client(address_);
      client.SayHello(0);
      welcome = client.Receive().has_welcome();
    }
  }
  while (vanished_ < 2) std::this_thread::yield();
  EXPECT_EQ(vanished_, 2);
}

// Survivors read what a dead rank left in the store once they know of its death: all of it must have arrived by then,
// and nothing may come later.
TEST_F(RankServiceTest, MessagesOfADeadRankComeBeforeItsEndAndNoneAfter) {
  Client client(address_);
  client.SayHello(0);
  ASSERT_TRUE(client.Receive().has_welcome());
  v1::RankMessage put;
  put.mutable_put()->set_request(1);
  put.mutable_put()->set_key("mine");
  constexpr int kPuts = 100;  // more than the loop reads in one turn
  std::atomic<bool> sent{false}, taken{false};
  loop_.Post([&] {
    while (!sent) std::this_thread::yield();  // nothing is read meanwhile
    service_->TakeRest(0, /*for_good=*/true);
    EXPECT_EQ(puts_, kPuts);
    taken = true;
  });
  for (int i = 0; i < kPuts; ++i) client.Send(put);
  sent = true;
  while (!taken) std::this_thread::yield();
  client.Send(put);
  Client other(address_);  // the loop goes on
  other.SayHello(7);
  EXPECT_FALSE(other.Receive().refused().empty());
  EXPECT_EQ(puts_, kPuts);
}

// Whatever a stranger or a broken rank sends: refused or ignored, and others are served as before.
TEST_F(RankServiceTest, SurvivesRandomPackets) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Client rank(address_);
  rank.SayHello(0);
  ASSERT_TRUE(rank.Receive().has_welcome());
  for (int i = 0; i < 200; ++i) {
    Client client(address_);
    std::string bytes(random() % 100, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    client.SendBytes(bytes);
    rank.SendBytes(bytes.substr(0, random() % 4));  // sometimes also on a connection that was let in
  }
  for (;;) {
    Client again(address_);
    again.SayHello(7);
    if (!again.Receive().refused().empty()) break;
  }
}

// More connections than there are places, all from this user, that never say a word.
TEST_F(RankServiceTest, SilentConnectionsLoseTheirPlacesToRanks) {
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(std::make_unique<Client>(address_));
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (bool welcome = false; !welcome;) {
    ASSERT_LT(std::chrono::steady_clock::now(), limit) << "no rank was let in";
    Client rank(address_);
    rank.SayHello(0);
    welcome = rank.Receive().has_welcome();
    if (!welcome) ::poll(nullptr, 0, 20);
  }
}

// This job is not restarted, so there is no next epoch.
TEST_F(RankServiceTest, NextEpochIsRefusedWhereThereIsNone) {
  Client client(address_);
  client.SayHello(0);
  ASSERT_TRUE(client.Receive().has_welcome());
  v1::RankMessage message;
  message.mutable_next_epoch();
  client.Send(message);
  EXPECT_NE(client.Receive().refused().find("--max-restarts"), std::string::npos);
  EXPECT_EQ(staying_, 0);
}

TEST_F(RankServiceTest, ANoticeReachesTheRanksThatAskAndTheirStepsGoUpAsOne) {
  Client client(address_);
  client.SayHello(0);
  ASSERT_TRUE(client.Receive().has_welcome());
  v1::PreemptionNotice notice;
  notice.set_signal(SIGUSR1);
  std::promise<void> told;
  loop_.Post([&] {
    service_->OnPreemption(notice);
    service_->MarkLost(1);
    told.set_value();
  });
  told.get_future().wait();
  v1::RankMessage message;
  message.mutable_preemption();
  client.Send(message);
  EXPECT_EQ(client.Receive().preemption().signal(), SIGUSR1) << "it asked after the notice had come";
  message.set_preemption_step(12);
  client.Send(message);
  v1::StopStep step;
  step.set_step(14);
  const auto await = [](const std::atomic<uint64_t>& number) {
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
         number == 0 && std::chrono::steady_clock::now() < end;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return number.load();
  };
  EXPECT_EQ(await(steps_), 12u);
  loop_.Post([this, step] { service_->OnStopStep(step); });
  EXPECT_EQ(client.Receive().stop_step().step(), 14u);
  message.set_preempted(14);
  client.Send(message);
  EXPECT_EQ(await(stopped_before_), 14u);
}

}  // namespace
}  // namespace cohort::launcher
