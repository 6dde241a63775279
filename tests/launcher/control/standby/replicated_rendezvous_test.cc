// The log that standbys have, terms, and what is said again after a take-over, one step after another.
#include "cohort/launcher/control/standby/replicated_rendezvous.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/control/standby/agent_session.h"
#include "cohort/launcher/control/standby/standby.h"
#include "tests/launcher/control/driver.h"
#include "tests/launcher/control/standby/replicated_host.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

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

TEST_F(Replicated, TheHostActsOnNothingThatTheStandbyLacks) {
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
  const uint64_t known = first.applied();  // the host before may have acted on more
  Host next(std::move(first), Order(), start_ + milliseconds(100));
  v1::Resume resume = Taken(0);
  resume.set_applied(applied);
  next.Join(base, 2, resume);
  v1::FromAgent part;  // of a log of several pages
  part.mutable_logged()->set_term(2);
  part.mutable_logged()->set_received(known);
  next.Say(base, std::move(part));
  EXPECT_TRUE(next.wanted.empty());
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

TEST_F(Replicated, TheNextHostSendsAgainMessagesThatAnAgentHasNotTaken) {
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

TEST_F(Replicated, ANodeThatDoesNotComeToTheNextHostIsSilent) {
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
TEST_F(Replicated, AnswersTheLatestBeatOfNodesThatHadToWait) {
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

TEST_F(Replicated, AnAgentThatHasEndedIsLostAtOnce) {
  Begin();
  Host next(std::move(copy_), Order(), start_ + milliseconds(100));
  next.Join(FirstConnection(2), 1, Taken(2));
  next.Handle(AgentEnded{0, "it was killed", 1});
  EXPECT_EQ(next.lost, std::vector<uint32_t>{0});
  next.Handle(AgentEnded{0, "it was killed", 1});  // told again
  EXPECT_EQ(next.lost.size(), 1u);
}

TEST_F(Replicated, NewsThatDlaunchHasGotAreNotSentAgain) {
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

TEST(Replication, TheSecondOfTwoStandbysFollowsTheFirst) {
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
  // A message to an agent that is just arriving is sent once.
  v1::FromAgent exit;
  *exit.mutable_exit() = Killed(0, 9);
  next.Say(here, std::move(exit));
  next.Join(here + 2, 1, of_agent);
  next.Copy(here + 1, &second);
  EXPECT_EQ(next.Count(here + 2, v1::ToAgent::kResumed), 1);
  EXPECT_EQ(next.Count(here + 2, v1::ToAgent::kRanksLost), 1);
}

TEST(AgentSession, MessagesThatTheHostHasNotTakenAreSentAgain) {
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

}  // namespace
}  // namespace cohort::launcher
