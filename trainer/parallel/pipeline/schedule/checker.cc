#include "cohort/trainer/parallel/pipeline/schedule/checker.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/trainer/parallel/pipeline/schedule/simulator.h"

namespace cohort::trainer {
namespace {

using Kind = ActionKind;

constexpr int32_t kAbsent = -1;
constexpr int kPlacedKinds = 8;  // those with a micro-batch

class Checker {
 public:
  explicit Checker(const Schedule& schedule) : schedule_(schedule) {}

  absl::StatusOr<ScheduleReport> Run() {
    COHORT_RETURN_IF_ERROR(CheckSizes());
    for (int rank = 0; rank < schedule_.ranks; ++rank) COHORT_RETURN_IF_ERROR(Place(rank));
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (int k = 0; k < schedule_.micro_batches; ++k) {
        COHORT_RETURN_IF_ERROR(CheckPresent(stage, k));
        COHORT_RETURN_IF_ERROR(CheckOrder(stage, k));
      }
    }
    for (int rank = 0; rank < schedule_.ranks; ++rank) COHORT_RETURN_IF_ERROR(CheckShards(rank));
    COHORT_RETURN_IF_ERROR(CheckMessageOrder());
    COHORT_RETURN_IF_ERROR(CheckFirstOutputs());
    const Costs waiting{.pass = {}, .by_stage = {}, .message = 0, .sends_wait = true};
    COHORT_RETURN_IF_ERROR(SimulateSchedule(schedule_, waiting).status());
    for (int rank = 0; rank < schedule_.ranks; ++rank) Count(rank);
    return report_;
  }

 private:
  absl::Status Refuse(int rank, const Action& action, const std::string& why) const {
    const auto& actions = schedule_.by_rank[static_cast<size_t>(rank)];
    const auto found = std::find(actions.begin(), actions.end(), action);
    return absl::InvalidArgumentError(
        "rank " + std::to_string(rank) + ", " +
        (found == actions.end() ? "" : "action " + std::to_string(found - actions.begin()) + ", ") + ToString(action) +
        ": " + why);
  }

  absl::Status CheckSizes() const {
    if (schedule_.ranks < 1 || schedule_.ranks > kMostPipelineRanks || schedule_.stages < 1 ||
        schedule_.stages > kMostStages || schedule_.micro_batches < 1 || schedule_.micro_batches > kMostMicroBatches ||
        int64_t{schedule_.stages} * schedule_.micro_batches > kMostPasses ||
        schedule_.by_rank.size() != static_cast<size_t>(schedule_.ranks) ||
        schedule_.rank_of_stage.size() != static_cast<size_t>(schedule_.stages)) {
      return absl::InvalidArgumentError(
          "a schedule of " + std::to_string(schedule_.ranks) + " ranks, " + std::to_string(schedule_.stages) +
          " stages and " + std::to_string(schedule_.micro_batches) + " micro-batches, with " +
          std::to_string(schedule_.by_rank.size()) + " lists of actions and places of " +
          std::to_string(schedule_.rank_of_stage.size()) + " stages: the sizes do not fit");
    }
    for (size_t stage = 0; stage < schedule_.rank_of_stage.size(); ++stage) {
      const int rank = schedule_.rank_of_stage[stage];
      if (rank < 0 || rank >= schedule_.ranks) {
        return absl::InvalidArgumentError("stage " + std::to_string(stage) + " is on rank " + std::to_string(rank) +
                                          ", which does not exist");
      }
    }
    return absl::OkStatus();
  }

  int32_t& PlaceOf(Kind kind, int stage, int micro_batch) {
    return places_[(static_cast<size_t>(kind) * static_cast<size_t>(schedule_.stages) + static_cast<size_t>(stage)) *
                       static_cast<size_t>(schedule_.micro_batches) +
                   static_cast<size_t>(micro_batch)];
  }

  // Notes where a rank's actions are; refuses those that can't be there at all.
  absl::Status Place(int rank) {
    if (places_.empty()) {
      places_.assign(static_cast<size_t>(kPlacedKinds) * static_cast<size_t>(schedule_.stages) *
                         static_cast<size_t>(schedule_.micro_batches),
                     kAbsent);
    }
    const auto& actions = schedule_.by_rank[static_cast<size_t>(rank)];
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      if (action.stage < 0 || action.stage >= schedule_.stages) {
        return Refuse(rank, action, "there are stages 0 to " + std::to_string(schedule_.stages - 1));
      }
      if (schedule_.RankOf(action) != rank) {
        return Refuse(
            rank, action,
            "stage " + std::to_string(action.stage) + " is on rank " + std::to_string(schedule_.RankOf(action)));
      }
      if (action.micro_batch < 0 || action.micro_batch >= schedule_.micro_batches) {
        return Refuse(rank, action, "there are micro-batches 0 to " + std::to_string(schedule_.micro_batches - 1));
      }
      if (!HasMicroBatch(action.kind)) continue;
      if (IsMessage(action.kind)) COHORT_RETURN_IF_ERROR(CheckBorder(rank, action));
      int32_t& place = PlaceOf(action.kind, action.stage, action.micro_batch);
      if (place != kAbsent) return Refuse(rank, action, "comes again as action " + std::to_string(i));
      place = static_cast<int32_t>(i);
    }
    return absl::OkStatus();
  }

  absl::Status CheckBorder(int rank, const Action& message) const {
    const int other = OtherEnd(message).stage;
    if (other < 0 || other >= schedule_.stages) {
      return Refuse(rank, message, "there is no stage " + std::to_string(other));
    }
    if (schedule_.PeerOf(message) == rank) {
      return Refuse(rank, message, "stage " + std::to_string(other) + " is on the same rank");
    }
    return absl::OkStatus();
  }

  absl::Status CheckPresent(int stage, int k) {
    const int rank = schedule_.rank_of_stage[static_cast<size_t>(stage)];
    const auto has = [&](Kind kind) { return PlaceOf(kind, stage, k) != kAbsent; };
    const auto missing = [&](Kind kind) { return Refuse(rank, {kind, stage, k}, "is missing"); };
    if (!has(Kind::kForward)) return missing(Kind::kForward);
    const bool parts = has(Kind::kInputGradient) || has(Kind::kWeightGradient);
    if (has(Kind::kBackward) && parts) {
      return Refuse(rank, {Kind::kBackward, stage, k}, "a part of the same backward pass, I or W, is there too");
    }
    if (!has(Kind::kBackward) && !parts) return missing(Kind::kBackward);
    if (parts && !has(Kind::kInputGradient)) return missing(Kind::kInputGradient);
    if (parts && !has(Kind::kWeightGradient)) return missing(Kind::kWeightGradient);
    const bool border_before = stage > 0 && schedule_.rank_of_stage[static_cast<size_t>(stage) - 1] != rank;
    const bool border_after =
        stage + 1 < schedule_.stages && schedule_.rank_of_stage[static_cast<size_t>(stage) + 1] != rank;
    for (const Kind kind : {Kind::kRecvForward, Kind::kSendBackward}) {
      if (border_before && !has(kind)) return missing(kind);
    }
    for (const Kind kind : {Kind::kSendForward, Kind::kRecvBackward}) {
      if (border_after && !has(kind)) return missing(kind);
    }
    return absl::OkStatus();
  }

  // The order within the rank, of what is there.
  absl::Status CheckOrder(int stage, int k) {
    const int rank = schedule_.rank_of_stage[static_cast<size_t>(stage)];
    const Kind back = PlaceOf(Kind::kBackward, stage, k) != kAbsent ? Kind::kBackward : Kind::kInputGradient;
    const std::array<std::pair<Kind, Kind>, 6> orders = {{{Kind::kForward, back},
                                                          {Kind::kInputGradient, Kind::kWeightGradient},
                                                          {Kind::kRecvForward, Kind::kForward},
                                                          {Kind::kForward, Kind::kSendForward},
                                                          {Kind::kRecvBackward, back},
                                                          {back, Kind::kSendBackward}}};
    for (const auto& [first, second] : orders) {
      const int32_t before = PlaceOf(first, stage, k), after = PlaceOf(second, stage, k);
      if (before == kAbsent || after == kAbsent || before < after) continue;
      return Refuse(rank, {second, stage, k}, "comes before " + ToString({first, stage, k}) + ", which it needs");
    }
    if (stage == 0 || schedule_.rank_of_stage[static_cast<size_t>(stage) - 1] != rank) return absl::OkStatus();
    // The neighbours lie on one rank: its order stands for the messages.
    if (PlaceOf(Kind::kForward, stage - 1, k) > PlaceOf(Kind::kForward, stage, k)) {
      return Refuse(rank, {Kind::kForward, stage, k},
                    "comes before " + ToString({Kind::kForward, stage - 1, k}) + ", which it needs");
    }
    const Kind other = PlaceOf(Kind::kBackward, stage - 1, k) != kAbsent ? Kind::kBackward : Kind::kInputGradient;
    if (PlaceOf(back, stage, k) > PlaceOf(other, stage - 1, k)) {
      return Refuse(rank, {other, stage - 1, k}, "comes before " + ToString({back, stage, k}) + ", which it needs");
    }
    return absl::OkStatus();
  }

  absl::Status CheckShards(int rank) const {
    struct Stage {
      bool gathered = false, reduced = false;
    };
    std::vector<Stage> stages(static_cast<size_t>(schedule_.stages));
    for (const Action& action : schedule_.by_rank[static_cast<size_t>(rank)]) {
      Stage& stage = stages[static_cast<size_t>(action.stage)];
      const bool gathers = action.kind == Kind::kUnshard;
      if (gathers || action.kind == Kind::kReshard) {
        if (stage.gathered == gathers) {
          return Refuse(rank, action,
                        gathers ? "its parameters are gathered already" : "its parameters are not gathered");
        }
        stage.gathered = gathers;
      } else if (action.kind == Kind::kReduce) {
        if (stage.reduced) return Refuse(rank, action, "its gradients were reduced already");
        stage.reduced = true;
      } else if (IsCompute(action.kind)) {
        if (!stage.gathered) return Refuse(rank, action, "its stage's parameters are not gathered");
        if (stage.reduced) return Refuse(rank, action, "comes after its stage's gradients were reduced");
      }
    }
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      if (schedule_.rank_of_stage[static_cast<size_t>(stage)] != rank) continue;
      if (!stages[static_cast<size_t>(stage)].reduced) return Refuse(rank, {Kind::kReduce, stage, 0}, "is missing");
      if (stages[static_cast<size_t>(stage)].gathered) {
        return Refuse(rank, {Kind::kReshard, stage, 0}, "is missing at the end");
      }
    }
    return absl::OkStatus();
  }

  // Each message has the same number among those of its pair, on both sides.
  absl::Status CheckMessageOrder() const {
    const auto passes = static_cast<size_t>(schedule_.stages) * static_cast<size_t>(schedule_.micro_batches);
    std::vector<int> number(2 * passes);  // by the sender's side
    std::vector<int> next(static_cast<size_t>(schedule_.ranks));
    const auto index = [&](const Action& send) {
      return (send.kind == Kind::kSendForward ? 0 : passes) +
             static_cast<size_t>(send.stage) * static_cast<size_t>(schedule_.micro_batches) +
             static_cast<size_t>(send.micro_batch);
    };
    for (const bool sends : {true, false}) {
      for (int rank = 0; rank < schedule_.ranks; ++rank) {
        std::fill(next.begin(), next.end(), 0);
        for (const Action& action : schedule_.by_rank[static_cast<size_t>(rank)]) {
          if (!IsMessage(action.kind) || IsSend(action.kind) != sends) continue;
          const int peer = schedule_.PeerOf(action);
          const int at = next[static_cast<size_t>(peer)]++;
          if (sends) {
            number[index(action)] = at;
          } else if (number[index(OtherEnd(action))] != at) {
            return Refuse(rank, action,
                          "is received as message " + std::to_string(at) + " of rank " + std::to_string(peer) +
                              ", which sends it as its message " + std::to_string(number[index(OtherEnd(action))]));
          }
        }
      }
    }
    return absl::OkStatus();
  }

  // A message from one rank to another: an output or a gradient, or before a stage's first output its sizes.
  struct Piece {
    Action receive;
    bool sizes = false;
    bool operator==(const Piece&) const = default;
  };
  using Pieces = std::map<std::pair<int, int>, std::vector<Piece>>;  // by sender and receiver

  // Adds a turn of `rank` as the pipeline runs it (stage_messages.h). A rank sends the sizes of all first outputs, then
  // the messages. It receives what it knows the sizes of, then other sizes, then their outputs.
  void AddTurn(int rank, const std::vector<Action>& turn, std::vector<bool>& told, std::vector<bool>& known,
               Pieces& sent, Pieces& received) const {
    std::vector<Action> unknown;
    for (const Action& send : turn) {
      if (send.kind != Kind::kSendForward || told[static_cast<size_t>(send.stage)]) continue;
      sent[{rank, schedule_.PeerOf(send)}].push_back({OtherEnd(send), true});
    }
    for (const Action& message : turn) {
      const int peer = schedule_.PeerOf(message);
      if (IsSend(message.kind)) {
        sent[{rank, peer}].push_back({OtherEnd(message)});
        if (message.kind == Kind::kSendForward) told[static_cast<size_t>(message.stage)] = true;
      } else if (message.kind == Kind::kRecvForward && !known[static_cast<size_t>(message.stage)]) {
        unknown.push_back(message);
      } else {
        received[{peer, rank}].push_back({message});
      }
    }
    for (const Action& receive : unknown) {
      if (known[static_cast<size_t>(receive.stage)]) continue;
      known[static_cast<size_t>(receive.stage)] = true;
      received[{schedule_.PeerOf(receive), rank}].push_back({receive, true});
    }
    for (const Action& receive : unknown) received[{schedule_.PeerOf(receive), rank}].push_back({receive});
  }

  // Sizes and messages of a pair come in the order in which they are received.
  absl::Status CheckFirstOutputs() const {
    Pieces sent, received;
    const auto stages = static_cast<size_t>(schedule_.stages);
    std::vector<bool> told(stages), known(stages);
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      std::vector<Action> turn;
      for (const Action& action : schedule_.by_rank[static_cast<size_t>(rank)]) {
        if (IsMessage(action.kind)) {
          turn.push_back(action);
        } else if (!turn.empty()) {
          AddTurn(rank, std::exchange(turn, {}), told, known, sent, received);
        }
      }
      AddTurn(rank, turn, told, known, sent, received);
    }
    for (const auto& [pair, pieces] : received) {
      const std::vector<Piece>& theirs = sent[pair];
      for (size_t i = 0; i < pieces.size() && i < theirs.size(); ++i) {
        if (pieces[i] == theirs[i]) continue;
        return Refuse(
            pair.second, pieces[i].receive,
            "is received with " + ToString(theirs[i].receive) +
                " in one turn or sent so, where a stage's "
                "first output, whose sizes go ahead, would change places; put an action between the messages");
      }
    }
    return absl::OkStatus();
  }

  void Count(int rank) {
    const auto& actions = schedule_.by_rank[static_cast<size_t>(rank)];
    int kept = 0, most = 0;
    int64_t turns = 0;
    bool in_turn = false;
    for (const Action& action : actions) {
      if (IsCompute(action.kind)) ++report_.passes;
      if (IsSend(action.kind)) ++report_.messages;
      if (action.kind == Kind::kForward) most = std::max(most, ++kept);
      if (action.kind == Kind::kBackward || action.kind == Kind::kWeightGradient) --kept;
      if (IsMessage(action.kind) && !in_turn) ++turns;
      in_turn = IsMessage(action.kind);
    }
    report_.peak_activations.push_back(most);
    report_.turns = std::max(report_.turns, turns);
  }

  const Schedule& schedule_;
  std::vector<int32_t> places_;  // in the rank's list, by kind, stage and micro-batch
  ScheduleReport report_;
};

}  // namespace

absl::StatusOr<ScheduleReport> CheckSchedule(const Schedule& schedule) { return Checker(schedule).Run(); }

}  // namespace cohort::trainer
