#include "cohort/comm/plan/checker.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/comm/plan/expected_output.h"
#include "cohort/comm/plan/expression.h"
#include "cohort/comm/plan/plan_shape.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {
namespace {

using Id = ExpressionTable::Id;

// A send or publish under way. Publishes have one receiver for each other rank.
struct Message {
  bool published = false;
  int32_t first_piece = 0;
  int64_t length_name = 0;  // unequal blocks
  std::vector<Id> values;
  int64_t depth = 0;          // messages in the longest chain that ends with this one
  std::vector<bool> entered;  // barriers: the ranks known to have entered
  int receivers_left = 1;
};

struct LaneState {
  size_t next = 0;
  std::vector<std::shared_ptr<Message>> posted;
  std::vector<Slice> posted_from;  // canonical
  int32_t fenced = 0;
  int64_t depth = 0;
  std::vector<bool> entered;
  std::vector<int64_t> arrivals;  // the depth at each kOpen and kMeet that it has come to
  size_t passed = 0;              // of them: the epoch
};

// The lanes that have touched a chunk in an epoch.
struct Touch {
  static constexpr int kNobody = -1;
  static constexpr int kSeveral = -2;
  size_t epoch = 0;
  int reader = kNobody;
  int writer = kNobody;
};

struct RankState {
  std::array<std::vector<Id>, 3> memory;      // by BufferId, canonical
  std::array<std::vector<Touch>, 3> touched;  // likewise
  std::vector<LaneState> lanes;
  int64_t sent_messages = 0, received_messages = 0;
  int64_t sent_chunks = 0, received_chunks = 0;
};

class Simulation {
 public:
  explicit Simulation(std::span<const Plan> plans) : plans_(plans), expressions_(static_cast<int>(plans.size())) {}

  absl::StatusOr<PlanReport> Run();

 private:
  using Channel = std::tuple<int, int, size_t>;  // sender, receiver, lane

  void Initialise();
  // True when the step is finished, false when it has to wait.
  absl::StatusOr<bool> TryStep(int rank, size_t lane);
  void Post(int rank, size_t lane, const Step& step);
  absl::StatusOr<bool> TryReceive(int rank, size_t lane, const Step& step);
  absl::Status Store(int rank, size_t lane, const Step& step, const std::vector<Id>& left,
                     const std::vector<Id>* right);
  absl::StatusOr<std::vector<Id>> Load(int rank, size_t lane, const Slice& slice);
  absl::StatusOr<Id> Combined(int rank, size_t lane, Id left, Id right) const;
  absl::StatusOr<std::vector<Id>> LoadFrom(int rank, size_t lane, const RankSlice& from);
  absl::Status CheckFences(int rank, size_t lane, const Step& step);
  bool TryMeet(int rank, size_t lane);
  absl::Status RunFold(int rank, size_t lane, const Step& step);
  // Notes that `rank` touches a chunk of canonical memory; refuses what another rank's touch of this epoch forbids.
  absl::Status NoteTouch(int rank, size_t lane, int owner, const Slice& where, bool write);
  absl::Status Stuck() const;
  absl::Status CheckLeftovers() const;
  absl::Status CheckOutputs() const;
  absl::Status CheckBarrier() const;
  PlanReport Report() const;

  bool InRankOrder(const Plan& plan) const;
  absl::Status Refuse(int rank, size_t lane, const std::string& why) const {
    return RefuseStep(plans_[static_cast<size_t>(rank)], lane, ranks_[static_cast<size_t>(rank)].lanes[lane].next, why);
  }

  std::span<const Plan> plans_;
  mutable ExpressionTable expressions_;
  std::vector<RankState> ranks_;
  std::map<Channel, std::deque<std::shared_ptr<Message>>> channels_;
};

void Simulation::Initialise() {
  for (const Plan& plan : plans_) {
    const PlanRequest request = RequestOf(plan);
    RankState state;
    const int32_t in = ChunksOf(BufferId::kIn, request);
    const int32_t out = ChunksOf(BufferId::kOut, request);
    state.memory[0].assign(static_cast<size_t>(in), ExpressionTable::kUnwritten);
    state.memory[1].assign(static_cast<size_t>(out), ExpressionTable::kUnwritten);
    state.memory[2].assign(static_cast<size_t>(plan.scratch_chunks), ExpressionTable::kUnwritten);
    for (size_t b = 0; b < state.memory.size(); ++b) state.touched[b].resize(state.memory[b].size());
    for (int32_t chunk = 0; chunk < in; ++chunk) {
      const Slice where = Canonical({BufferId::kIn, chunk, 1}, request);
      state.memory[static_cast<size_t>(where.buffer)][static_cast<size_t>(where.first)] =
          expressions_.Leaf(plan.rank, chunk, chunk);
    }
    LaneState lane;
    if (plan.kind == CollectiveKind::kBarrier) {
      lane.entered.assign(plans_.size(), false);
      lane.entered[static_cast<size_t>(plan.rank)] = true;
    }
    state.lanes.assign(plan.lanes.size(), lane);
    ranks_.push_back(std::move(state));
  }
}

absl::Status Simulation::NoteTouch(int rank, size_t lane, int owner, const Slice& where, bool write) {
  const size_t epoch = ranks_[static_cast<size_t>(rank)].lanes[lane].passed;
  std::vector<Touch>& touched = ranks_[static_cast<size_t>(owner)].touched[static_cast<size_t>(where.buffer)];
  for (int32_t i = where.first; i < where.first + where.chunks; ++i) {
    Touch& touch = touched[static_cast<size_t>(i)];
    if (touch.epoch != epoch) touch = {.epoch = epoch};
    const bool others_write = touch.writer != Touch::kNobody && touch.writer != rank;
    const bool others_read = touch.reader != Touch::kNobody && touch.reader != rank;
    if (others_write || (write && others_read)) {
      return Refuse(rank, lane,
                    std::string(write ? "writes " : "reads ") + ToString(RankSlice{owner, {where.buffer, i, 1}}) +
                        ", which another rank " + (others_write ? "writes" : "reads") + " before they meet");
    }
    if (write) {
      touch.writer = rank;
    } else {
      touch.reader = others_read ? Touch::kSeveral : rank;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Id>> Simulation::LoadFrom(int rank, size_t lane, const RankSlice& from) {
  const auto owner = static_cast<size_t>(from.rank);
  const Slice where = Canonical(from.slice, RequestOf(plans_[owner]));
  COHORT_RETURN_IF_ERROR(NoteTouch(rank, lane, from.rank, where, false));
  const std::vector<Id>& memory = ranks_[owner].memory[static_cast<size_t>(where.buffer)];
  std::vector<Id> values(memory.begin() + where.first, memory.begin() + where.first + where.chunks);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0) {
      const Slice chunk{from.slice.buffer, from.slice.first + static_cast<int32_t>(i), 1};
      return Refuse(rank, lane,
                    "reads " + (from.rank == rank ? ToString(chunk) : ToString(RankSlice{from.rank, chunk})) +
                        ", which nothing has written");
    }
  }
  return values;
}

absl::StatusOr<std::vector<Id>> Simulation::Load(int rank, size_t lane, const Slice& slice) {
  return LoadFrom(rank, lane, {rank, slice});
}

bool Simulation::TryMeet(int rank, size_t lane) {
  RankState& own = ranks_[static_cast<size_t>(rank)];
  LaneState& state = own.lanes[lane];
  const size_t number = state.passed;
  if (state.arrivals.size() == number) state.arrivals.push_back(state.depth);
  int64_t depth = 0;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const LaneState& other = ranks_[r].lanes[lane];
    if (other.arrivals.size() <= number) return false;
    depth = std::max(depth, other.arrivals[number] + 1);
  }
  ++state.passed;
  ++own.sent_messages;
  own.received_messages += static_cast<int64_t>(plans_.size()) - 1;
  state.depth = std::max(state.depth, depth);
  std::fill(state.entered.begin(), state.entered.end(), true);
  return true;
}

absl::Status Simulation::RunFold(int rank, size_t lane, const Step& step) {
  const Plan& plan = plans_[static_cast<size_t>(rank)];
  RankState& own = ranks_[static_cast<size_t>(rank)];
  std::vector<Id> values;
  for (const RankSlice& source : SourcesOf(plan, step)) {
    COHORT_ASSIGN_OR_RETURN(std::vector<Id> more, LoadFrom(rank, lane, source));
    if (source.rank != rank) own.received_chunks += source.slice.chunks;
    if (values.empty()) {
      values = std::move(more);
      continue;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      COHORT_ASSIGN_OR_RETURN(values[i], Combined(rank, lane, values[i], more[i]));
    }
  }
  for (const RankSlice& target : TargetsOf(plan, step)) {
    const auto owner = static_cast<size_t>(target.rank);
    const Slice to = Canonical(target.slice, RequestOf(plans_[owner]));
    COHORT_RETURN_IF_ERROR(NoteTouch(rank, lane, target.rank, to, true));
    std::copy(values.begin(), values.end(), ranks_[owner].memory[static_cast<size_t>(to.buffer)].begin() + to.first);
    if (target.rank != rank) own.sent_chunks += to.chunks;
  }
  return absl::OkStatus();
}

absl::StatusOr<Id> Simulation::Combined(int rank, size_t lane, Id left, Id right) const {
  const Id value = expressions_.Combine(left, right);
  if (value >= 0) return value;
  return Refuse(rank, lane,
                "combines " + expressions_.ToString(left) + " with " + expressions_.ToString(right) +
                    (value == ExpressionTable::kOverlapping ? ", which counts a contribution twice"
                                                            : ", which are different elements"));
}

absl::Status Simulation::CheckFences(int rank, size_t lane, const Step& step) {
  LaneState& state = ranks_[static_cast<size_t>(rank)].lanes[lane];
  if (step.sends_before < 0 || static_cast<size_t>(step.sends_before) > state.posted.size()) {
    return Refuse(rank, lane,
                  "waits for " + std::to_string(step.sends_before) + " sends, but posted only " +
                      std::to_string(state.posted.size()));
  }
  state.fenced = std::max(state.fenced, step.sends_before);
  const Slice dst = Canonical(step.dst, RequestOf(plans_[static_cast<size_t>(rank)]));
  for (size_t i = static_cast<size_t>(state.fenced); i < state.posted.size(); ++i) {
    if (Overlap(state.posted_from[i], dst)) {
      return Refuse(rank, lane,
                    "overwrites what send number " + std::to_string(i) +
                        " of the lane may still be reading; it needs sends_before >= " + std::to_string(i + 1));
    }
  }
  return absl::OkStatus();
}

void Simulation::Post(int rank, size_t lane, const Step& step) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  LaneState& lane_state = state.lanes[lane];
  std::shared_ptr<Message>& message = lane_state.posted.back();
  message->published = step.kind == StepKind::kPublish;
  message->first_piece = step.src.first % plans_[static_cast<size_t>(rank)].pieces;
  if (HasUnequalBlocks(plans_[static_cast<size_t>(rank)].kind)) {
    message->length_name = LengthName(plans_[static_cast<size_t>(rank)], step.src);
  }
  message->depth = lane_state.depth + 1;
  message->entered = lane_state.entered;
  ++state.sent_messages;
  state.sent_chunks += step.src.chunks;
  if (!message->published) {
    channels_[{rank, step.peer, lane}].push_back(message);
    return;
  }
  message->receivers_left = static_cast<int>(plans_.size()) - 1;
  for (int peer = 0; peer < static_cast<int>(plans_.size()); ++peer) {
    if (peer != rank) channels_[{rank, peer, lane}].push_back(message);
  }
}

absl::Status Simulation::Store(int rank, size_t lane, const Step& step, const std::vector<Id>& left,
                               const std::vector<Id>* right) {
  const Slice to = Canonical(step.dst, RequestOf(plans_[static_cast<size_t>(rank)]));
  COHORT_RETURN_IF_ERROR(NoteTouch(rank, lane, rank, to, true));
  std::vector<Id>& memory = ranks_[static_cast<size_t>(rank)].memory[static_cast<size_t>(to.buffer)];
  for (size_t i = 0; i < left.size(); ++i) {
    Id value = left[i];
    if (right != nullptr) {
      COHORT_ASSIGN_OR_RETURN(value, Combined(rank, lane, left[i], (*right)[i]));
    }
    memory[static_cast<size_t>(to.first) + i] = value;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Simulation::TryReceive(int rank, size_t lane, const Step& step) {
  std::deque<std::shared_ptr<Message>>& channel = channels_[{step.peer, rank, lane}];
  if (channel.empty()) return false;
  const std::shared_ptr<Message> message = channel.front();
  if (message->published != step.published) {
    return Refuse(rank, lane,
                  std::string("expects a ") + (step.published ? "publish" : "send") + " of rank " +
                      std::to_string(step.peer) + ", whose next message is a " +
                      (message->published ? "publish" : "send"));
  }
  const int32_t pieces = plans_[static_cast<size_t>(rank)].pieces;
  if (static_cast<int32_t>(message->values.size()) != step.dst.chunks ||
      (step.dst.chunks > 0 && message->first_piece != step.dst.first % pieces)) {
    return Refuse(rank, lane,
                  "expects " + std::to_string(step.dst.chunks) + " chunks from piece " +
                      std::to_string(step.dst.first % pieces) + " on, but the message has " +
                      std::to_string(message->values.size()) + " from piece " + std::to_string(message->first_piece) +
                      " on");
  }
  const Plan& plan = plans_[static_cast<size_t>(rank)];
  if (HasUnequalBlocks(plan.kind) && step.dst.chunks > 0 && message->length_name != LengthName(plan, step.dst)) {
    return Refuse(rank, lane, "expects a block of another length than that which comes");
  }
  if (step.kind == StepKind::kRecv) {
    COHORT_RETURN_IF_ERROR(Store(rank, lane, step, message->values, nullptr));
  } else {
    COHORT_ASSIGN_OR_RETURN(const std::vector<Id> own, Load(rank, lane, step.src));
    COHORT_RETURN_IF_ERROR(step.incoming_first ? Store(rank, lane, step, message->values, &own)
                                               : Store(rank, lane, step, own, &message->values));
  }
  channel.pop_front();
  --message->receivers_left;
  RankState& state = ranks_[static_cast<size_t>(rank)];
  ++state.received_messages;
  state.received_chunks += step.dst.chunks;
  LaneState& lane_state = state.lanes[lane];
  lane_state.depth = std::max(lane_state.depth, message->depth);
  for (size_t r = 0; r < lane_state.entered.size(); ++r) {
    if (message->entered[r]) lane_state.entered[r] = true;
  }
  return true;
}

absl::StatusOr<bool> Simulation::TryStep(int rank, size_t lane) {
  LaneState& state = ranks_[static_cast<size_t>(rank)].lanes[lane];
  const Step& step = plans_[static_cast<size_t>(rank)].lanes[lane].steps[state.next];
  if (step.kind == StepKind::kSend || step.kind == StepKind::kPublish) {
    COHORT_RETURN_IF_ERROR(CheckFences(rank, lane, {.sends_before = step.sends_before}));
  } else {
    COHORT_RETURN_IF_ERROR(CheckFences(rank, lane, step));
  }
  for (int32_t i = 0; i < step.sends_before; ++i) {
    if (state.posted[static_cast<size_t>(i)]->receivers_left > 0) return false;
  }
  switch (step.kind) {
    case StepKind::kSend:
    case StepKind::kPublish: {
      COHORT_ASSIGN_OR_RETURN(std::vector<Id> values, Load(rank, lane, step.src));
      state.posted.push_back(std::make_shared<Message>());
      state.posted.back()->values = std::move(values);
      state.posted_from.push_back(Canonical(step.src, RequestOf(plans_[static_cast<size_t>(rank)])));
      Post(rank, lane, step);
      return true;
    }
    case StepKind::kRecv:
    case StepKind::kRecvReduce:
      return TryReceive(rank, lane, step);
    case StepKind::kReduce: {
      COHORT_ASSIGN_OR_RETURN(const std::vector<Id> left, Load(rank, lane, step.src));
      COHORT_ASSIGN_OR_RETURN(const std::vector<Id> right, Load(rank, lane, step.src2));
      COHORT_RETURN_IF_ERROR(Store(rank, lane, step, left, &right));
      return true;
    }
    case StepKind::kCopy: {
      COHORT_ASSIGN_OR_RETURN(const std::vector<Id> values, Load(rank, lane, step.src));
      COHORT_RETURN_IF_ERROR(Store(rank, lane, step, values, nullptr));
      return true;
    }
    case StepKind::kOpen:
    case StepKind::kMeet:
      return TryMeet(rank, lane);
    case StepKind::kFold: {
      for (const RankSlice& target : TargetsOf(plans_[static_cast<size_t>(rank)], step)) {
        if (target.rank != rank) continue;
        COHORT_RETURN_IF_ERROR(CheckFences(rank, lane, {.dst = target.slice, .sends_before = step.sends_before}));
      }
      COHORT_RETURN_IF_ERROR(RunFold(rank, lane, step));
      return true;
    }
  }
  return Refuse(rank, lane, "is of a kind that the checker does not know");
}

absl::Status Simulation::Stuck() const {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    for (size_t l = 0; l < ranks_[r].lanes.size(); ++l) {
      const LaneState& lane = ranks_[r].lanes[l];
      if (lane.next == plans_[r].lanes[l].steps.size()) continue;
      const Step& step = plans_[r].lanes[l].steps[lane.next];
      bool sends_done = true;
      for (int32_t i = 0; i < step.sends_before; ++i) {
        sends_done = sends_done && lane.posted[static_cast<size_t>(i)]->receivers_left == 0;
      }
      if (step.kind == StepKind::kOpen || step.kind == StepKind::kMeet) {
        return Refuse(static_cast<int>(r), l, "waits for ever for others to meet it");
      }
      return Refuse(
          static_cast<int>(r), l,
          sends_done ? "waits for ever for a message of rank " + std::to_string(step.peer)
                     : "waits for ever for its first " + std::to_string(step.sends_before) + " sends to be received");
    }
  }
  return absl::OkStatus();
}

absl::Status Simulation::CheckLeftovers() const {
  for (const auto& [channel, messages] : channels_) {
    if (messages.empty()) continue;
    const auto& [sender, receiver, lane] = channel;
    return absl::InvalidArgumentError("rank " + std::to_string(receiver) + ", lane " + std::to_string(lane) +
                                      " never receives " + std::to_string(messages.size()) + " messages of rank " +
                                      std::to_string(sender));
  }
  return absl::OkStatus();
}

absl::Status Simulation::CheckOutputs() const {
  for (const Plan& plan : plans_) {
    const PlanRequest request = RequestOf(plan);
    for (int32_t chunk = 0; chunk < ChunksOf(BufferId::kOut, request); ++chunk) {
      const Slice where = Canonical({BufferId::kOut, chunk, 1}, request);
      const Id found = ranks_[static_cast<size_t>(plan.rank)]
                           .memory[static_cast<size_t>(where.buffer)][static_cast<size_t>(where.first)];
      const Id expected = ExpectedOutput(plan, chunk, found, expressions_);
      if (found >= 0 && found == expected) continue;
      return absl::InvalidArgumentError(
          "rank " + std::to_string(plan.rank) + " ends with " + expressions_.ToString(found) + " in out[" +
          std::to_string(chunk) + "] instead of " +
          (expected >= 0 ? expressions_.ToString(expected) : "the reduction over all ranks"));
    }
  }
  return absl::OkStatus();
}

absl::Status Simulation::CheckBarrier() const {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (plans_[r].kind != CollectiveKind::kBarrier) return absl::OkStatus();
    for (size_t other = 0; other < ranks_.size(); ++other) {
      const bool known = other == r || std::any_of(ranks_[r].lanes.begin(), ranks_[r].lanes.end(),
                                                   [&](const LaneState& lane) { return lane.entered[other]; });
      if (!known) {
        return absl::InvalidArgumentError("rank " + std::to_string(r) + " leaves the barrier before rank " +
                                          std::to_string(other) + " is known to have entered it");
      }
    }
  }
  return absl::OkStatus();
}

bool Simulation::InRankOrder(const Plan& plan) const {
  if (!Reduces(plan.kind)) return true;
  const PlanRequest request = RequestOf(plan);
  for (int32_t chunk = 0; chunk < ChunksOf(BufferId::kOut, request); ++chunk) {
    const Slice where = Canonical({BufferId::kOut, chunk, 1}, request);
    const std::vector<Id>& memory = ranks_[static_cast<size_t>(plan.rank)].memory[static_cast<size_t>(where.buffer)];
    if (memory[static_cast<size_t>(where.first)] != RankOrderFold(plan, chunk, expressions_)) return false;
  }
  return true;
}

PlanReport Simulation::Report() const {
  PlanReport report;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const RankState& state = ranks_[r];
    for (const LaneState& lane : state.lanes) report.rounds = std::max(report.rounds, lane.depth);
    report.messages = std::max({report.messages, state.sent_messages, state.received_messages});
    report.chunks = std::max({report.chunks, state.sent_chunks, state.received_chunks});
    report.scratch_chunks = std::max<int64_t>(report.scratch_chunks, plans_[r].scratch_chunks);
    // Equal buffers: the canonical name of out is out, in place or not. What equals rank 0's is not looked at again.
    const bool all_reduce = plans_[r].kind == CollectiveKind::kAllReduce;
    const bool equal = all_reduce && state.memory[1] == ranks_[0].memory[1];
    report.same_association = report.same_association && (equal || !all_reduce);
    if (r == 0 || !equal) report.rank_order = report.rank_order && InRankOrder(plans_[r]);
  }
  return report;
}

absl::StatusOr<PlanReport> Simulation::Run() {
  Initialise();
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < static_cast<int>(plans_.size()); ++rank) {
      const Plan& plan = plans_[static_cast<size_t>(rank)];
      for (size_t lane = 0; lane < plan.lanes.size(); ++lane) {
        LaneState& state = ranks_[static_cast<size_t>(rank)].lanes[lane];
        while (state.next < plan.lanes[lane].steps.size()) {
          COHORT_ASSIGN_OR_RETURN(const bool done, TryStep(rank, lane));
          if (!done) break;
          ++state.next;
          moved = true;
        }
      }
    }
  }
  COHORT_RETURN_IF_ERROR(Stuck());
  COHORT_RETURN_IF_ERROR(CheckLeftovers());
  COHORT_RETURN_IF_ERROR(CheckOutputs());
  COHORT_RETURN_IF_ERROR(CheckBarrier());
  return Report();
}

}  // namespace

absl::StatusOr<PlanReport> CheckPlans(std::span<const Plan> plans) {
  COHORT_RETURN_IF_ERROR(CheckShape(plans));
  return Simulation(plans).Run();
}

}  // namespace cohort::comm
