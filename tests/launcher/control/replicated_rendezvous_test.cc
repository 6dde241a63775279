// The log that standbys have, terms, and what is said again after a take-over, one step after another.
#include "launcher/control/replicated_rendezvous.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/control/agent_session.h"
#include "launcher/control/standby.h"
#include "launcher/control/standby_choice.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

v1::JobPlan PlanWithStandbys(uint32_t nodes, uint32_t standbys) {
  v1::JobPlan plan = MakePlan(nodes, 1, "restart");
  plan.mutable_job()->set_max_restarts(3);
  plan.set_min_nodes(1);
  plan.set_standbys(standbys);
  return plan;
}

v1::FromAgent Put(uint64_t request) {
  v1::FromAgent message;
  message.mutable_put()->set_request(request);
  message.mutable_put()->set_key("key " + std::to_string(request));
  return message;
}

// A host, and what it has sent.
class Host {
 public:
  Host(v1::JobPlan plan, TimePoint now) : machine_(std::move(plan), now), now_(now) {}
  Host(StandbyCopy copy, const v1::TakeOver& order, TimePoint now) : machine_(std::move(copy), order, now), now_(now) {
    Tick();
  }

  void Handle(Event event) { Take(machine_.Handle(std::move(event), now_)); }
  void Say(ConnectionId from, v1::FromAgent message) { Handle(Received{from, std::move(message)}); }
  void Join(ConnectionId from, uint32_t node, std::optional<v1::Resume> resume = std::nullopt) {
    v1::FromAgent message;
    *message.mutable_join() = MakeOffer(node);
    if (resume.has_value()) *message.mutable_join()->mutable_resume() = *resume;
    Say(from, std::move(message));
  }
  void Tick() { Take(machine_.Tick(now_)); }
  void Sleep(milliseconds time) { now_ += time; }
  void Pass(milliseconds time) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      now_ = std::min(end, std::max(machine_.NextTick(), now_ + milliseconds(1)));
      Tick();
    }
  }
  // Gives the standby behind that connection all pages that were sent to it, and the host its answers.
  void Copy(ConnectionId to, StandbyCopy* copy) {
    for (size_t i = 0; i < sent_.size(); ++i) {
      if (sent_[i].to != to || !sent_[i].message->has_log()) continue;
      const auto ack = copy->OnPage(sent_[i].message->log(), now_);
      sent_.erase(sent_.begin() + static_cast<std::ptrdiff_t>(i--));
      if (!ack.has_value()) continue;
      v1::FromAgent message;
      *message.mutable_logged() = *ack;
      Say(to, std::move(message));
    }
  }
  // dlaunch's answer to the latest wish.
  void Note() {
    ASSERT_FALSE(wanted.empty());
    Handle(StandbysNoted{wanted.back()});
  }
  int Count(ConnectionId to, v1::ToAgent::KindCase kind) const {
    int count = 0;
    for (const Send& send : sent_) count += send.to == to && send.message->kind_case() == kind ? 1 : 0;
    return count;
  }
  const v1::ToAgent& First(ConnectionId to, v1::ToAgent::KindCase kind) const {
    const auto first = std::find_if(sent_.begin(), sent_.end(), [&](const Send& send) {
      return send.to == to && send.message->kind_case() == kind;
    });
    EXPECT_NE(first, sent_.end());
    return first == sent_.end() ? v1::ToAgent::default_instance() : *first->message;
  }
  const v1::ToAgent& Last(ConnectionId to, v1::ToAgent::KindCase kind) const {
    const v1::ToAgent* last = nullptr;
    for (const Send& send : sent_) {
      if (send.to == to && send.message->kind_case() == kind) last = send.message.get();
    }
    EXPECT_NE(last, nullptr);
    return last == nullptr ? v1::ToAgent::default_instance() : *last;
  }

  std::vector<v1::Standbys> wanted;
  std::vector<uint32_t> lost;
  bool acted() const { return !sent_.empty(); }
  void Forget() { sent_.clear(); }

 private:
  void Take(std::vector<Action> actions) {
    for (Action& action : actions) {
      if (Send* const send = std::get_if<Send>(&action)) sent_.push_back(std::move(*send));
      if (StandbysWanted* const want = std::get_if<StandbysWanted>(&action)) wanted.push_back(want->standbys);
      if (NodeLost* const node = std::get_if<NodeLost>(&action)) lost.push_back(node->lost.agent());
    }
  }

  ReplicatedRendezvous machine_;
  TimePoint now_;
  std::vector<Send> sent_;
};

class Replicated : public ::testing::Test {
 protected:
  // Agents 0 and 1 have joined, and 1 has a copy.
  void Begin() {
    host_.Join(1, 0);
    host_.Join(2, 1);
    host_.Copy(2, &copy_);
    host_.Note();
  }
  static v1::TakeOver Order(uint64_t heard = 0) {
    v1::TakeOver order;
    order.set_term(2);
    order.set_heard(heard);
    return order;
  }
  static v1::Resume Taken(uint64_t count) {
    v1::Resume resume;
    resume.set_taken(count);
    return resume;
  }

  const TimePoint start_{std::chrono::hours(1)};
  Host host_{PlanWithStandbys(2, 1), start_};
  StandbyCopy copy_;
};

TEST_F(Replicated, ActsOnNothingThatTheStandbyLacks) {
  host_.Join(1, 0);
  host_.Join(2, 1);
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kAssignment), 0);
  EXPECT_TRUE(host_.wanted.empty());
  host_.Copy(2, &copy_);
  ASSERT_EQ(host_.wanted.size(), 1u);
  ASSERT_EQ(host_.wanted[0].agents_size(), 1);
  EXPECT_EQ(host_.wanted[0].agents(0), 1u);
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kAssignment), 0);  // dlaunch would not let it take over yet
  host_.Note();
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kAssignment), 1);
  EXPECT_EQ(host_.Count(2, v1::ToAgent::kAssignment), 1);
  host_.Say(1, Put(1));
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kPut), 0);
  host_.Copy(2, &copy_);
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kPut), 1);
}

// Under load a host may always have a newer entry on the way than the one that is acknowledged.
TEST_F(Replicated, AStandbyBehindTheNewestEntryMayTakeOver) {
  host_.Join(1, 0);
  host_.Join(2, 1);
  host_.Say(1, Put(1));
  const v1::LogAck ack = *copy_.OnPage(host_.First(2, v1::ToAgent::kLog).log(), start_);
  host_.Say(1, Put(2));
  v1::FromAgent message;
  *message.mutable_logged() = ack;
  host_.Say(2, std::move(message));
  EXPECT_EQ(host_.wanted.size(), 1u);
  host_.Note();
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kAssignment), 1);
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kPut), 0);
}

TEST_F(Replicated, AStandbyThatIsLostBeforeItIsNotedHoldsNobodyUp) {
  host_.Join(1, 0);
  host_.Join(2, 1);
  host_.Pass(kCopyTimeout + milliseconds(100));
  ASSERT_EQ(host_.wanted.size(), 1u);
  EXPECT_EQ(host_.wanted[0].agents_size(), 0);
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kAssignment), 0);
  host_.Note();
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kAssignment), 1);
}

// Two standbys; the second is in sync with the first host's pages up to some entry when that host is lost, but dlaunch
// has not noted it.
TEST_F(Replicated, ReadmitsAStandbyThatWasNotInSync) {
  Host host(PlanWithStandbys(3, 2), start_);
  StandbyCopy first, second;
  host.Join(1, 0);
  host.Join(2, 1);
  host.Copy(2, &first);
  host.Note();
  host.Join(3, 2);
  host.Copy(3, &second);
  host.Say(1, Put(1));
  host.Copy(2, &first);  // the second lacks it

  const ConnectionId base = FirstConnection(2);
  const uint64_t applied = second.applied();
  Host next(std::move(first), Order(), start_ + milliseconds(100));
  v1::Resume resume = Taken(0);
  resume.set_applied(applied);
  next.Join(base, 2, resume);
  next.Copy(base, &second);
  next.Note();
  ASSERT_EQ(next.wanted.back().agents_size(), 1);
  EXPECT_EQ(next.wanted.back().agents(0), 2u);
  next.Join(base + 1, 0, Taken(0));
  EXPECT_EQ(next.Count(base + 1, v1::ToAgent::kResumed), 0);  // not before the standby has it
  next.Copy(base, &second);
  EXPECT_EQ(next.Count(base + 1, v1::ToAgent::kResumed), 1);
}

TEST_F(Replicated, TakesNoStandbyInThatLacksWhatIsForgotten) {
  Begin();
  Host next(std::move(copy_), Order(), start_);
  next.Pass(milliseconds(3500));  // it remembers for twice the time that a standby has to answer
  v1::Resume resume = Taken(0);
  resume.set_applied(0);
  next.Join(FirstConnection(2), 1, resume);
  EXPECT_TRUE(next.wanted.empty());
  EXPECT_EQ(next.Count(FirstConnection(2), v1::ToAgent::kLog), 0);
}

TEST_F(Replicated, GoesOnWithoutASilentStandbyOnceDlaunchHasNotedIt) {
  Begin();
  host_.Say(1, Put(1));
  host_.Pass(kCopyTimeout - milliseconds(100));
  EXPECT_EQ(host_.wanted.size(), 1u);
  host_.Pass(milliseconds(200));
  ASSERT_EQ(host_.wanted.size(), 2u);
  EXPECT_EQ(host_.wanted[1].agents_size(), 0);
  host_.Handle(StandbysNoted{host_.wanted[0]});  // the answer to an older wish says nothing of this one
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kPut), 0);
  host_.Handle(StandbysNoted{host_.wanted[1]});
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kPut), 1);
  host_.Say(1, Put(2));
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kPut), 2);
}

TEST_F(Replicated, BlamesNoStandbyForItsOwnStop) {
  Begin();
  host_.Say(1, Put(1));
  host_.Sleep(std::chrono::seconds(5));
  host_.Say(1, Put(2));  // what has come meanwhile is read first
  host_.Tick();
  EXPECT_EQ(host_.wanted.size(), 1u);
  host_.Pass(kCopyTimeout + milliseconds(100));
  EXPECT_EQ(host_.wanted.size(), 2u);
}

TEST_F(Replicated, GoesOnWithoutAStandbyWhoseStreamHasEnded) {
  Begin();
  host_.Handle(Disconnected{2, "its connection broke"});
  ASSERT_EQ(host_.wanted.size(), 2u);
  EXPECT_TRUE(host_.lost.empty());
  host_.Handle(StandbysNoted{host_.wanted[1]});
  EXPECT_EQ(host_.lost, std::vector<uint32_t>{1});
}

TEST_F(Replicated, TheNextHostSaysAgainWhatAnAgentHasNotTaken) {
  Begin();
  host_.Say(1, Put(1));
  host_.Say(1, Put(2));
  host_.Copy(2, &copy_);
  ASSERT_EQ(host_.Count(1, v1::ToAgent::kPut), 2);
  Host next(std::move(copy_), Order(), start_ + milliseconds(100));
  const ConnectionId here = FirstConnection(2);
  next.Join(here, 0, Taken(3));  // table, assignment, and the first answer
  EXPECT_EQ(next.Last(here, v1::ToAgent::kResumed).resumed().taken(), 2u);
  EXPECT_EQ(next.Count(here, v1::ToAgent::kPut), 1);
  EXPECT_EQ(next.Last(here, v1::ToAgent::kPut).put().request(), 2u);
  EXPECT_EQ(next.Count(here, v1::ToAgent::kAssignment), 0);
  next.Say(here, Put(3));
  EXPECT_EQ(next.Count(here, v1::ToAgent::kPut), 2);
}

TEST_F(Replicated, AHostWhoseTermIsOverActsOnNothing) {
  Begin();
  Host next(std::move(copy_), Order(), start_ + milliseconds(100));
  host_.Forget();
  host_.Say(1, Put(1));
  host_.Pass(std::chrono::seconds(10));
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kPut), 0);
  EXPECT_TRUE(host_.lost.empty());
  ASSERT_EQ(host_.wanted.size(), 2u);  // and dlaunch answers it no more
  v1::LogAck late;
  late.set_term(2);
  late.set_received(1000);
  v1::FromAgent message;
  *message.mutable_logged() = late;
  host_.Say(2, std::move(message));
  EXPECT_EQ(host_.Count(1, v1::ToAgent::kPut), 0);
}

TEST_F(Replicated, WhoeverDoesNotComeToTheNextHostIsSilent) {
  Begin();
  Host next(std::move(copy_), Order(), start_ + milliseconds(100));
  next.Join(FirstConnection(2), 1, Taken(2));
  for (int i = 0; i < 5; ++i) {
    next.Pass(milliseconds(900));
    v1::FromAgent beat;
    beat.mutable_beat()->set_number(static_cast<uint64_t>(i + 1));
    next.Say(FirstConnection(2), std::move(beat));
  }
  EXPECT_EQ(next.lost, std::vector<uint32_t>{0});
}

// The new host waits for a standby that does not come, for 3 s and dlaunch's answer: nearly as long as the lease of an
// agent that has come at once.
TEST_F(Replicated, AnswersTheLatestBeatOfWhoeverHadToWait) {
  Begin();
  v1::TakeOver order = Order();
  order.add_standbys(7);
  Host next(std::move(copy_), order, start_ + milliseconds(100));
  const ConnectionId here = FirstConnection(2);
  next.Join(here, 0, Taken(2));
  for (uint64_t number = 1; number <= 6; ++number) {
    v1::FromAgent beat;
    beat.mutable_beat()->set_number(number);
    next.Say(here, std::move(beat));
    next.Pass(milliseconds(520));
  }
  ASSERT_EQ(next.wanted.size(), 1u);
  EXPECT_EQ(next.Count(here, v1::ToAgent::kBeat), 0);
  next.Handle(StandbysNoted{next.wanted[0]});
  EXPECT_EQ(next.Count(here, v1::ToAgent::kResumed), 1);
  ASSERT_EQ(next.Count(here, v1::ToAgent::kBeat), 1);
  EXPECT_EQ(next.Last(here, v1::ToAgent::kBeat).beat().number(), 6u);
}

TEST(StandbyChoice, NobodyWaitsForWhoIsKnownToBeGone) {
  StandbyChoice choice;
  v1::Standbys standbys;
  standbys.set_term(1);
  for (const uint32_t agent : {1u, 2u, 3u}) standbys.add_agents(agent);
  ASSERT_TRUE(choice.Note(0, standbys).has_value());
  choice.Lose(0);
  choice.Lose(2);
  const auto order = choice.Choose();
  ASSERT_TRUE(order.has_value());
  EXPECT_EQ(choice.host(), 1u);
  ASSERT_EQ(order->standbys_size(), 1);
  EXPECT_EQ(order->standbys(0), 3u);
  EXPECT_TRUE(choice.Doubts(2));  // until it listens
  choice.SetReached();
  EXPECT_FALSE(choice.Doubts(2));
  ASSERT_TRUE(choice.Choose().has_value());
  EXPECT_TRUE(choice.Doubts(3));
  EXPECT_FALSE(choice.Doubts(2));
}

TEST_F(Replicated, AnAgentThatHasEndedIsLostAtOnce) {
  Begin();
  Host next(std::move(copy_), Order(), start_ + milliseconds(100));
  next.Join(FirstConnection(2), 1, Taken(2));
  next.Handle(AgentEnded{0, "it was killed", 1});
  EXPECT_EQ(next.lost, std::vector<uint32_t>{0});
  next.Handle(AgentEnded{0, "it was killed", 1});  // told again
  EXPECT_EQ(next.lost.size(), 1u);
}

TEST_F(Replicated, WhatDlaunchHasHeardIsNotToldAgain) {
  Begin();
  host_.Handle(AgentEnded{0, "", 1});
  host_.Handle(Disconnected{1, "it broke"});
  host_.Copy(2, &copy_);
  ASSERT_EQ(host_.lost.size(), 1u);
  host_.Pass(milliseconds(250));  // the next page tells the standby that all have it
  host_.Copy(2, &copy_);
  StandbyCopy again = std::move(copy_);
  const Host next(std::move(again), Order(/*heard=*/1), start_ + milliseconds(500));
  EXPECT_TRUE(next.lost.empty());
}

TEST_F(Replicated, AGivenUpAgentIsRefused) {
  Begin();
  host_.Handle(Disconnected{1, "it broke"});
  host_.Copy(2, &copy_);
  Host next(std::move(copy_), Order(1), start_ + milliseconds(100));
  next.Join(FirstConnection(2), 0, Taken(2));
  EXPECT_EQ(next.Count(FirstConnection(2), v1::ToAgent::kRefused), 1);
  EXPECT_EQ(next.Count(FirstConnection(2), v1::ToAgent::kResumed), 0);
}

TEST(Replication, WithTwoStandbysTheSecondFollowsTheFirst) {
  const TimePoint start{std::chrono::hours(1)};
  Host host(PlanWithStandbys(3, 2), start);
  StandbyCopy first, second;
  host.Join(1, 0);
  host.Join(2, 1);
  host.Join(3, 2);
  host.Copy(2, &first);
  host.Copy(3, &second);
  host.Note();
  host.Say(1, Put(1));
  host.Copy(2, &first);  // the second lacks it, so nobody has acted on it
  EXPECT_EQ(host.Count(1, v1::ToAgent::kPut), 0);
  v1::TakeOver order;
  order.set_term(2);
  order.add_standbys(2);
  Host next(std::move(first), order, start + milliseconds(100));
  const ConnectionId here = FirstConnection(2);
  v1::Resume of_agent;
  of_agent.set_taken(2);
  next.Join(here, 0, of_agent);
  EXPECT_EQ(next.Count(here, v1::ToAgent::kResumed), 0);
  v1::Resume of_standby;
  of_standby.set_taken(2);
  of_standby.set_applied(second.applied());
  next.Join(here + 1, 2, of_standby);
  next.Copy(here + 1, &second);
  EXPECT_EQ(next.Count(here, v1::ToAgent::kResumed), 1);
  EXPECT_EQ(next.Last(here, v1::ToAgent::kResumed).resumed().taken(), 1u);
  EXPECT_EQ(next.Last(here, v1::ToAgent::kPut).put().request(), 1u);
  EXPECT_EQ(next.Count(here, v1::ToAgent::kPut), 1);
  // What is said to an agent that is just arriving is said once.
  v1::FromAgent exit;
  *exit.mutable_exit() = Killed(0, 9);
  next.Say(here, std::move(exit));
  next.Join(here + 2, 1, of_agent);
  next.Copy(here + 1, &second);
  EXPECT_EQ(next.Count(here + 2, v1::ToAgent::kResumed), 1);
  EXPECT_EQ(next.Count(here + 2, v1::ToAgent::kRanksLost), 1);
}

v1::LogPage Page(uint64_t term, uint64_t first, uint64_t last, uint64_t committed) {
  v1::LogPage page;
  page.set_term(term);
  page.set_committed(committed);
  for (uint64_t number = first; number <= last; ++number) {
    v1::LogEntry& entry = *page.add_entries();
    entry.set_number(number);
    entry.set_time_ns(static_cast<int64_t>(number));
    if (number == 1) {
      *entry.mutable_start() = PlanWithStandbys(2, 1);
    } else {
      entry.set_tick(true);
    }
  }
  return page;
}

TEST(StandbyCopy, TakesPagesInOrderAndDropsWhatANewTermDoesNotKnow) {
  StandbyCopy copy;
  const TimePoint now{};
  EXPECT_EQ(copy.OnPage(Page(1, 1, 3, 2), now)->received(), 3u);
  EXPECT_EQ(copy.applied(), 2u);
  EXPECT_FALSE(copy.OnPage(Page(1, 5, 5, 2), now).has_value());   // a gap
  EXPECT_EQ(copy.OnPage(Page(1, 2, 4, 2), now)->received(), 4u);  // partly known
  EXPECT_EQ(copy.OnPage(Page(2, 3, 3, 2), now)->received(), 3u);  // 4 was of the term before alone
  EXPECT_FALSE(copy.OnPage(Page(1, 4, 4, 4), now).has_value());   // a host whose term is over
  EXPECT_EQ(copy.OnPage(Page(2, 4, 4, 4), now)->applied(), 4u);
}

TEST(AgentSession, SaysAgainWhatTheHostHasNotTaken) {
  AgentSession session;
  EXPECT_TRUE(session.Say(Put(1)));
  EXPECT_TRUE(session.Say(Put(2)));
  EXPECT_TRUE(session.Say(Put(3)));
  v1::ToAgent beat;
  beat.mutable_beat()->set_taken(1);
  EXPECT_TRUE(session.Hear(beat).empty());
  session.Leave();
  EXPECT_FALSE(session.Say(Put(4)));
  v1::ToAgent resumed;
  resumed.mutable_resumed()->set_taken(2);
  const std::vector<v1::FromAgent> again = session.Hear(resumed);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].put().request(), 3u);
  EXPECT_EQ(again[1].put().request(), 4u);
  EXPECT_TRUE(session.Say(Put(5)));
  EXPECT_EQ(session.heard(), 0u);
  v1::ToAgent reply;
  reply.mutable_put();
  EXPECT_TRUE(session.Hear(reply).empty());
  EXPECT_EQ(session.heard(), 1u);
}

v1::Standbys Wanted(uint64_t term, std::vector<uint32_t> agents) {
  v1::Standbys standbys;
  standbys.set_term(term);
  for (const uint32_t agent : agents) standbys.add_agents(agent);
  return standbys;
}

TEST(StandbyChoice, TakesTheNextOfThoseThatTheHostHasNamed) {
  StandbyChoice choice;
  EXPECT_FALSE(choice.Choose().has_value());
  EXPECT_FALSE(choice.Note(1, Wanted(1, {1})).has_value());  // not the host
  EXPECT_TRUE(choice.Note(0, Wanted(1, {1, 2, 3})).has_value());
  EXPECT_TRUE(choice.IsNews(2, 1));
  choice.Lose(1);
  const auto order = choice.Choose();
  ASSERT_TRUE(order.has_value());
  EXPECT_EQ(choice.host(), 2u);
  EXPECT_EQ(order->term(), 2u);
  EXPECT_FALSE(choice.IsNews(3, 1));                        // of the host before
  EXPECT_FALSE(choice.Note(0, Wanted(1, {})).has_value());  // which may say what it wants
  EXPECT_TRUE(choice.Note(2, Wanted(2, {})).has_value());
  EXPECT_FALSE(choice.Choose().has_value());
}

}  // namespace
}  // namespace cohort::launcher
