// Small elastic jobs, simulated by the thousand: nodes are killed, vanish and are cut off in one direction or both, for
// a while or for good; what was on its way then arrives late. Agents live by the lease that real ones have. Whatever
// happens there are never two worlds: no rank runs while one of another epoch runs, and none runs twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "launcher/control/lease.h"
#include "launcher/control/rendezvous.h"
#include "tests/launcher/control/driver.h"
#include "tests/support/nightly.h"

namespace cohort::launcher {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kPerNode = 2;

class Worlds {
 public:
  explicit Worlds(uint32_t seed)
      : random_(seed),
        nodes_(2 + Below(3)),
        spares_(Below(3)),
        least_(1 + Below(nodes_)),
        agents_(nodes_ + spares_),
        rendezvous_(Plan(), now_) {
    agents_[0].ears = agents_[0].mouth = TimePoint::min();
  }

  void Run() {
    for (uint32_t agent = 0; agent < agents_.size(); ++agent) {
      After(Jitter(milliseconds(300)), [this, agent] { Join(agent); });
    }
    After(milliseconds(10), [this] { OnTick(); });
    const TimePoint limit = now_ + seconds(300);
    while (!queue_.empty() && !report_.has_value() && now_ < limit && wrong_.empty()) {
      Next next = queue_.top();
      queue_.pop();
      now_ = std::max(now_, next.at);
      next.what();
    }
  }

  void Check() const {
    ASSERT_EQ(wrong_, "");
    ASSERT_TRUE(report_.has_value()) << "the job did not end";
    // What can be replaced is: a node that is not the rendezvous' own, by a spare or by going on with fewer.
    if (lost_ <= spares_ + nodes_ - least_) {
      EXPECT_EQ(report_->exit_code(), 0) << report_->headline() << "; " << report_->not_restarted();
    }
  }

 private:
  struct Next {
    TimePoint at;
    uint64_t order;
    std::function<void()> what;
    bool operator<(const Next& other) const { return std::tie(at, order) > std::tie(other.at, other.order); }
  };
  struct Agent {
    bool alive = true;
    bool in = false;  // its stream stands, as far as it knows
    Lease lease{TimePoint{}};
    uint64_t epoch = 0;  // of its ranks; 0: none live
    std::vector<uint32_t> ranks;
    uint64_t life = 0;      // counts starts and ends of ranks
    TimePoint ears, mouth;  // until when what is on its way to it, or from it, is held up
    TimePoint down, up;     // when the latest message arrives: order is kept
  };

  uint32_t Below(uint32_t n) { return random_() % n; }
  microseconds Jitter(milliseconds most) { return microseconds(Below(static_cast<uint32_t>(most.count()) * 1000 + 1)); }
  void After(microseconds delay, std::function<void()> what) { queue_.push({now_ + delay, ++order_, std::move(what)}); }

  v1::JobPlan Plan() {
    v1::JobPlan plan = MakePlan(nodes_, kPerNode, "restart");
    plan.mutable_job()->set_max_restarts(100);
    plan.set_min_nodes(least_);
    for (uint32_t i = 0; i < spares_; ++i) *plan.add_spares()->add_placements() = plan.placements(0);
    return plan;
  }

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

  // --- the network ---
  void Deliver(uint32_t to, std::function<void()> what) {
    Agent& agent = agents_[to];
    agent.down = std::max({agent.down, now_ + Jitter(milliseconds(20)), agent.ears}) + microseconds(1);
    queue_.push({agent.down, ++order_, [this, to, what = std::move(what)] {
                   if (now_ < agents_[to].ears) return Deliver(to, what);  // cut off while it was on its way
                   what();
                 }});
  }
  void Tell(uint32_t from, Event event) {
    Agent& agent = agents_[from];
    agent.up = std::max({agent.up, now_ + Jitter(milliseconds(20)), agent.mouth}) + microseconds(1);
    queue_.push({agent.up, ++order_, [this, from, event = std::move(event)] {
                   if (now_ < agents_[from].mouth) return Tell(from, event);
                   inbox_.push_back(event);
                 }});
  }
  void Say(uint32_t from, v1::FromAgent message) {
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
  void EndRanks(uint32_t index) {
    agents_[index].epoch = 0;
    ++agents_[index].life;
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
  void Start(uint32_t index, const v1::Assignment& assignment) {
    Agent& agent = agents_[index];
    agent.epoch = assignment.epoch();
    ++agent.life;
    agent.ranks.clear();
    for (const v1::RankPlacement& rank : assignment.placement().ranks()) agent.ranks.push_back(rank.rank());
    size_t running = 0;
    for (uint32_t other = 0; other < agents_.size(); ++other) {
      const Agent& there = agents_[other];
      if (there.epoch == 0) continue;
      running += there.ranks.size();
      if (there.epoch != agent.epoch) Blame(index, other, "two worlds");
      if (other != index && there.ranks.front() == agent.ranks.front()) Blame(index, other, "a rank that runs twice");
    }
    if (running == assignment.world_size()) OnWhole();
  }
  void Blame(uint32_t a, uint32_t b, const std::string& what) {
    wrong_ = what + ": epoch " + std::to_string(agents_[a].epoch) + " on node " + std::to_string(a) + " and epoch " +
             std::to_string(agents_[b].epoch) + " on node " + std::to_string(b);
  }
  // All ranks of an epoch run. Something happens to them, or they come to their end.
  void OnWhole() {
    if (faults_++ < 4) {
      After(seconds(1) + Jitter(seconds(3)), [this] { Inject(); });  // when the spares have come, too
      if (Below(3) == 0)
        After(seconds(1) + Jitter(seconds(5)), [this] { Inject(); });  // another before all is well again
      return;
    }
    for (uint32_t index = 0; index < agents_.size(); ++index) {
      After(Jitter(seconds(2)), [this, index, life = agents_[index].life] { EndInOrder(index, life, 0); });
    }
  }
  void EndInOrder(uint32_t index, uint64_t life, int signal) {
    Agent& agent = agents_[index];
    if (!agent.alive || agent.epoch == 0 || agent.life != life) return;
    EndRanks(index);
    for (const uint32_t rank : agent.ranks) {
      v1::FromAgent message;
      *message.mutable_exit() = signal == 0 ? Exited(rank, 0) : Killed(rank, signal, true);
      Say(index, std::move(message));
    }
    v1::FromAgent done;
    done.mutable_done()->set_node(index);
    Say(index, std::move(done));
  }

  // --- faults ---
  void Inject() {
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
      case 2: {  // one of its ranks dies, or one elsewhere
        const uint32_t where = Below(2) == 0 ? 0 : index;
        if (agents_[where].epoch == 0) break;
        v1::FromAgent message;
        *message.mutable_exit() = Killed(agents_[where].ranks.front(), SIGSEGV);
        Say(where, std::move(message));
        break;
      }
      default: {  // it is cut off
        const uint32_t how = Below(3);
        const TimePoint until = now_ + (Below(3) == 0 ? microseconds(seconds(600)) : Jitter(seconds(12)));
        if (how != 0) agent.ears = until;
        if (how != 1) agent.mouth = until;
      }
    }
    After(seconds(20), [this, faults = faults_] { GoOn(faults); });
  }
  // The fault was none to anybody who matters: the job goes on to its next one, or its end.
  void GoOn(uint32_t faults) {
    if (faults == faults_) OnWhole();
  }

  std::mt19937 random_;
  const uint32_t nodes_;
  const uint32_t spares_;
  const uint32_t least_;
  TimePoint now_{seconds(1000)};
  TimePoint frozen_until_{};
  std::vector<Agent> agents_;
  Rendezvous rendezvous_;
  std::vector<Event> inbox_;
  std::priority_queue<Next> queue_;
  uint64_t order_ = 0;
  uint32_t faults_ = 0;
  uint32_t lost_ = 0;
  std::optional<v1::JobReport> report_;
  std::string wrong_;
};

void TrySeeds(uint32_t count) {
  // The same ones ordinarily; new ones every night.
  const uint32_t first = testing::Trials(0, 1) == 0 ? 1 : std::random_device()();
  for (uint32_t i = 0; i < count; ++i) {
    SCOPED_TRACE("seed " + std::to_string(first + i));
    Worlds worlds(first + i);
    worlds.Run();
    worlds.Check();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Worlds, AreNeverTwo) { TrySeeds(static_cast<uint32_t>(testing::Trials(1000, 100'000))); }

}  // namespace
}  // namespace cohort::launcher
