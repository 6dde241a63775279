#include "cohort/comm/plan/plan.h"

namespace cohort::comm {
namespace {

std::string PeerOf(const Step& step) {
  return "rank " + std::to_string(step.peer) + (step.published ? " (published)" : "");
}

std::string Join(std::span<const RankSlice> slices, const std::string& separator) {
  std::string text;
  for (const RankSlice& slice : slices) text += (text.empty() ? "" : separator) + ToString(slice);
  return text;
}

}  // namespace

std::string ToString(const Slice& slice) {
  if (slice.chunks == 0) return "nothing";
  std::string text = std::string(Name(slice.buffer)) + "[" + std::to_string(slice.first);
  if (slice.chunks > 1) text += ".." + std::to_string(slice.first + slice.chunks - 1);
  return text + "]";
}

std::string ToString(const RankSlice& slice) {
  return ToString(slice.slice) + " of rank " + std::to_string(slice.rank);
}

std::string_view Name(BufferId buffer) {
  switch (buffer) {
    case BufferId::kIn:
      return "in";
    case BufferId::kOut:
      return "out";
    case BufferId::kScratch:
      return "scratch";
  }
  return "unknown_buffer";
}

std::string_view Name(StepKind kind) {
  switch (kind) {
    case StepKind::kSend:
      return "send";
    case StepKind::kRecv:
      return "recv";
    case StepKind::kRecvReduce:
      return "recv_reduce";
    case StepKind::kReduce:
      return "reduce";
    case StepKind::kCopy:
      return "copy";
    case StepKind::kPublish:
      return "publish";
    case StepKind::kOpen:
      return "open";
    case StepKind::kMeet:
      return "meet";
    case StepKind::kFold:
      return "fold";
  }
  return "unknown_step";
}

std::string ToString(const Plan& plan, const Step& step) {
  std::string text(Name(step.kind));
  text.resize(13, ' ');
  const std::string src = ToString(step.src);
  const std::string dst = ToString(step.dst);
  switch (step.kind) {
    case StepKind::kSend:
      text += src + " to " + PeerOf(step);
      break;
    case StepKind::kPublish:
      text += src + " to all";
      break;
    case StepKind::kRecv:
      text += dst + " = " + PeerOf(step);
      break;
    case StepKind::kRecvReduce:
      text += dst + " = " + (step.incoming_first ? PeerOf(step) + " op " + src : src + " op " + PeerOf(step));
      break;
    case StepKind::kReduce:
      text += dst + " = " + src + " op " + ToString(step.src2);
      break;
    case StepKind::kCopy:
      text += dst + " = " + src;
      break;
    case StepKind::kOpen:
      text += "in and out to all";
      break;
    case StepKind::kMeet:
      text += "all";
      break;
    case StepKind::kFold:
      text += Join(TargetsOf(plan, step), ", ") + " = " + Join(SourcesOf(plan, step), " op ");
      break;
  }
  if (step.sends_before > 0) text += ", after its first " + std::to_string(step.sends_before) + " sends";
  return text;
}

std::string Plan::DebugString() const {
  std::string text = std::string(Name(kind)) + " " + algorithm + ": rank " + std::to_string(rank) + " of " +
                     std::to_string(size) + (root >= 0 ? ", root " + std::to_string(root) : "") +
                     (in_place ? ", in place" : "") + ", " + std::to_string(pieces) +
                     (pieces == 1 ? " piece, " : " pieces, ") + std::to_string(scratch_chunks) + " scratch chunks\n";
  for (size_t l = 0; l < lanes.size(); ++l) {
    if (lanes.size() > 1) text += "lane " + std::to_string(l) + "\n";
    for (size_t s = 0; s < lanes[l].steps.size(); ++s) {
      const std::string number = std::to_string(s);
      text += std::string(number.size() < 5 ? 5 - number.size() : 0, ' ') + number + "  " +
              ToString(*this, lanes[l].steps[s]) + "\n";
    }
  }
  return text;
}

int32_t ChunksOf(BufferId buffer, const PlanRequest& request) {
  const bool at_root = request.rank == request.root;
  const int32_t one = request.pieces;
  const int32_t all = request.pieces * request.size;
  const bool in = buffer == BufferId::kIn;
  if (buffer == BufferId::kScratch) return 0;
  switch (EqualBlocksForm(request.kind)) {
    case CollectiveKind::kBroadcast:
      return in ? (at_root ? one : 0) : one;
    case CollectiveKind::kReduce:
      return in ? one : (at_root ? one : 0);
    case CollectiveKind::kAllReduce:
      return one;
    case CollectiveKind::kGather:
      return in ? one : (at_root ? all : 0);
    case CollectiveKind::kScatter:
      return in ? (at_root ? all : 0) : one;
    case CollectiveKind::kAllGather:
      return in ? one : all;
    case CollectiveKind::kReduceScatter:
      return in ? all : one;
    case CollectiveKind::kAllToAll:
      return all;
    case CollectiveKind::kBarrier:
      return 0;
    case CollectiveKind::kSend:
      return in ? one : 0;
    case CollectiveKind::kRecv:
      return in ? 0 : one;
    default:
      return 0;
  }
}

Slice Canonical(const Slice& slice, const PlanRequest& request) {
  if (!request.in_place || slice.buffer == BufferId::kScratch) return slice;
  const int32_t in = ChunksOf(BufferId::kIn, request);
  const int32_t out = ChunksOf(BufferId::kOut, request);
  if (in == 0 || out == 0) return slice;
  const BufferId larger = in > out ? BufferId::kIn : BufferId::kOut;
  if (slice.buffer == larger) return slice;
  // Equal buffers start together; a smaller one is this rank's block of the larger.
  const CollectiveKind form = EqualBlocksForm(request.kind);
  const bool block_kind = form == CollectiveKind::kGather || form == CollectiveKind::kScatter ||
                          form == CollectiveKind::kAllGather || form == CollectiveKind::kReduceScatter;
  return {larger, slice.first + (block_kind ? request.rank * request.pieces : 0), slice.chunks};
}

int64_t LengthName(const Plan& plan, const Slice& slice) {
  const int32_t block = slice.first / plan.pieces;
  if (slice.buffer == BufferId::kScratch) return LengthName(plan, plan.scratch_like[static_cast<size_t>(block)]);
  const bool in = slice.buffer == BufferId::kIn;
  switch (EqualBlocksForm(plan.kind)) {
    case CollectiveKind::kGather:
    case CollectiveKind::kAllGather:
      return in ? plan.rank : block;
    case CollectiveKind::kScatter:
    case CollectiveKind::kReduceScatter:
      return in ? block : plan.rank;
    default:
      return in ? int64_t{plan.rank} * plan.size + block : int64_t{block} * plan.size + plan.rank;
  }
}

PlanRequest RequestOf(const Plan& plan) {
  return {plan.kind, plan.size, plan.rank, plan.root, plan.in_place, plan.pieces, nullptr, plan.fold_once};
}

}  // namespace cohort::comm
