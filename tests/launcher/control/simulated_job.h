// Shared by the simulations of small jobs: a clock with all that is to happen, ways that keep the order of what comes
// over them, processes that are stopped, agents with their ranks, and the check that there are never two worlds: no
// rank runs while one of another epoch runs, and none runs twice.
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/launcher/control/lease.h"
#include "cohort/launcher/control/rendezvous.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {

inline constexpr uint32_t kPerNode = 2;
inline constexpr std::chrono::milliseconds kHop{20};  // the most that a message takes

struct SimulatedAgent {
  using Way = std::deque<std::function<void()>>;

  bool alive = true;
  bool in = false;  // its stream stands, as far as it knows
  Lease lease{TimePoint{}};
  uint64_t epoch = 0;  // of its ranks; 0: none live
  std::vector<uint32_t> ranks;
  uint64_t life = 0;      // counts starts and ends of ranks
  TimePoint ears, mouth;  // until when what is on its way to it, or from it, is held up
  TimePoint down, up;     // when the latest message arrives
  TimePoint frozen;       // it is stopped until then
  Way stopped;            // what it is to do when it goes on
};

// `Agent` is a SimulatedAgent.
template <typename Agent>
class SimulatedJob {
 public:
  virtual ~SimulatedJob() = default;

 protected:
  using Way = SimulatedAgent::Way;

  explicit SimulatedJob(uint32_t seed) : random_(seed), nodes_(2 + Below(3)) {}

  uint32_t Below(uint32_t n) { return random_() % n; }
  std::chrono::microseconds Jitter(std::chrono::milliseconds most) {
    return std::chrono::microseconds(Below(static_cast<uint32_t>(most.count()) * 1000 + 1));
  }
  void At(TimePoint time, std::function<void()> what) { queue_.push({time, ++order_, std::move(what)}); }
  void After(std::chrono::microseconds delay, std::function<void()> what) { At(now_ + delay, std::move(what)); }

  // Until the job has ended, or `limit` has passed.
  void RunFor(std::chrono::seconds limit) {
    const TimePoint end = now_ + limit;
    while (!queue_.empty() && !report_.has_value() && !over_ && now_ < end && wrong_.empty()) {
      Next next = queue_.top();
      queue_.pop();
      now_ = std::max(now_, next.at);
      next.what();
    }
  }

  v1::JobPlan MakeElasticPlan(uint32_t spares, uint32_t least) const {
    v1::JobPlan plan = MakePlan(nodes_, kPerNode, "restart");
    plan.mutable_job()->set_max_restarts(100);
    plan.set_min_nodes(least);
    for (uint32_t i = 0; i < spares; ++i) *plan.add_spares()->add_placements() = plan.placements(0);
    return plan;
  }

  // Messages on one way arrive in their order, whenever they were held up, and before the jobs' next look at the clock.
  void InOrder(Way* way, TimePoint at, std::function<TimePoint()> held, std::function<void()> what) {
    way->push_back(std::move(what));
    AwaitFirst(way, at, std::move(held));
  }

  // The work of a stopped process waits, in its order.
  void Unfrozen(uint32_t index, std::function<void()> what) {
    Agent& agent = agents_[index];
    if (now_ >= agent.frozen && agent.stopped.empty()) return what();
    agent.stopped.push_back(std::move(what));
    if (agent.stopped.size() == 1) At(agent.frozen, [this, index] { GoOnAfterStop(index); });
  }

  // --- ranks ---
  virtual void Say(uint32_t from, v1::FromAgent message) = 0;
  // Something happens to the job, or to a node.
  virtual void Inject() = 0;

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
  void EndRanks(uint32_t index) {
    agents_[index].epoch = 0;
    ++agents_[index].life;
  }
  void EndInOrder(uint32_t index, uint64_t life, int signal) {
    Agent& agent = agents_[index];
    if (!agent.alive || agent.epoch == 0 || agent.life != life) return;
    if (now_ < agent.frozen) {
      return Unfrozen(index, [this, index, life, signal] { EndInOrder(index, life, signal); });
    }
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
  void KillRank(uint32_t index) {
    if (agents_[index].epoch == 0) return;
    v1::FromAgent message;
    *message.mutable_exit() = Killed(agents_[index].ranks.front(), SIGSEGV);
    Say(index, std::move(message));
  }

  // The fault was none to anybody who matters, if nothing new has happened: the job goes on to its next one, or its
  // end.
  void GoOnAfterFault(std::chrono::seconds time) {
    After(time, [this, faults = faults_] {
      if (faults == faults_) OnWhole();
    });
  }

  std::mt19937 random_;
  const uint32_t nodes_;
  TimePoint now_{std::chrono::seconds(1000)};
  std::vector<Agent> agents_;
  bool over_ = false;
  std::optional<v1::JobReport> report_;
  std::string wrong_;

 private:
  struct Next {
    TimePoint at;
    uint64_t order;
    std::function<void()> what;
    bool operator<(const Next& other) const { return std::tie(at, order) > std::tie(other.at, other.order); }
  };

  void AwaitFirst(Way* way, TimePoint at, std::function<TimePoint()> held) {
    At(at, [this, way, held = std::move(held)] {
      if (now_ < held()) return AwaitFirst(way, held() + std::chrono::microseconds(1), held);
      const std::function<void()> first = std::move(way->front());
      way->pop_front();
      first();
    });
  }
  void GoOnAfterStop(uint32_t index) {
    Agent& agent = agents_[index];
    if (now_ < agent.frozen) return At(agent.frozen, [this, index] { GoOnAfterStop(index); });
    for (const std::function<void()>& what : std::exchange(agent.stopped, {})) what();
  }
  void Blame(uint32_t a, uint32_t b, const std::string& what) {
    wrong_ = what + ": epoch " + std::to_string(agents_[a].epoch) + " on node " + std::to_string(a) + " and epoch " +
             std::to_string(agents_[b].epoch) + " on node " + std::to_string(b);
  }
  // All ranks of an epoch run. Something happens to them, or they come to their end.
  void OnWhole() {
    using std::chrono::seconds;
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

  std::priority_queue<Next> queue_;
  uint64_t order_ = 0;
  uint32_t faults_ = 0;
};

}  // namespace cohort::launcher
