// Whole jobs of 200 nodes with 8 ranks each, simulated in one thread: messages take random time, ranks and agents fail
// in random ways, victims fail in turn, and the rendezvous itself may be stopped for a while. Whatever happens, the job
// ends in time, every living agent is told, and the blame lies where the fault was put.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <map>
#include <queue>
#include <random>

#include "cohort/launcher/control/rendezvous.h"
#include "tests/launcher/control/driver.h"

namespace cohort::launcher {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint32_t kNodes = 200;
constexpr uint32_t kPerNode = 8;
constexpr uint32_t kRanks = kNodes * kPerNode;

enum class Fault {
  kNone,
  kRankKilled,
  kRankExits,
  kRankNotStarted,
  kAgentKilled,
  kNodeVanishes,
  kMismatch,
  kRankHangs,
  kUserStops,
  kCount
};

class Simulation {
 public:
  Simulation(uint32_t seed, Fault fault)
      : random_(seed), fault_(fault), rendezvous_(MakePlan(kNodes, kPerNode), now_), nodes_(kNodes), ranks_(kRanks) {
    culprit_ = Below(kRanks);
    stops_itself_ = Below(4) == 0;
  }

  void Run() {
    for (uint32_t node = 0; node < kNodes; ++node) {
      After(Jitter(milliseconds(500)), [this, node] { Join(node); });
    }
    After(Tick(), [this] { OnTick(); });
    if (stops_itself_) {
      After(Jitter(seconds(3)), [this] { frozen_until_ = now_ + milliseconds(500) + Jitter(seconds(8)); });
    }
    const TimePoint limit = now_ + seconds(60);
    while (!queue_.empty() && !report_.has_value() && now_ < limit) {
      Next next = queue_.top();
      queue_.pop();
      now_ = std::max(now_, next.at);
      next.what();
    }
    for (int i = 0; i < 100'000 && !queue_.empty() && queue_.top().at < now_ + milliseconds(20); ++i) {  // last words
      Next next = queue_.top();
      queue_.pop();
      next.what();
    }
  }

  void Check() const {
    ASSERT_TRUE(report_.has_value()) << "the job did not end";
    EXPECT_EQ(finishes_, 1);
    const v1::JobReport& report = *report_;
    const bool verdict = fault_ == Fault::kMismatch || fault_ == Fault::kRankHangs;  // blames one that we kill later
    for (const v1::RankExit& exit : report.exits()) {
      if (verdict) break;
      EXPECT_FALSE(exit.killed_by_us() && static_cast<int>(exit.rank()) == report.culprit_rank());
    }
    const uint32_t bad_node = culprit_ / kPerNode;
    for (uint32_t node = 0; node < kNodes; ++node) {
      const bool gone = node == bad_node && (fault_ == Fault::kAgentKilled || fault_ == Fault::kNodeVanishes);
      if (gone) continue;
      EXPECT_EQ(nodes_[node].reports, 1) << "node " << node;
      EXPECT_EQ(nodes_[node].stops, fault_ == Fault::kNone ? 0 : 1) << "node " << node;
    }
    const int culprit = static_cast<int>(culprit_);
    switch (fault_) {
      case Fault::kNone:
        EXPECT_EQ(report.exit_code(), 0) << report.headline();
        break;
      case Fault::kRankKilled:
        EXPECT_EQ(report.culprit_rank(), culprit) << report.headline();
        EXPECT_EQ(report.exit_code(), 137);
        break;
      case Fault::kRankExits:
        EXPECT_EQ(report.culprit_rank(), culprit) << report.headline();
        EXPECT_EQ(report.exit_code(), 3);
        break;
      case Fault::kRankNotStarted:
        EXPECT_EQ(report.culprit_rank(), culprit) << report.headline();
        EXPECT_EQ(report.exit_code(), 127);
        break;
      case Fault::kAgentKilled:
      case Fault::kNodeVanishes:
        EXPECT_EQ(report.culprit_rank() / static_cast<int>(kPerNode), static_cast<int>(bad_node)) << report.headline();
        EXPECT_THAT(report.headline(), HasSubstr("the agent of node" + std::to_string(bad_node) + " is gone"));
        break;
      case Fault::kMismatch:
        EXPECT_THAT(report.headline(), HasSubstr("calls do not match"));
        EXPECT_EQ(report.culprit_rank(), culprit);
        break;
      case Fault::kRankHangs:
        EXPECT_THAT(report.headline(), HasSubstr("never called"));
        EXPECT_EQ(report.culprit_rank(), culprit);
        break;
      default:
        EXPECT_EQ(report.exit_code(), 130) << report.headline();
        EXPECT_EQ(report.culprit_rank(), -1);
    }
  }

 private:
  struct Next {
    TimePoint at;
    uint64_t order;
    std::function<void()> what;
    bool operator<(const Next& other) const { return std::tie(at, order) > std::tie(other.at, other.order); }
  };
  struct Node {
    bool alive = true;
    bool stopping = false;
    bool done = false;
    int reports = 0;
    int stops = 0;
    TimePoint up;  // when the latest message in each direction arrives: order is kept
    TimePoint down;
  };
  struct Rank {
    bool gone = false;
    bool dying = false;
  };

  uint32_t Below(uint32_t n) { return random_() % n; }
  microseconds Jitter(std::chrono::milliseconds most) {
    return microseconds(Below(static_cast<uint32_t>(most.count()) * 1000 + 1));
  }
  static milliseconds Tick() { return milliseconds(5); }
  void After(microseconds delay, std::function<void()> what) { queue_.push({now_ + delay, ++order_, std::move(what)}); }

  // --- the rendezvous ---
  void OnTick() {
    After(Tick(), [this] { OnTick(); });
    if (now_ < frozen_until_ || report_.has_value()) return;
    for (Event& event : std::exchange(inbox_, {})) Carry(rendezvous_.Handle(std::move(event), now_));
    if (now_ >= rendezvous_.NextTick()) Carry(rendezvous_.Tick(now_));
  }
  void Receive(Event event) {
    if (now_ < frozen_until_ || !inbox_.empty()) {
      inbox_.push_back(std::move(event));  // waits in a socket
    } else {
      Carry(rendezvous_.Handle(std::move(event), now_));
    }
  }
  void Carry(std::vector<Action> actions) {
    for (Action& action : actions) {
      if (Send* const send = std::get_if<Send>(&action)) {
        const auto node = static_cast<uint32_t>(send->to - 1);
        nodes_[node].down = std::max(nodes_[node].down, now_ + Jitter(milliseconds(3)));
        After(std::chrono::duration_cast<microseconds>(nodes_[node].down - now_) + microseconds(1),
              [this, node, message = send->message] { Hear(node, *message); });
      } else if (Finish* const finish = std::get_if<Finish>(&action)) {
        report_ = std::move(finish->report);
        ++finishes_;
      }
    }
  }

  // --- agents ---
  void Tell(uint32_t node, v1::FromAgent message) {
    if (!nodes_[node].alive) return;
    nodes_[node].up = std::max(nodes_[node].up, now_ + Jitter(milliseconds(3)));
    After(std::chrono::duration_cast<microseconds>(nodes_[node].up - now_) + microseconds(1),
          [this, node, message = std::move(message)] { Receive(Received{Driver::Of(node), message}); });
  }
  void Join(uint32_t node) {
    v1::FromAgent message;
    *message.mutable_join() = MakeOffer(node);
    Tell(node, std::move(message));
    After(Jitter(seconds(1)), [this, node] { Beat(node); });
  }
  void Beat(uint32_t node) {
    if (!nodes_[node].alive) return;
    v1::FromAgent beat;
    beat.mutable_beat();
    Tell(node, std::move(beat));
    After(seconds(1), [this, node] { Beat(node); });
  }
  void End(v1::RankExit exit) {
    const uint32_t node = exit.rank() / kPerNode;
    if (ranks_[exit.rank()].gone || !nodes_[node].alive) return;
    ranks_[exit.rank()].gone = true;
    v1::FromAgent message;
    *message.mutable_exit() = std::move(exit);
    Tell(node, std::move(message));
    for (uint32_t rank = node * kPerNode; rank < (node + 1) * kPerNode; ++rank) {
      if (!ranks_[rank].gone) return;
    }
    v1::FromAgent done;
    done.mutable_done()->set_node(node);
    Tell(node, std::move(done));
  }
  void EndSoon(const v1::RankExit& exit, milliseconds within) {
    if (std::exchange(ranks_[exit.rank()].dying, true)) return;
    After(Jitter(within), [this, exit] { End(exit); });
  }
  void Hear(uint32_t node, const v1::ToAgent& message) {
    if (!nodes_[node].alive) return;
    switch (message.kind_case()) {
      case v1::ToAgent::kAssignment:
        if (++assigned_ == kNodes) After(Jitter(seconds(2)), [this] { Inject(); });
        break;
      case v1::ToAgent::kReport:
        ++nodes_[node].reports;
        break;
      case v1::ToAgent::kStop:
        ++nodes_[node].stops;
        for (uint32_t rank = node * kPerNode; rank < (node + 1) * kPerNode; ++rank) {
          // Some end in their own way when asked, some need SIGKILL.
          const uint32_t how = Below(10);
          EndSoon(how == 0   ? Exited(rank, 143)
                  : how == 1 ? Killed(rank, SIGKILL, true)
                             : Killed(rank, SIGTERM, true),
                  how == 1 ? milliseconds(2500) : milliseconds(50));
        }
        break;
      case v1::ToAgent::kRanksLost:
      case v1::ToAgent::kGroupFailure:
        for (uint32_t rank = node * kPerNode; rank < (node + 1) * kPerNode; ++rank) {
          const uint32_t how = Below(6);
          if (rank == culprit_ && fault_ == Fault::kRankHangs) continue;  // hears nothing
          if (message.group_failure().sequence() != 0) SayThatItWaits(rank, message.group_failure());
          if (how < 2) EndSoon(Exited(rank, 1), milliseconds(80));
          if (how == 2) EndSoon(Killed(rank, SIGABRT), milliseconds(80));  // an uncaught exception
        }
        break;
      case v1::ToAgent::kInspect:
        Answer(node, message.inspect());
        break;
      default:
        break;
    }
  }
  // The answer to an expired call: a rank that waits in it ends the group.
  void SayThatItWaits(uint32_t rank, const v1::GroupFailure& verdict) {
    if (ranks_[rank].dying) return;
    v1::FromAgent said;
    *said.mutable_group_failure() = verdict;
    said.mutable_group_failure()->clear_sequence();
    said.mutable_group_failure()->set_from_rank(static_cast<int32_t>(rank));
    Tell(rank / kPerNode, std::move(said));
  }
  void Answer(uint32_t node, const v1::InspectRequest& request) {
    v1::FromAgent message;
    message.mutable_inspect()->set_request(request.request());
    for (uint32_t rank = node * kPerNode; rank < (node + 1) * kPerNode; ++rank) {
      v1::CallState& call = *message.mutable_inspect()->add_calls();
      const bool odd = rank == culprit_;
      call.set_present(true);
      call.set_rank(rank);
      call.set_group(1);
      call.set_epoch(1);
      call.set_sequence(odd && fault_ == Fault::kRankHangs ? 41 : 42);
      call.set_sequence_seen(call.sequence() == 42);
      call.set_signature(odd && fault_ == Fault::kMismatch ? 2 : 1);
      call.set_call(call.signature() == 2 ? "broadcast(float32, 8, root 0)" : "all_reduce(sum, float32, 8)");
      call.set_site("train.cc:88");
    }
    Tell(node, std::move(message));
  }

  // --- faults ---
  void Inject() {
    const uint32_t node = culprit_ / kPerNode;
    switch (fault_) {
      case Fault::kNone:
        for (uint32_t rank = 0; rank < kRanks; ++rank) EndSoon(Exited(rank, 0), seconds(2));
        break;
      case Fault::kRankKilled:
        ranks_[culprit_].dying = true;
        Complain();
        After(Jitter(milliseconds(25)), [this] { End(Killed(culprit_, SIGKILL)); });
        break;
      case Fault::kRankExits:
        ranks_[culprit_].dying = true;
        Complain();
        After(Jitter(milliseconds(25)), [this] { End(Exited(culprit_, 3)); });
        break;
      case Fault::kRankNotStarted: {
        v1::FromAgent message;
        v1::RankExit& failed = *message.mutable_started()->add_failed();
        failed.set_rank(culprit_);
        failed.set_error("main: permission denied");
        ranks_[culprit_].gone = ranks_[culprit_].dying = true;
        Tell(node, std::move(message));
        break;
      }
      case Fault::kAgentKilled:
        nodes_[node].alive = false;
        Complain();
        After(Jitter(milliseconds(10)),
              [this, node] { Receive(Disconnected{Driver::Of(node), "its connection broke"}); });
        break;
      case Fault::kNodeVanishes:
        nodes_[node].alive = false;
        Complain();
        break;
      case Fault::kMismatch:
      case Fault::kRankHangs:
        for (int i = 0; i < 30; ++i) ReportStall(Below(kRanks), false);
        After(milliseconds(600), [this] { ReportStall((culprit_ + kPerNode) % kRanks, fault_ == Fault::kRankHangs); });
        break;
      default:
        Receive(StopRequested{"stopped by SIGINT", 130});
    }
  }
  // Some peers notice a broken connection before anyone else does; they say so and exit.
  void Complain() {
    for (int i = 0; i < 20; ++i) {
      const uint32_t rank = Below(kRanks);
      if (rank / kPerNode == culprit_ / kPerNode) continue;
      After(Jitter(milliseconds(30)), [this, rank] {
        if (std::exchange(ranks_[rank].dying, true)) return;
        v1::FromAgent message;
        v1::GroupFailure& failure = *message.mutable_group_failure();
        failure.set_group(1 + rank % 3);
        failure.set_epoch(1);
        failure.mutable_members()->set_everyone(true);
        failure.set_code(14);
        failure.set_text("the connection to rank " + std::to_string(culprit_) + " broke");
        failure.set_from_rank(static_cast<int32_t>(rank));
        failure.set_blamed_rank(static_cast<int32_t>(culprit_));
        Tell(rank / kPerNode, std::move(message));
        After(Jitter(milliseconds(30)), [this, rank] { End(Exited(rank, 1)); });
      });
    }
  }
  void ReportStall(uint32_t rank, bool expired) {
    if (rank == culprit_) return;
    v1::FromAgent message;
    v1::StallReport& stall = *message.mutable_stall();
    stall.set_group(1);
    stall.set_epoch(1);
    stall.set_sequence(42);
    stall.mutable_members()->set_everyone(true);
    stall.set_expired(expired);
    Tell(rank / kPerNode, std::move(message));
  }

  std::mt19937 random_;
  const Fault fault_;
  uint32_t culprit_ = 0;
  bool stops_itself_ = false;
  TimePoint now_{seconds(1000)};
  TimePoint frozen_until_{};
  Rendezvous rendezvous_;
  std::vector<Event> inbox_;
  std::vector<Node> nodes_;
  std::vector<Rank> ranks_;
  std::priority_queue<Next> queue_;
  uint64_t order_ = 0;
  uint32_t assigned_ = 0;
  std::optional<v1::JobReport> report_;
  int finishes_ = 0;
};

TEST(Simulation, JobsEndRightlyWhateverFails) {
  const uint32_t seed = std::random_device()();
  for (int round = 0; round < 4; ++round) {
    for (int fault = 0; fault < static_cast<int>(Fault::kCount); ++fault) {
      const uint32_t each = seed + static_cast<uint32_t>(round * 100 + fault);
      SCOPED_TRACE("seed " + std::to_string(each) + ", fault " + std::to_string(fault));
      Simulation simulation(each, static_cast<Fault>(fault));
      simulation.Run();
      simulation.Check();
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace cohort::launcher
