#include "cohort/trainer/parallel/pipeline/schedule/simulator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace cohort::trainer {
namespace {

constexpr int64_t kNever = -1;

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Costs& costs) : schedule_(schedule), costs_(costs) {
    const size_t passes = static_cast<size_t>(schedule.stages) * static_cast<size_t>(schedule.micro_batches);
    forward_.assign(passes, kNever);
    input_gradient_.assign(passes, kNever);
    if (costs.sends_wait) posted_.assign(4 * passes, kNever);
    ranks_.resize(schedule.by_rank.size());
    timing_.busy.assign(schedule.by_rank.size(), 0);
    for (const auto& actions : schedule.by_rank) timing_.by_rank.emplace_back(actions.size());
  }

  absl::StatusOr<Timing> Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (ranks_[rank].at < schedule_.by_rank[rank].size() && Step(rank)) moved = true;
      }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].at < schedule_.by_rank[rank].size()) return Stuck(rank);
      timing_.total = std::max(timing_.total, ranks_[rank].clock);
    }
    return std::move(timing_);
  }

 private:
  struct Rank {
    size_t at = 0;
    int64_t clock = 0;
    bool posted = false;  // the messages of the turn that begins at `at`
  };

  size_t Index(int stage, int micro_batch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(schedule_.micro_batches) + static_cast<size_t>(micro_batch);
  }
  int64_t& Posted(const Action& message) {
    const auto kind = static_cast<size_t>(message.kind) - static_cast<size_t>(ActionKind::kSendForward);
    return posted_[kind * forward_.size() + Index(message.stage, message.micro_batch)];
  }
  bool Step(size_t rank) {
    const Action& action = schedule_.by_rank[rank][ranks_[rank].at];
    if (IsCompute(action.kind)) return TryPass(rank, action);
    if (IsMessage(action.kind) && costs_.sends_wait) return TryTurn(rank);
    Finish(rank, ranks_[rank].clock, ranks_[rank].clock);
    return true;
  }
  void Finish(size_t rank, int64_t begin, int64_t end) {
    timing_.by_rank[rank][ranks_[rank].at] = {begin, end};
    ranks_[rank].clock = end;
    ++ranks_[rank].at;
  }

  // Finds the pass of another stage that a pass needs; false if it needs none.
  static bool NeedOf(const Action& pass, int stages, Action* need) {
    const bool forward = pass.kind == ActionKind::kForward;
    if (pass.kind == ActionKind::kWeightGradient) return false;
    if (pass.stage == (forward ? 0 : stages - 1)) return false;
    *need = {pass.kind, pass.stage + (forward ? -1 : 1), pass.micro_batch};
    return true;
  }
  // When what the pass needs is there; kNever as long as it is not.
  int64_t ReadyAt(const Action& pass) const {
    const size_t own = Index(pass.stage, pass.micro_batch);
    int64_t ready = 0;
    if (pass.kind == ActionKind::kWeightGradient) return input_gradient_[own];
    if (pass.kind != ActionKind::kForward) {
      if (forward_[own] == kNever) return kNever;
      ready = forward_[own];
    }
    Action need;
    if (!NeedOf(pass, schedule_.stages, &need)) return ready;
    const int64_t made =
        (pass.kind == ActionKind::kForward ? forward_ : input_gradient_)[Index(need.stage, need.micro_batch)];
    if (made == kNever) return kNever;
    const bool travels = schedule_.RankOf(need) != schedule_.RankOf(pass) && !costs_.sends_wait;
    return std::max(ready, made + (travels ? costs_.message : 0));
  }
  bool TryPass(size_t rank, const Action& pass) {
    const int64_t ready = ReadyAt(pass);
    if (ready == kNever) return false;
    const PassCosts& costs = costs_.by_stage.empty() ? costs_.pass : costs_.by_stage[static_cast<size_t>(pass.stage)];
    const int64_t begin = std::max(ready, ranks_[rank].clock), length = costs.Of(pass.kind);
    timing_.busy[rank] += length;
    const size_t own = Index(pass.stage, pass.micro_batch);
    if (pass.kind == ActionKind::kForward) forward_[own] = begin + length;
    if (pass.kind == ActionKind::kBackward || pass.kind == ActionKind::kInputGradient) {
      input_gradient_[own] = begin + length;
    }
    Finish(rank, begin, begin + length);
    return true;
  }

  size_t TurnEnd(size_t rank) const {
    const auto& actions = schedule_.by_rank[rank];
    size_t end = ranks_[rank].at;
    while (end < actions.size() && IsMessage(actions[end].kind)) ++end;
    return end;
  }
  bool TryTurn(size_t rank) {
    Rank& own = ranks_[rank];
    const auto& actions = schedule_.by_rank[rank];
    const size_t end = TurnEnd(rank);
    if (!own.posted) {
      for (size_t i = own.at; i < end; ++i) Posted(actions[i]) = own.clock;
      own.posted = true;
    }
    int64_t done = own.clock;
    for (size_t i = own.at; i < end; ++i) {
      const int64_t other = Posted(OtherEnd(actions[i]));
      if (other == kNever) return false;
      done = std::max(done, std::max(own.clock, other) + costs_.message);
    }
    const int64_t begin = own.clock;
    while (own.at < end) Finish(rank, begin, done);
    own.posted = false;
    return true;
  }

  // The action at which a rank stands still: in a turn, a message whose other end does not come.
  Action StuckAt(size_t rank) {
    const auto& actions = schedule_.by_rank[rank];
    for (size_t i = ranks_[rank].at; ranks_[rank].posted && i < TurnEnd(rank); ++i) {
      if (Posted(OtherEnd(actions[i])) == kNever) return actions[i];
    }
    return actions[ranks_[rank].at];
  }
  std::string WaitText(const Action& action, size_t* peer) {
    *peer = static_cast<size_t>(schedule_.RankOf(action));
    if (IsMessage(action.kind)) {
      *peer = static_cast<size_t>(schedule_.PeerOf(action));
      return "for " + ToString(OtherEnd(action)) + " of rank " + std::to_string(*peer);
    }
    Action need;
    const size_t own = Index(action.stage, action.micro_batch);
    if (action.kind == ActionKind::kWeightGradient ||
        (action.kind != ActionKind::kForward && forward_[own] == kNever) || !NeedOf(action, schedule_.stages, &need)) {
      return "for its own earlier pass, which comes later or never";
    }
    *peer = static_cast<size_t>(schedule_.RankOf(need));
    return std::string("for the ") + (need.kind == ActionKind::kForward ? "forward" : "backward") + " pass of stage " +
           std::to_string(need.stage) + " on rank " + std::to_string(*peer);
  }
  absl::Status Stuck(size_t rank) {
    std::string text;
    for (size_t hops = 0; hops <= ranks_.size(); ++hops) {
      const Action action = StuckAt(rank);
      size_t peer = rank;
      text += (text.empty() ? "" : "; ") + ("rank " + std::to_string(rank) + " stands still at " + ToString(action)) +
              " (action " + std::to_string(ranks_[rank].at) + "), waiting " + WaitText(action, &peer);
      if (peer == rank || hops == 3) break;
      rank = peer;
      if (ranks_[rank].at == schedule_.by_rank[rank].size()) {
        text += "; rank " + std::to_string(rank) + " has ended";
        break;
      }
    }
    return absl::InvalidArgumentError(text);
  }

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<int64_t> forward_, input_gradient_;  // when they end, by stage and micro-batch
  std::vector<int64_t> posted_;                    // when a message's end was posted, by kind, stage and micro-batch
  std::vector<Rank> ranks_;
  Timing timing_;
};

}  // namespace

int64_t PassCosts::Of(ActionKind kind) const {
  switch (kind) {
    case ActionKind::kForward:
      return forward;
    case ActionKind::kBackward:
      return backward;
    case ActionKind::kInputGradient:
      return input_gradient;
    case ActionKind::kWeightGradient:
      return weight_gradient;
    default:
      return 0;
  }
}

Share Timing::idle() const {
  const int64_t whole = total * static_cast<int64_t>(busy.size());
  int64_t used = 0;
  for (const int64_t each : busy) used += each;
  return {whole - used, whole};
}

absl::StatusOr<Timing> SimulateSchedule(const Schedule& schedule, const Costs& costs) {
  if (!costs.by_stage.empty() && costs.by_stage.size() != static_cast<size_t>(schedule.stages)) {
    return absl::InvalidArgumentError("costs are given for " + std::to_string(costs.by_stage.size()) +
                                      " stages; the schedule has " + std::to_string(schedule.stages));
  }
  return Simulation(schedule, costs).Run();
}

}  // namespace cohort::trainer
