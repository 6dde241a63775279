// Small elastic jobs, simulated by the thousand: nodes are killed, vanish and are cut off in one direction or both, for
// a while or for good; what was on its way then arrives late. Agents live by the lease that real ones have. Whatever
// happens there are never two worlds: no rank runs while one of another epoch runs, and none runs twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/control/lease.h"
#include "cohort/launcher/control/rendezvous.h"
#include "tests/launcher/control/driver.h"
#include "tests/launcher/control/simulated_job.h"
#include "tests/support/nightly.h"

namespace cohort::launcher {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Agent : SimulatedAgent {
  Way way_down, way_up;
};

class Worlds : public SimulatedJob<Agent> {
 public:
  explicit Worlds(uint32_t seed)
      : SimulatedJob(seed),
        spares_(Below(3)),
        least_(1 + Below(nodes_)),
        rendezvous_(MakeElasticPlan(spares_, least_), now_) {
    agents_.resize(nodes_ + spares_);
  }

  void Run() {
    for (uint32_t agent = 0; agent < agents_.size(); ++agent) {
      After(Jitter(milliseconds(300)), [this, agent] { Join(agent); });
    }
    After(milliseconds(10), [this] { OnTick(); });
    RunFor(seconds(300));
  }

  void Check() const {
    ASSERT_EQ(wrong_, "");
    ASSERT_TRUE(report_.has_value()) << "the job did not end";
    // A node other than the rendezvous' own can be replaced, by a spare or by going on with fewer.
    if (lost_ <= spares_ + nodes_ - least_) {
      EXPECT_EQ(report_->exit_code(), 0) << report_->headline() << "; " << report_->not_restarted();
    }
  }

 private:
  // --- the rendezvous ---
  void OnTick() {
    After(milliseconds(10), [this] { OnTick(); });
    if (now_ < frozen_until_) return;
    for (Event& event : std::exchange(inbox_, {})) Carry(rendezvous_.Handle(std::move(event), now_));
    if (now_ >= rendezvous_.NextTick()) Carry(rendezvous_.Tick(now_));
  }
  void Carry(std::vector<Action> actions) {
    for (Action& action : actions) {
      if (Send* const send = std::get_if<Send>(&action)) {
        const auto to = static_cast<uint32_t>(send->to - 1);
        Deliver(to, [this, to, message = send->message] { Hear(to, *message); });
      } else if (const Close* const close = std::get_if<Close>(&action)) {
        const auto to = static_cast<uint32_t>(close->connection - 1);
        Deliver(to, [this, to] { LoseRendezvous(to); });
      } else if (std::holds_alternative<NodeLost>(action)) {
        ++lost_;
      } else if (Finish* const finish = std::get_if<Finish>(&action)) {
        report_ = std::move(finish->report);
      }
    }
  }

  // --- the network: a stream keeps its order ---
  void Deliver(uint32_t to, std::function<void()> what) {
    Agent& agent = agents_[to];
    agent.down = std::max({agent.down, now_ + Jitter(kHop), agent.ears}) + microseconds(1);
    InOrder(&agent.way_down, agent.down, [&agent] { return agent.ears; }, std::move(what));
  }
  void Tell(uint32_t from, Event event) {
    Agent& agent = agents_[from];
    agent.up = std::max({agent.up, now_ + Jitter(kHop), agent.mouth}) + microseconds(1);
    InOrder(
        &agent.way_up, agent.up, [&agent] { return agent.mouth; },
        [this, event = std::move(event)] { inbox_.push_back(event); });
  }
  void Say(uint32_t from, v1::FromAgent message) override {
    if (agents_[from].alive && agents_[from].in) Tell(from, Received{Driver::Of(from), std::move(message)});
  }

  // --- agents ---
  void Join(uint32_t index) {
    agents_[index].in = true;
    agents_[index].lease = Lease(now_);
    v1::FromAgent message;
    *message.mutable_join() = MakeOffer(index);
    Say(index, std::move(message));
    Beat(index);
    Watch(index);
  }
  void Beat(uint32_t index) {
    if (!agents_[index].alive || !agents_[index].in) return;
    v1::FromAgent beat;
    beat.mutable_beat()->set_number(agents_[index].lease.NextBeat(now_));
    Say(index, std::move(beat));
    After(kBeatInterval, [this, index] { Beat(index); });
  }
  void Watch(uint32_t index) {
    Agent& agent = agents_[index];
    if (!agent.alive || !agent.in) return;
    if (index == 0) agent.lease.GiveSecondChance(frozen_until_);  // the same process: it was stopped, too
    if (now_ >= agent.lease.End()) return LoseRendezvous(index);
    After(std::chrono::ceil<microseconds>(agent.lease.End() - now_), [this, index] { Watch(index); });
  }
  // The end of its stream: the ranks are killed, which takes its time.
  void LoseRendezvous(uint32_t index) {
    Agent& agent = agents_[index];
    if (!agent.alive || !std::exchange(agent.in, false)) return;
    Tell(index, Disconnected{Driver::Of(index), "its connection broke"});
    After(Jitter(kKillTime * 9 / 10), [this, index] { EndRanks(index); });
  }
  void Hear(uint32_t index, const v1::ToAgent& message) {
    Agent& agent = agents_[index];
    if (!agent.alive || !agent.in) return;
    if (message.has_beat()) agent.lease.OnAnswer(message.beat().number());
    if (message.has_assignment()) Start(index, message.assignment());
    if (message.has_stop() && agent.epoch != 0) {
      After(Jitter(seconds(1)), [this, index, life = agent.life] { EndInOrder(index, life, SIGTERM); });
    }
  }

  // --- faults ---
  void Inject() override {
    if (Below(5) == 0) frozen_until_ = now_ + Jitter(seconds(6));  // the rendezvous itself is stopped
    const uint32_t index = 1 + Below(static_cast<uint32_t>(agents_.size()) - 1);
    Agent& agent = agents_[index];
    switch (Below(5)) {
      case 0:  // its power goes
        agent.alive = false;
        EndRanks(index);
        break;
      case 1: {  // its agent is killed, and the sentinel sweeps
        if (!agent.alive || !std::exchange(agent.in, false)) break;
        Tell(index, Disconnected{Driver::Of(index), "its connection broke"});
        agent.alive = false;
        const bool known = Below(2) == 0;
        After(Jitter(milliseconds(300)), [this, index, known] {
          EndRanks(index);
          if (known) inbox_.emplace_back(AgentEnded{index});
        });
        break;
      }
      case 2:  // one of its ranks dies, or one elsewhere
        KillRank(Below(2) == 0 ? 0 : index);
        break;
      default: {  // it is cut off
        const uint32_t how = Below(3);
        const TimePoint until = now_ + (Below(3) == 0 ? microseconds(seconds(600)) : Jitter(seconds(12)));
        if (how != 0) agent.ears = until;
        if (how != 1) agent.mouth = until;
      }
    }
    GoOnAfterFault(seconds(20));
  }

  const uint32_t spares_;
  const uint32_t least_;
  TimePoint frozen_until_{};
  Rendezvous rendezvous_;
  std::vector<Event> inbox_;
  uint32_t lost_ = 0;
};

TEST(Worlds, ThereAreNeverTwoWorldsOfOneJob) {
  const auto count = static_cast<uint32_t>(testing::Trials(1000, 100'000));
  const uint32_t first = std::random_device()();
  for (uint32_t i = 0; i < count; ++i) {
    SCOPED_TRACE("seed " + std::to_string(first + i));
    Worlds worlds(first + i);
    worlds.Run();
    worlds.Check();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace cohort::launcher
