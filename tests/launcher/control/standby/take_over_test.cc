// Jobs with standbys, simulated by the thousand: hosts of the rendezvous, standbys and other nodes are killed, lose
// their power, are stopped, and are cut off in one direction or both, from each other and from dlaunch, for a while or
// for good; what was on its way then arrives late. Whatever happens there are never two worlds: no rank runs while one
// of another epoch runs, and none runs twice; nothing that an agent asks is lost or answered twice; dlaunch hears
// everything once and in order; and the job goes on as long as somebody can take over.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "tests/launcher/control/standby/replicated_worlds.h"
#include "tests/support/nightly.h"

namespace cohort::launcher {

// --- dlaunch, and its pipes to the agents ---
void ReplicatedWorlds::TellLauncher(uint32_t from, std::function<void()> what) {
  Agent& agent = agents_[from];
  agent.pipe_up = std::max({agent.pipe_up, now_ + Jitter(kHop), agent.pipe}) + microseconds(1);
  InOrder(&pipe_ups_[from], agent.pipe_up, [this, from] { return agents_[from].pipe; }, std::move(what));
}

void ReplicatedWorlds::TellAgent(uint32_t to, std::function<void()> what) {
  Agent& agent = agents_[to];
  agent.pipe_down = std::max({agent.pipe_down, now_ + Jitter(kHop), agent.pipe}) + microseconds(1);
  InOrder(
      &pipe_downs_[to], agent.pipe_down, [this, to] { return agents_[to].pipe; },
      [this, to, what = std::move(what)] {
        Unfrozen(to, [this, to, what] {
          if (agents_[to].alive) what();
        });
      });
}

void ReplicatedWorlds::TellHost(Event event) {
  const uint32_t host = choice_.host();
  TellAgent(host, [this, host, event = std::move(event)] {
    if (agents_[host].host) agents_[host].inbox.push_back(event);
  });
}

void ReplicatedWorlds::OnTold(uint32_t host, const Action& action) {
  if (const auto* wanted = std::get_if<StandbysWanted>(&action)) {
    if (const auto answer = choice_.Note(host, wanted->standbys)) TellHost(StandbysNoted{*answer});
    return;
  }
  uint64_t number = 0;
  if (const auto* restart = std::get_if<Restart>(&action)) number = restart->number;
  if (const auto* ranks = std::get_if<RanksLost>(&action)) number = ranks->number;
  if (const auto* lost = std::get_if<NodeLost>(&action)) number = lost->number;
  if (const auto* members = std::get_if<MembersChanged>(&action)) number = members->number;
  if (const auto* finish = std::get_if<Finish>(&action)) number = finish->number;
  if (number <= heard_) return;
  if (number != ++heard_) wrong_ = "dlaunch heard " + std::to_string(number) + " after " + std::to_string(heard_ - 1);
  if (const auto* lost = std::get_if<NodeLost>(&action)) {
    ++lost_;
    const uint32_t agent = lost->lost.agent();
    TellAgent(agent, [this, agent] { GiveUp(agent); });  // its input is closed
  }
  if (const auto* finish = std::get_if<Finish>(&action)) report_ = finish->report;
}

// Its pipe has ended; `sure`: nothing of it lives.
void ReplicatedWorlds::OnAgentEnded(uint32_t index, bool sure) {
  if (report_.has_value()) return;
  choice_.Lose(index);
  if (sure) {
    told_host_.push_back({index, "it was killed", told_host_.size() + 1});
    if (index != choice_.host()) TellHost(told_host_.back());
  }
  if (index == choice_.host()) TakeOverFrom();
}

void ReplicatedWorlds::TakeOverFrom() {
  std::optional<v1::TakeOver> order = choice_.Choose();
  if (!order.has_value()) {
    over_ = true;
    return;
  }
  Announce(*std::move(order));
}

void ReplicatedWorlds::Announce(v1::TakeOver order) {
  order.set_heard(heard_);
  const uint32_t next = choice_.host();
  After(seconds(2), [this, term = order.term()] {
    if (report_.has_value() || !choice_.Doubts(term)) return;
    if (std::optional<v1::TakeOver> other = choice_.Choose()) Announce(*std::move(other));
  });
  TellAgent(next, [this, next, order = std::move(order)] {
    Agent& agent = agents_[next];
    agent.host = std::make_unique<ReplicatedRendezvous>(std::move(agent.copy), order, now_);
    agent.has_copy = false;
    agent.inbox.clear();
    agent.next_connection = FirstConnection(order.term());
    TellLauncher(next, [this, next, term = order.term()] { OnListening(next, term); });
  });
  for (const AgentEnded& ended : told_host_) TellHost(ended);
}

void ReplicatedWorlds::OnListening(uint32_t host, uint64_t term) {
  if (term != choice_.term()) return;
  choice_.SetReached();
  for (uint32_t index = 0; index < agents_.size(); ++index) {
    TellAgent(index, [this, index, host, term] { Move(index, host, term); });
  }
}

void ReplicatedWorlds::Move(uint32_t index, uint32_t host, uint64_t term) {
  Agent& agent = agents_[index];
  agent.term = term;
  if (index != host && agent.host) {
    BreakStreamsTo(index);
    agent.host.reset();
  }
  agent.session.Leave();
  if (std::exchange(agent.in, false)) Tell(index, Disconnected{agent.stream, "it has moved"});
  WaitForHost(index);
  v1::Resume resume;
  resume.set_taken(agent.session.heard());
  if (agent.has_copy) resume.set_applied(agent.copy.applied());
  After(Jitter(milliseconds(100)), [this, index, host, term, resume] {
    if (agents_[index].term == term && !agents_[index].in) Connect(index, host, resume);
  });
}

// --- faults ---
void ReplicatedWorlds::Inject() {
  const uint32_t index = Below(3) == 0 ? choice_.host() : Below(static_cast<uint32_t>(agents_.size()));
  Agent& agent = agents_[index];
  switch (Below(6)) {
    case 0:  // its power goes
      agent.alive = false;
      EndRanks(index);
      After(kPipeLost, [this, index] { OnAgentEnded(index, false); });
      break;
    case 1:  // its agent is killed, and the sentinel sweeps
      Kill(index);
      break;
    case 2:
      KillRank(index);
      break;
    case 3: {  // it is stopped for a while, or for so long that dlaunch kills it
      if (now_ < std::max({agent.frozen, agent.ears, agent.mouth})) break;
      agent.frozen = now_ + Jitter(seconds(5));
      if (agent.frozen > now_ + kFrozenKilled) {
        agent.frozen = now_ + kFrozenKilled + seconds(1);
        After(kFrozenKilled, [this, index] { Kill(index); });
      }
      break;
    }
    default:
      CutOff(index);
  }
  GoOnAfterFault(seconds(25));
}

void ReplicatedWorlds::Kill(uint32_t index) {
  Agent& agent = agents_[index];
  if (!agent.alive) return;
  agent.frozen = {};
  if (std::exchange(agent.in, false)) Tell(index, Disconnected{agent.stream, "its connection broke"});
  BreakStreamsTo(index);
  agent.alive = false;
  const bool here = Below(3) != 0;
  After(Jitter(milliseconds(300)), [this, index, here] {
    EndRanks(index);
    OnAgentEnded(index, here);
  });
}

void ReplicatedWorlds::CutOff(uint32_t index) {
  Agent& agent = agents_[index];
  if (now_ < agent.frozen) return;
  const uint32_t how = Below(3);
  const TimePoint until = now_ + (Below(3) == 0 ? microseconds(seconds(600)) : Jitter(seconds(12)));
  if (how != 0) agent.ears = until;
  if (how != 1) agent.mouth = until;
  if (Below(2) == 0) return;  // dlaunch reaches it by another network
  agent.pipe = until;
  if (until < now_ + kPipeLost) return;
  After(kPipeLost, [this, index, cut = ++agent.cuts] {
    if (agents_[index].cuts != cut) return;
    GiveUp(index);
    OnAgentEnded(index, false);
  });
}

namespace {

TEST(ReplicatedWorlds, ThereAreNeverTwoWorldsAndTheyOutliveTheirHosts) {
  const uint32_t first = std::random_device()();
  const auto count = static_cast<uint32_t>(testing::Trials(1000, 100'000));
  uint32_t outlived = 0;
  for (uint32_t i = 0; i < count; ++i) {
    SCOPED_TRACE("seed " + std::to_string(first + i));
    ReplicatedWorlds worlds(first + i);
    worlds.Run();
    worlds.Check();
    if (HasFailure()) return;
    outlived += worlds.terms() > 1 && worlds.ended_well() ? 1 : 0;
  }
  EXPECT_GT(outlived, count / 10);  // that it was tried at all
}

}  // namespace
}  // namespace cohort::launcher
