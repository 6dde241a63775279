// Simulated jobs with standbys: see take_over_test.cc.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/control/lease.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/control/standby/agent_session.h"
#include "cohort/launcher/control/standby/replicated_rendezvous.h"
#include "cohort/launcher/control/standby/standby.h"
#include "cohort/launcher/control/standby/standby_choice.h"
#include "tests/launcher/control/driver.h"
#include "tests/launcher/control/simulated_job.h"

namespace cohort::launcher {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr seconds kPipeLost{10};     // dlaunch and an agent that are cut off from each other notice it
inline constexpr seconds kFrozenKilled{3};  // dlaunch kills an agent that stays stopped

struct ReplicatedAgent : SimulatedAgent {
  // Its stream.
  uint32_t to = 0;
  ConnectionId stream = 0;
  AgentSession session;
  std::optional<TimePoint> waits_until;  // for another host
  uint64_t term = 1;

  uint64_t asked = 0, answered = 0;  // by its ranks

  StandbyCopy copy;
  bool has_copy = false;
  std::unique_ptr<ReplicatedRendezvous> host;
  std::vector<Event> inbox;
  ConnectionId next_connection = 1;
  std::map<ConnectionId, uint32_t> agent_of;

  TimePoint pipe;  // until when what is on its way between dlaunch and it is held up
  TimePoint pipe_down, pipe_up;
  uint64_t cuts = 0;
};

class ReplicatedWorlds : public SimulatedJob<ReplicatedAgent> {
 public:
  explicit ReplicatedWorlds(uint32_t seed)
      : SimulatedJob(seed),
        spares_(1 + Below(3)),
        least_(1 + Below(nodes_)),
        standbys_(1 + Below(std::min(nodes_ - 1, 3u))) {
    agents_.resize(nodes_ + spares_);
    v1::JobPlan plan = MakeElasticPlan(spares_, least_);
    plan.set_standbys(standbys_);
    for (uint32_t agent = 1; agent <= standbys_; ++agent) agents_[agent].has_copy = true;
    agents_[0].host = std::make_unique<ReplicatedRendezvous>(std::move(plan), now_);
    agents_[0].next_connection = FirstConnection(1);
    choice_.SetReached();
  }

  void Run() {
    for (uint32_t agent = 0; agent < agents_.size(); ++agent) {
      After(Jitter(milliseconds(300)), [this, agent] { Connect(agent, 0, std::nullopt); });
    }
    After(milliseconds(10), [this] { OnTick(); });
    RunFor(seconds(600));
  }

  void Check() const {
    ASSERT_EQ(wrong_, "");
    if (over_) return;  // more hosts were lost than could be
    ASSERT_TRUE(report_.has_value()) << "the job did not end";
    if (lost_ <= spares_ + nodes_ - least_) {
      EXPECT_EQ(report_->exit_code(), 0) << report_->headline() << "; " << report_->not_restarted();
    }
  }
  uint64_t terms() const { return choice_.term(); }
  bool ended_well() const { return report_.has_value() && report_->exit_code() == 0; }

 private:
  using Agent = ReplicatedAgent;

  // --- hosts ---
  void OnTick() {
    After(milliseconds(10), [this] { OnTick(); });
    for (uint32_t index = 0; index < agents_.size(); ++index) {
      Agent& agent = agents_[index];
      if (!agent.alive || !agent.host || now_ < agent.frozen) continue;
      for (Event& event : std::exchange(agent.inbox, {})) Carry(index, agent.host->Handle(std::move(event), now_));
      if (now_ >= agent.host->NextTick()) Carry(index, agent.host->Tick(now_));
    }
  }
  void Carry(uint32_t host, std::vector<Action> actions) {
    for (Action& action : actions) {
      if (Send* const send = std::get_if<Send>(&action)) {
        Deliver(host, send->to, [this, message = send->message](uint32_t to) { Hear(to, *message); });
      } else if (const Close* const close = std::get_if<Close>(&action)) {
        Deliver(host, close->connection, [this](uint32_t to) { LoseHost(to); });
      } else {
        TellLauncher(host, [this, host, action] { OnTold(host, action); });
      }
    }
  }

  // --- the network: a stream keeps its order, and is held up while either end is cut off ---
  TimePoint HeldUp(uint32_t from, uint32_t to) const {
    return from == to ? TimePoint{} : std::max(agents_[from].mouth, agents_[to].ears);
  }
  void Deliver(uint32_t host, ConnectionId stream, std::function<void(uint32_t)> what) {
    const auto found = agents_[host].agent_of.find(stream);
    if (found == agents_[host].agent_of.end()) return;
    const uint32_t to = found->second;
    Agent& agent = agents_[to];
    if (agent.stream != stream) return;
    agent.down = std::max({agent.down, now_ + Jitter(kHop), HeldUp(host, to)}) + microseconds(1);
    InOrder(
        &downs_[stream], agent.down, [this, host, to] { return HeldUp(host, to); },
        [this, to, stream, what = std::move(what)] {
          Unfrozen(to, [this, stream, what, to] {
            if (agents_[to].stream == stream) what(to);
          });
        });
  }
  void Tell(uint32_t from, Event event) { TellOn(from, agents_[from].to, agents_[from].stream, std::move(event)); }
  void TellOn(uint32_t from, uint32_t host, ConnectionId stream, Event event) {
    Agent& agent = agents_[from];
    const TimePoint at = std::max({agent.up, now_ + Jitter(kHop), HeldUp(from, host)}) + microseconds(1);
    if (stream == agent.stream) agent.up = at;
    InOrder(
        &ups_[stream], at, [this, from, host] { return HeldUp(from, host); },
        [this, host, stream, event = std::move(event)] {
          if (agents_[host].alive && agents_[host].agent_of.contains(stream)) agents_[host].inbox.push_back(event);
        });
  }
  void Write(uint32_t from, v1::FromAgent message) {
    if (agents_[from].alive && agents_[from].in) Tell(from, Received{agents_[from].stream, std::move(message)});
  }
  void Say(uint32_t from, v1::FromAgent message) override {
    if (agents_[from].alive && agents_[from].session.Say(message)) Write(from, std::move(message));
  }

  // --- agents and their streams ---
  void Connect(uint32_t index, uint32_t host, std::optional<v1::Resume> resume) {
    Agent& agent = agents_[index];
    if (!agent.alive || !agents_[host].alive || !agents_[host].host) return;
    agent.in = true;
    agent.to = host;
    agent.stream = agents_[host].next_connection++;
    agents_[host].agent_of[agent.stream] = index;
    agent.up = agent.down = now_;
    agent.lease = Lease(now_);
    v1::FromAgent message;
    *message.mutable_join() = MakeOffer(index);
    if (resume.has_value()) *message.mutable_join()->mutable_resume() = *resume;
    Write(index, std::move(message));
    Beat(index, agent.stream);
    Watch(index, agent.stream);
  }
  bool Holds(uint32_t index, ConnectionId stream) const {
    return agents_[index].alive && agents_[index].in && agents_[index].stream == stream;
  }
  void Beat(uint32_t index, ConnectionId stream) {
    if (!Holds(index, stream)) return;
    if (now_ < agents_[index].frozen) return Unfrozen(index, [this, index, stream] { Beat(index, stream); });
    v1::FromAgent beat;
    beat.mutable_beat()->set_number(agents_[index].lease.NextBeat(now_));
    beat.mutable_beat()->set_taken(agents_[index].session.heard());
    Write(index, std::move(beat));
    After(kBeatInterval, [this, index, stream] { Beat(index, stream); });
  }
  void Watch(uint32_t index, ConnectionId stream) {
    if (!Holds(index, stream)) return;
    Agent& agent = agents_[index];
    if (now_ < agent.frozen) {
      return Unfrozen(index, [this, index, stream] {
        agents_[index].lease.GiveSecondChance(now_);
        Watch(index, stream);
      });
    }
    if (now_ >= agent.lease.End()) return LoseHost(index);
    After(std::chrono::ceil<microseconds>(agent.lease.End() - now_), [this, index, stream] { Watch(index, stream); });
  }
  // The end of its stream. Its ranks go on until another host has taken over, or nobody has for too long.
  void LoseHost(uint32_t index) {
    Agent& agent = agents_[index];
    if (!agent.alive || !std::exchange(agent.in, false)) return;
    agent.session.Leave();
    Tell(index, Disconnected{agent.stream, "its connection broke"});
    TellLauncher(index, [this, index, term = agent.term] {
      if (choice_.IsNews(index, term)) TakeOverFrom();
    });
    WaitForHost(index);
  }
  void WaitForHost(uint32_t index) {
    Agent& agent = agents_[index];
    if (agent.waits_until.has_value()) return;
    agent.waits_until = now_ + kTakeOverTime;
    At(*agent.waits_until, [this, index, until = *agent.waits_until] {
      if (agents_[index].waits_until == until) GiveUp(index);
    });
  }
  // The ranks are killed, which takes its time, and the agent ends.
  void GiveUp(uint32_t index) {
    Agent& agent = agents_[index];
    if (!agent.alive) return;
    agent.alive = false;
    BreakStreamsTo(index);
    if (std::exchange(agent.in, false)) Tell(index, Disconnected{agent.stream, "its connection broke"});
    After(Jitter(kKillTime * 9 / 10), [this, index] {
      EndRanks(index);
      TellLauncher(index, [this, index] { OnAgentEnded(index, true); });
    });
  }
  // A host whose own node was given up goes on for the others, without ranks.
  void OnRefused(uint32_t index) {
    Agent& agent = agents_[index];
    if (!agent.host) return GiveUp(index);
    agent.in = false;
    agent.waits_until.reset();
    After(Jitter(kKillTime * 9 / 10), [this, index, life = agent.life] {
      if (agents_[index].life == life) EndRanks(index);
    });
  }
  void BreakStreamsTo(uint32_t host) {
    for (uint32_t other = 0; other < agents_.size(); ++other) {
      const ConnectionId stream = agents_[other].stream;
      if (other != host && agents_[other].in && agents_[other].to == host) {
        Deliver(host, stream, [this](uint32_t to) { LoseHost(to); });
      }
    }
  }

  // --- what agents hear ---
  void Hear(uint32_t index, const v1::ToAgent& message) {
    Agent& agent = agents_[index];
    if (!agent.alive || !agent.in) return;
    for (v1::FromAgent& again : agent.session.Hear(message)) Write(index, std::move(again));
    if (message.has_resumed()) agent.waits_until.reset();
    if (message.has_beat()) agent.lease.OnAnswer(message.beat().number());
    if (message.has_log() && agent.has_copy) {
      if (const auto ack = agent.copy.OnPage(message.log(), now_)) {
        v1::FromAgent logged;
        *logged.mutable_logged() = *ack;
        Write(index, std::move(logged));
      }
    }
    if (message.has_refused()) OnRefused(index);
    if (message.has_assignment()) {
      if (agent.asked != agent.answered) wrong_ = "node " + std::to_string(index) + " was not answered";
      Start(index, message.assignment());
      Ask(index, agent.life);
    }
    if (message.has_put()) {
      if (!message.put().error().empty() || message.put().request() != ++agent.answered) {
        wrong_ = "node " + std::to_string(index) + " asked for " + std::to_string(agent.asked) + ", and was answered " +
                 std::to_string(message.put().request()) + " after " + std::to_string(agent.answered - 1) + ": " +
                 message.put().error();
      }
    }
    if (message.has_stop() && agent.epoch != 0) {
      After(Jitter(seconds(1)), [this, index, life = agent.life] { EndInOrder(index, life, SIGTERM); });
    }
  }
  void Ask(uint32_t index, uint64_t life) {
    Agent& agent = agents_[index];
    if (!agent.alive || agent.life != life) return;
    v1::FromAgent message;
    message.mutable_put()->set_request(++agent.asked);
    message.mutable_put()->set_key(std::to_string(index) + "/" + std::to_string(agent.asked));
    Say(index, std::move(message));
    After(Jitter(milliseconds(1500)), [this, index, life] { Ask(index, life); });
  }

  // --- dlaunch, and its pipes to the agents ---
  void TellLauncher(uint32_t from, std::function<void()> what);
  void TellAgent(uint32_t to, std::function<void()> what);
  void TellHost(Event event);
  void OnTold(uint32_t host, const Action& action);
  void OnAgentEnded(uint32_t index, bool sure);
  void TakeOverFrom();
  void Announce(v1::TakeOver order);
  void OnListening(uint32_t host, uint64_t term);
  void Move(uint32_t index, uint32_t host, uint64_t term);
  // --- faults ---
  void Inject() override;
  void Kill(uint32_t index);
  void CutOff(uint32_t index);

  const uint32_t spares_;
  const uint32_t least_;
  const uint32_t standbys_;
  StandbyChoice choice_;
  uint64_t heard_ = 0;
  std::vector<AgentEnded> told_host_;
  std::map<ConnectionId, Way> downs_, ups_;        // by stream
  std::map<uint32_t, Way> pipe_downs_, pipe_ups_;  // by agent
  uint32_t lost_ = 0;
};

}  // namespace cohort::launcher
