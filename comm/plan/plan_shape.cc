#include "cohort/comm/plan/plan_shape.h"

#include <algorithm>
#include <array>
#include <vector>

#include "cohort/runtime/base/status_macros.h"

namespace cohort::comm {
namespace {

struct Operands {
  bool src = false, src2 = false, dst = false, peer = false;
};

Operands OperandsOf(StepKind kind) {
  switch (kind) {
    case StepKind::kSend:
      return {.src = true, .src2 = false, .dst = false, .peer = true};
    case StepKind::kRecv:
      return {.src = false, .src2 = false, .dst = true, .peer = true};
    case StepKind::kRecvReduce:
      return {.src = true, .src2 = false, .dst = true, .peer = true};
    case StepKind::kReduce:
      return {.src = true, .src2 = true, .dst = true, .peer = false};
    case StepKind::kCopy:
      return {.src = true, .src2 = false, .dst = true, .peer = false};
    case StepKind::kPublish:
      return {.src = true, .src2 = false, .dst = false, .peer = false};
    case StepKind::kOpen:
    case StepKind::kMeet:
    case StepKind::kFold:
      return {};
  }
  return {};
}

std::string WrongSlice(const Plan& plan, const Slice& slice) {
  const PlanRequest request = RequestOf(plan);
  const int64_t size = slice.buffer == BufferId::kScratch ? plan.scratch_chunks : ChunksOf(slice.buffer, request);
  if (slice.first < 0 || slice.chunks < 0 || int64_t{slice.first} + slice.chunks > size) {
    return "reaches outside " + std::string(Name(slice.buffer)) + ", which has " + std::to_string(size) + " chunks";
  }
  if (HasUnequalBlocks(plan.kind) && slice.first % plan.pieces + slice.chunks > plan.pieces) {
    return "spans blocks that need not lie together";
  }
  return "";
}

// dst = a, chunk by chunk.
std::string WrongPair(const Plan& plan, const Slice& dst, const Slice& src) {
  if (dst.chunks != src.chunks || (dst.chunks > 0 && (dst.first - src.first) % plan.pieces != 0)) {
    return "moves between chunks of different lengths";
  }
  if (HasUnequalBlocks(plan.kind) && dst.chunks > 0 && LengthName(plan, dst) != LengthName(plan, src)) {
    return "moves between blocks of different lengths";
  }
  const Slice to = Canonical(dst, RequestOf(plan));
  const Slice from = Canonical(src, RequestOf(plan));
  if (Overlap(to, from) && to.first != from.first) return "has operands that overlap in part";
  return "";
}

bool IsDirect(StepKind kind) { return kind == StepKind::kOpen || kind == StepKind::kMeet || kind == StepKind::kFold; }

// An operand of a kFold step of `plan`: "" or what is wrong with it.
std::string WrongOperand(std::span<const Plan> plans, const Plan& plan, const RankSlice& operand, bool target) {
  if (operand.rank < 0 || operand.rank >= plan.size) return "names a rank that is no member of the group";
  if (operand.rank != plan.rank && operand.slice.buffer == BufferId::kScratch) return "touches another rank's scratch";
  if (target && operand.slice.buffer == BufferId::kIn) return "writes a caller's input";
  return WrongSlice(plans[static_cast<size_t>(operand.rank)], operand.slice);
}

absl::Status CheckFold(std::span<const Plan> plans, const Plan& plan, size_t lane, size_t index) {
  const Step& step = plan.lanes[lane].steps[index];
  if (step.operands < 0 || step.sources < 1 || step.targets < 1 ||
      int64_t{step.operands} + step.sources + step.targets > static_cast<int64_t>(plan.operands.size())) {
    return absl::InvalidArgumentError("rank " + std::to_string(plan.rank) + ", step " + std::to_string(index) +
                                      " has operands that the plan does not have");
  }
  const std::span<const RankSlice> sources = SourcesOf(plan, step);
  const std::span<const RankSlice> targets = TargetsOf(plan, step);
  const Slice& first = sources[0].slice;
  const auto canonical = [&](const RankSlice& operand) {
    return Canonical(operand.slice, RequestOf(plans[static_cast<size_t>(operand.rank)]));
  };
  for (size_t i = 0; i < sources.size() + targets.size(); ++i) {
    const bool target = i >= sources.size();
    const RankSlice& operand = target ? targets[i - sources.size()] : sources[i];
    std::string wrong = WrongOperand(plans, plan, operand, target);
    if (wrong.empty() && (operand.slice.chunks != first.chunks || operand.slice.chunks == 0 ||
                          (operand.slice.first - first.first) % plan.pieces != 0)) {
      wrong = "moves between chunks of different lengths";
    }
    for (size_t j = 0; target && wrong.empty() && j < i; ++j) {
      const RankSlice& other = j < sources.size() ? sources[j] : targets[j - sources.size()];
      if (other.rank != operand.rank || !Overlap(canonical(operand), canonical(other))) continue;
      if (j >= sources.size() || canonical(operand).first != canonical(other).first) {
        wrong = "has operands that overlap in part, or twice the same target";
      }
    }
    if (!wrong.empty()) return RefuseStep(plan, lane, index, wrong);
  }
  return absl::OkStatus();
}

bool OwnAlone(const Plan& plan, const Step& fold) {
  const auto own = [&plan](const RankSlice& operand) { return operand.rank == plan.rank; };
  const std::span<const RankSlice> sources = SourcesOf(plan, fold);
  const std::span<const RankSlice> targets = TargetsOf(plan, fold);
  return std::all_of(sources.begin(), sources.end(), own) && std::all_of(targets.begin(), targets.end(), own);
}

// Plans with direct access have one lane and no messages. They begin with kOpen, before which they touch nothing but
// their own scratch memory, and meet after the last fold: or nobody would know when it is done. Plans that fold own
// memory alone have one lane too, and each of their folds one target.
absl::Status CheckDirect(const Plan& plan) {
  const auto has_direct_steps = [](const Lane& lane) {
    return std::any_of(lane.steps.begin(), lane.steps.end(), [](const Step& step) { return IsDirect(step.kind); });
  };
  const auto opens = [](const Lane& lane) {
    return std::any_of(lane.steps.begin(), lane.steps.end(),
                       [](const Step& step) { return step.kind == StepKind::kOpen; });
  };
  if (plan.opens != std::any_of(plan.lanes.begin(), plan.lanes.end(), opens)) {
    return absl::InvalidArgumentError("rank " + std::to_string(plan.rank) + "'s plan says wrongly whether it opens");
  }
  if (std::none_of(plan.lanes.begin(), plan.lanes.end(), has_direct_steps)) return absl::OkStatus();
  const std::vector<Step>& steps = plan.lanes[0].steps;
  const auto folds_own = [&plan](const Step& step) {
    return !IsDirect(step.kind) || (step.kind == StepKind::kFold && step.targets == 1 && OwnAlone(plan, step));
  };
  if (plan.lanes.size() == 1 && std::all_of(steps.begin(), steps.end(), folds_own)) return absl::OkStatus();
  bool open = false;
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepKind kind = steps[i].kind;
    const bool direct = IsDirect(kind);
    const auto refuse = [&](const std::string& why) { return RefuseStep(plan, 0, i, why); };
    if (plan.lanes.size() > 1) return refuse("is in a plan with direct access, which must have one lane");
    if (!direct && kind != StepKind::kReduce && kind != StepKind::kCopy) {
      return refuse("is a message in a plan with direct access");
    }
    if (direct && open != (kind != StepKind::kOpen)) return refuse("is not between one open and the last meet");
    if (!open && !direct && steps[i].dst.buffer != BufferId::kScratch) {
      return refuse("writes the caller's memory before the plan is sure to be carried out");
    }
    open = open || direct;
    const bool more = std::any_of(steps.begin() + static_cast<std::ptrdiff_t>(i), steps.end(),
                                  [](const Step& step) { return step.kind == StepKind::kMeet; });
    if (kind == StepKind::kFold && !more) return refuse("has no meet after it, so nobody knows when it is done");
  }
  return absl::OkStatus();
}

absl::Status CheckStep(std::span<const Plan> plans, const Plan& plan, size_t lane, size_t index) {
  const Step& step = plan.lanes[lane].steps[index];
  const Operands operands = OperandsOf(step.kind);
  if (step.kind == StepKind::kFold) return CheckFold(plans, plan, lane, index);
  if (IsDirect(step.kind)) return absl::OkStatus();
  if (operands.peer && (step.peer < 0 || step.peer >= plan.size || step.peer == plan.rank)) {
    return RefuseStep(plan, lane, index, "names no other member of the group");
  }
  if (step.published && step.kind != StepKind::kRecv && step.kind != StepKind::kRecvReduce) {
    return RefuseStep(plan, lane, index, "is no receive and can't be a published one");
  }
  if (operands.dst && step.dst.buffer == BufferId::kIn && step.dst.chunks > 0) {
    return RefuseStep(plan, lane, index, "writes the caller's input");
  }
  std::string wrong;
  if (operands.src) wrong = WrongSlice(plan, step.src);
  if (wrong.empty() && operands.src2) wrong = WrongSlice(plan, step.src2);
  if (wrong.empty() && operands.dst) wrong = WrongSlice(plan, step.dst);
  if (wrong.empty() && operands.dst && operands.src) wrong = WrongPair(plan, step.dst, step.src);
  if (wrong.empty() && operands.src2) wrong = WrongPair(plan, step.dst, step.src2);
  return wrong.empty() ? absl::OkStatus() : RefuseStep(plan, lane, index, wrong);
}

absl::Status CheckSameOperation(std::span<const Plan> plans) {
  for (size_t r = 0; r < plans.size(); ++r) {
    const Plan& plan = plans[r];
    const Plan& first = plans[0];
    const std::string here = "plan " + std::to_string(r) + " ";
    if (plan.size != static_cast<int>(plans.size()) || plan.rank != static_cast<int>(r)) {
      return absl::InvalidArgumentError(here + "is that of rank " + std::to_string(plan.rank) + " of " +
                                        std::to_string(plan.size) + " among " + std::to_string(plans.size()) +
                                        " plans; they must be those of all ranks in order");
    }
    if (plan.kind != first.kind || plan.root != first.root || plan.pieces != first.pieces) {
      return absl::InvalidArgumentError(here + "differs from rank 0's in kind, root or pieces");
    }
    if (plan.pieces < 1 || plan.scratch_chunks < 0) {
      return absl::InvalidArgumentError(here + "has no pieces, or less than no scratch memory");
    }
    const size_t scratch_blocks = HasUnequalBlocks(plan.kind) ? plan.scratch_like.size() : 0;
    if (HasUnequalBlocks(plan.kind) &&
        int64_t{plan.scratch_chunks} != static_cast<int64_t>(scratch_blocks) * plan.pieces) {
      return absl::InvalidArgumentError(here + "has scratch memory of unknown length");
    }
    for (const Slice& like : plan.scratch_like) {
      if (like.buffer == BufferId::kScratch || !WrongSlice(plan, like).empty()) {
        return absl::InvalidArgumentError(here + "has scratch memory that is like no block of the caller's");
      }
    }
    if (plan.lanes.size() != first.lanes.size()) {
      return absl::InvalidArgumentError(here + "has another number of lanes than rank 0's");
    }
  }
  return absl::OkStatus();
}

// The use of a chunk: by no lane, one, or several; and whether a lane writes it.
class Usage {
 public:
  explicit Usage(const Plan& plan) : request_(RequestOf(plan)) {
    users_[0].resize(static_cast<size_t>(ChunksOf(BufferId::kIn, request_)));
    users_[1].resize(static_cast<size_t>(ChunksOf(BufferId::kOut, request_)));
    users_[2].resize(static_cast<size_t>(plan.scratch_chunks));
  }
  // False when this use and another lane's do not go together.
  bool Add(const Slice& slice, int lane, bool write) {
    const Slice where = Canonical(slice, request_);
    for (int32_t i = 0; i < where.chunks; ++i) {
      User& user = users_[static_cast<size_t>(where.buffer)][static_cast<size_t>(where.first + i)];
      if (user.lane >= 0 && user.lane != lane && (write || user.written)) return false;
      user = {lane, user.written || write};
    }
    return true;
  }

 private:
  struct User {
    int lane = -1;  // of the last use; reads are added after all writes, so a written chunk has its writer here
    bool written = false;
  };
  PlanRequest request_;
  std::array<std::vector<User>, 3> users_;
};

absl::Status CheckLanesDisjoint(const Plan& plan) {
  if (plan.lanes.size() < 2) return absl::OkStatus();
  Usage usage(plan);
  for (const bool writes : {true, false}) {  // all writes first, so that every read is compared with all of them
    for (size_t lane = 0; lane < plan.lanes.size(); ++lane) {
      for (size_t s = 0; s < plan.lanes[lane].steps.size(); ++s) {
        const Step& step = plan.lanes[lane].steps[s];
        const Operands operands = OperandsOf(step.kind);
        const int number = static_cast<int>(lane);
        const bool fits = writes ? (!operands.dst || usage.Add(step.dst, number, true))
                                 : (!operands.src || usage.Add(step.src, number, false)) &&
                                       (!operands.src2 || usage.Add(step.src2, number, false));
        if (!fits) return RefuseStep(plan, lane, s, "touches memory that another lane writes or reads");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefuseStep(const Plan& plan, size_t lane, size_t step, const std::string& why) {
  return absl::InvalidArgumentError("rank " + std::to_string(plan.rank) + ", lane " + std::to_string(lane) + ", step " +
                                    std::to_string(step) + " (" + ToString(plan, plan.lanes[lane].steps[step]) + ") " +
                                    why);
}

absl::Status CheckShape(std::span<const Plan> plans) {
  if (plans.empty()) return absl::InvalidArgumentError("there are no plans to check");
  COHORT_RETURN_IF_ERROR(CheckSameOperation(plans));
  for (const Plan& plan : plans) {
    for (size_t lane = 0; lane < plan.lanes.size(); ++lane) {
      for (size_t step = 0; step < plan.lanes[lane].steps.size(); ++step) {
        COHORT_RETURN_IF_ERROR(CheckStep(plans, plan, lane, step));
      }
    }
    COHORT_RETURN_IF_ERROR(CheckDirect(plan));
    COHORT_RETURN_IF_ERROR(CheckLanesDisjoint(plan));
  }
  return absl::OkStatus();
}

}  // namespace cohort::comm
