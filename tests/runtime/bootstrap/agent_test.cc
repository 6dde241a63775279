// Joining a job through an agent, and living with what the agent says, or no longer says.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/runtime/runtime.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/layout.h"
#include "tests/runtime/bootstrap/fake_agent.h"
#include "tests/runtime/bootstrap/news.h"
#include "tests/runtime/bootstrap/storing_agent.h"
#include "tests/runtime/child.h"

namespace cohort::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Agent;
using testing::FakeAgent;
using testing::Join;
using testing::News;
using testing::Soon;

TEST(AgentTest, LearnsItsIdentity) {
  Agent agent(3);
  auto runtime = Join(agent.fake, 1);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const Identity& identity = (*runtime)->identity();
  EXPECT_EQ(identity.job_id, "job");
  EXPECT_EQ(identity.epoch, 3u);
  EXPECT_EQ(identity.rank, 1);
  EXPECT_EQ(identity.world_size, 3);
  EXPECT_EQ(identity.nodes.at(0).name, "node0");
  EXPECT_EQ(identity.job_secret, std::string(32, 's'));
  EXPECT_EQ(agent.fake.segment().control(1).pid.load(), getpid());
  EXPECT_TRUE((*runtime)->Finalize().ok());
  EXPECT_TRUE(agent.Next().has_goodbye());
  EXPECT_EQ(agent.fake.segment().control(1).state.load(), 2u);
}

TEST(AgentTest, AsksForTheRestOfTheNodes) {
  static constexpr uint32_t kNodes = 1000;
  FakeAgent agent(2, [](FakeAgent& self, const v1::RankMessage& message) {
    const auto add = [](auto* nodes, uint32_t index) {
      v1::Node* node = nodes->Add();
      node->set_index(index);
      node->set_first_rank(index * 2);
      node->set_rank_count(2);
    };
    if (message.has_hello()) {
      v1::AgentMessage welcome = self.Welcome(1);
      welcome.mutable_welcome()->set_world_size(kNodes * 2);
      welcome.mutable_welcome()->set_rank(1001);
      welcome.mutable_welcome()->set_node(500);
      welcome.mutable_welcome()->set_node_count(kNodes);
      welcome.mutable_welcome()->clear_nodes();
      self.Send(welcome, true);
    } else if (message.has_nodes()) {
      v1::AgentMessage page;
      page.mutable_nodes()->set_request(message.nodes().request());
      const uint32_t first = message.nodes().first();
      for (uint32_t i = first; i < std::min<uint32_t>(kNodes, first + 300); ++i)
        add(page.mutable_nodes()->mutable_nodes(), i);
      self.Send(page);
    }
  });
  auto runtime = Join(agent, 1);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->node_count(), static_cast<int>(kNodes));
  EXPECT_EQ((*runtime)->node_of(1999), 999);
  EXPECT_EQ((*runtime)->local_rank_of(1999), 1);
}

TEST(AgentTest, RefusalsSayWhy) {
  FakeAgent agent(1, [](FakeAgent& self, const v1::RankMessage&) {
    v1::AgentMessage message;
    message.set_refused("too late");
    self.Send(message);
  });
  const absl::Status status = Join(agent, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("too late"), std::string::npos) << status;
}

TEST(AgentTest, ARecorderWritesTheBoxAndReportsWatchedCalls) {
  Agent agent(2);
  const std::unique_ptr<Bootstrap> recorder = RecorderFromAgent(agent.fake.address(), 1);
  const auto joined = recorder->Join(Soon());
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->identity.rank, 1);
  BlackBoxWriter(&RankPartOf(joined->segment.get(), 1)->black_box).Start({});
  EXPECT_EQ(agent.fake.segment().black_box_of(1).latest(), 1u);
  EXPECT_EQ(agent.fake.segment().control(1).state.load(), kRankAbsent);  // a runtime may come
  recorder->ReportStall(7, 3, 42, {.everyone = true}, /*expired=*/false);
  const v1::RankMessage message = agent.Next();
  EXPECT_EQ(message.stall().sequence(), 42u);
  EXPECT_TRUE(message.stall().watched());
}

TEST(AgentTest, ARecorderOfARankThatHasJoinedIsNotWanted) {
  FakeAgent agent(1, [](FakeAgent& self, const v1::RankMessage& message) {
    EXPECT_TRUE(message.hello().records());
    v1::AgentMessage refusal;
    refusal.set_refused("");
    self.Send(refusal);
  });
  EXPECT_EQ(RecorderFromAgent(agent.address(), 0)->Join(Soon()).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(AgentTest, ASilentAgentEndsInTheDeadline) {
  FakeAgent agent(1, [](FakeAgent&, const v1::RankMessage&) {});
  EXPECT_EQ(Join(agent, 0, milliseconds(50)).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(AgentTest, BadWelcomesAreRefused) {
  using Change = std::function<void(v1::Welcome*)>;
  const std::vector<Change> changes = {
      [](v1::Welcome* w) { w->set_protocol(kAgentProtocol + 1); },
      [](v1::Welcome* w) { w->set_rank(2); },
      [](v1::Welcome* w) { w->set_rank(0); },
      [](v1::Welcome* w) { w->set_world_size(0); },
      [](v1::Welcome* w) { w->set_world_size(0xffffffff); },
      [](v1::Welcome* w) { w->set_world_size(5); },
      [](v1::Welcome* w) { w->set_local_rank(7); },
      [](v1::Welcome* w) { w->set_local_rank(0), w->set_rank(0); },
      [](v1::Welcome* w) { w->set_local_world_size(3); },
      [](v1::Welcome* w) { w->set_local_world_size(0); },
      [](v1::Welcome* w) { w->set_node(1); },
      [](v1::Welcome* w) { w->mutable_nodes(0)->set_first_rank(1); },
      [](v1::Welcome* w) { w->mutable_nodes(0)->set_rank_count(0); },
      [](v1::Welcome* w) { w->mutable_nodes(0)->set_rank_count(0x80000001); },
      [](v1::Welcome* w) { w->mutable_nodes(0)->set_index(4); },
      [](v1::Welcome* w) { *w->add_nodes() = w->nodes(0); },
      [](v1::Welcome* w) { w->set_devices_per_rank(5000); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    FakeAgent agent(2, [&changes, i](FakeAgent& self, const v1::RankMessage&) {
      v1::AgentMessage message = self.Welcome(1);
      changes[i](message.mutable_welcome());
      self.Send(message, true);
    });
    EXPECT_FALSE(Join(agent, 1).ok()) << i;
  }
  FakeAgent no_segment(2, [](FakeAgent& self, const v1::RankMessage&) { self.Send(self.Welcome(1)); });
  EXPECT_FALSE(Join(no_segment, 1).ok());
}

// Any bytes instead of a welcome: an error, whatever they are.
TEST(AgentTest, NonsenseIsAnError) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    FakeAgent agent(2, [&random](FakeAgent& self, const v1::RankMessage&) {
      std::string bytes = self.Welcome(1).SerializeAsString();
      for (int i = 0; i < 3; ++i)
        bytes[random() % bytes.size()] =
            static_cast<char>(random() % 128);  // other bytes only give remarks about UTF-8
      bytes.resize(1 + random() % bytes.size());
      self.SendBytes(bytes, true);
    });
    const auto runtime = Join(agent, 1, milliseconds(200));
    if (runtime.ok()) {
      EXPECT_EQ((*runtime)->local_rank(), 1);
    }
  }
}

TEST(AgentTest, TheStoreIsReachedThroughTheAgent) {
  Agent agent(1);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_TRUE((*runtime)->Put("a", std::string(40'000, '\0'), Soon()).ok());
  EXPECT_EQ((*runtime)->Put("a", "1", Soon()).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(*(*runtime)->Get("a", Soon()), std::string(40'000, '\0'));
  EXPECT_EQ((*runtime)->Get("b", Deadline::Now()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ((*runtime)->Put("c", std::string(60'000, 'x'), Soon()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*runtime)->Put("", "x", Soon()).code(), absl::StatusCode::kInvalidArgument);
  const std::string longest(1024, 'k');
  EXPECT_TRUE((*runtime)->Put(longest, "x", Soon()).ok());
  EXPECT_EQ((*runtime)->Put(longest + "k", "x", Soon()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*runtime)->Get(longest + "k", Soon()).status().code(), absl::StatusCode::kInvalidArgument);
  // Keys are bytes: no two of them are the same key.
  EXPECT_TRUE((*runtime)->Put("\xc3\xa9", "1", Soon()).ok());
  EXPECT_TRUE((*runtime)->Put("\xc3\xa8", "2", Soon()).ok());
}

TEST(AgentTest, ManyThreadsAskAtOnceWhileTheEngineRuns) {
  Agent agent(1);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  std::atomic<int> finished{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const std::string key = std::to_string(t) + "/" + std::to_string(i);
        if (!(*runtime)->Put(key, key, Soon()).ok()) wrong.fetch_add(1);
        const auto value = (*runtime)->Get(key, Soon());
        if (!value.ok() || *value != key) wrong.fetch_add(1);
      }
      finished.fetch_add(1);
    });
  }
  EXPECT_TRUE((*runtime)->engine().DriveUntil([&finished] { return finished.load() == 4; }, Soon()));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(AgentTest, NewsReachListeners) {
  Agent agent(3);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  News news(**runtime);
  v1::AgentMessage message;
  message.mutable_ranks_lost()->add_ranks(2);
  message.mutable_ranks_lost()->add_ranks(900);  // of no rank of this world
  message.mutable_ranks_lost()->set_text("rank 2 killed by SIGKILL");
  agent.fake.Tell(message, 0);
  ASSERT_TRUE(news.Await());
  EXPECT_EQ(news.lost, std::vector<int>{2});
  EXPECT_EQ((*runtime)->rank_status(2), absl::UnavailableError("rank 2 killed by SIGKILL"));

  message.Clear();
  message.mutable_group_failure()->set_group(5);
  message.mutable_group_failure()->set_code(77);
  message.mutable_group_failure()->set_text("broken");
  message.mutable_group_failure()->mutable_members()->set_everyone(true);
  agent.fake.Tell(message, 0);
  ASSERT_TRUE(news.Await());
  EXPECT_EQ(news.failures.at(0).status, absl::UnknownError("broken"));
  EXPECT_TRUE(news.failures.at(0).members.contains(1));
}

TEST(AgentTest, ReportsReachTheAgent) {
  Agent agent(2);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  (*runtime)->ReportStall(5, 6, RankSet{.everyone = false, .ranks = {0, 1}}, true);
  const v1::RankMessage stall = agent.Next();
  EXPECT_EQ(stall.stall().group(), 5u);
  EXPECT_EQ(stall.stall().epoch(), 3u);
  EXPECT_EQ(stall.stall().sequence(), 6u);
  EXPECT_TRUE(stall.stall().expired());
  EXPECT_EQ(stall.stall().members().ranks_size(), 2);
  GroupFailure failure;
  failure.group = 7;
  failure.status = absl::AbortedError("because \xff" + std::string(100'000, 'x'));  // longer than a packet, no UTF-8
  failure.from_rank = 0;
  for (int rank = 0; rank < 20'000; ++rank) failure.members.ranks.push_back(rank);
  (*runtime)->ReportGroupFailure(failure);
  const v1::RankMessage told = agent.Next();
  EXPECT_EQ(told.group_failure().group(), 7u);
  EXPECT_EQ(told.group_failure().text().substr(0, 10), "because \xffx");
  EXPECT_TRUE(told.group_failure().members().everyone());
}

TEST(AgentTest, ADeadAgentIsNoticedBySleepers) {
  Agent agent(3);
  auto runtime = Join(agent.fake, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  News news(**runtime);
  std::thread killer([&] {
    const Deadline deadline = Soon();
    while (agent.fake.segment().control(0).parked.load() == 0 && !deadline.passed()) std::this_thread::yield();
    agent.fake.Hang();
  });
  EXPECT_TRUE(news.Await());
  killer.join();
  EXPECT_EQ(news.lost, std::vector<int>({1, 2}));
  EXPECT_NE(news.texts.at(0).find("the agent of node0 (pid "), std::string::npos) << news.texts.at(0);
  EXPECT_EQ((*runtime)->Put("a", "1", Soon()).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*runtime)->Get("a", Soon()).status().code(), absl::StatusCode::kUnavailable);
  (*runtime)->ReportStall(5, 6, RankSet{.everyone = true, .ranks = {}}, true);
  EXPECT_FALSE(news.Await(milliseconds(1))) << "said twice";
}

// A missing key and a missing answer must not look alike: what a dead rank left decides who survives
// (comm/group/shrink.h).
TEST(AgentTest, AMissingAnswerIsNotAMissingKey) {
  FakeAgent agent(1, [](FakeAgent& self, const v1::RankMessage& message) {
    if (message.has_hello()) self.Send(self.Welcome(0), true);
  });
  auto runtime = Join(agent, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->Get("a", Deadline::Now()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(AgentTest, ACallEndsWhenTheAgentDies) {
  FakeAgent agent(1, [](FakeAgent& self, const v1::RankMessage& message) {
    if (message.has_hello()) {
      self.Send(self.Welcome(0), true);
    } else if (message.has_get()) {
      self.Hang();
    }
  });
  auto runtime = Join(agent, 0);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->Get("a", Deadline::After(seconds(20))).status().code(), absl::StatusCode::kUnavailable);
}

absl::StatusOr<std::unique_ptr<Runtime>> JoinToStay(const std::string& address, bool progress_thread = false) {
  return Runtime::Init(
      {.progress_thread = progress_thread, .bootstrap = BootstrapFromAgent(address, 0), .stays = true});
}

TEST(NextEpoch, NextEpochRefusesNoRuntimeAndWorldsOfOneEpoch) {
  EXPECT_EQ(Runtime::NextEpoch(nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  auto runtime = Runtime::Init({.bootstrap = BootstrapWorldOfOne(), .stays = true});
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ(Runtime::NextEpoch(*std::move(runtime)).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(NextEpoch, NextEpochIsRefusedToAForkedChild) {
  Agent agent(2);
  auto runtime = JoinToStay(agent.fake.address(), /*progress_thread=*/true);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  testing::Child child([&runtime] {
    alarm(20);
    return Runtime::NextEpoch(*std::move(runtime)).status().code() == absl::StatusCode::kFailedPrecondition ? 0 : 1;
  });
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_TRUE((*runtime)->Put("a", "the parent's goes on", Soon()).ok());
}

// The agent does not read for a while, so that more is queued than is kept of news.
TEST(NextEpoch, TheWishToStayIsSentAfterAllThatIsQueued) {
  std::promise<void> queued;
  bool waited = false;
  FakeAgent agent(1, [&](FakeAgent& self, const v1::RankMessage& message) {
    v1::AgentMessage answer;
    if (message.has_hello()) {
      self.Send(self.Welcome(0), true);
    } else if (message.has_stall() && !std::exchange(waited, true)) {
      queued.get_future().wait_for(seconds(20));
    } else if (message.has_next_epoch()) {
      answer.set_refused("it has arrived");
      self.Send(answer);
    }
  });
  auto runtime = JoinToStay(agent.address());
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  for (uint64_t i = 0; i < 5000; ++i) (*runtime)->ReportStall(5, i, RankSet{.everyone = true, .ranks = {}}, false);
  queued.set_value();
  const absl::Status status = Runtime::NextEpoch(*std::move(runtime), seconds(20)).status();
  EXPECT_NE(status.message().find("it has arrived"), std::string::npos) << status;
}

}  // namespace
}  // namespace cohort::runtime
