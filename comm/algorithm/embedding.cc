#include "cohort/comm/algorithm/embedding.h"

#include <algorithm>
#include <utility>

#include "cohort/comm/algorithm/pattern.h"

namespace cohort::comm {
namespace {

// Adds a slice; to the last one where they lie together.
void Join(std::vector<Slice>& slices, const Slice& next) {
  if (slices.empty() || slices.back().buffer != next.buffer ||
      slices.back().first + slices.back().chunks != next.first) {
    slices.push_back(next);
  } else {
    slices.back().chunks += next.chunks;
  }
}

}  // namespace

void Embedding::OnRange(const AlgorithmInfo& algorithm, const Team& team, const Slice& in, const Slice& out) {
  PlanRequest request;
  request.kind = algorithm.kind;
  request.size = team.size;
  request.rank = team.rank;
  request.root = team.root;
  request.in_place = SameMemory(in, out);
  const int32_t chunks = std::max(in.chunks, out.chunks);  // none where there are more parts than pieces
  request.pieces = std::max(1, chunks);
  const Plan plan = algorithm.build(request);
  // Scratch chunks must be as long as the range's, which begins at this piece.
  const int32_t skip = (in.chunks > 0 ? in.first : out.first) % request_.pieces;
  const int32_t blocks = (skip + request.pieces + request_.pieces - 1) / request_.pieces;
  const Slice scratch =
      plan.scratch_chunks > 0 ? builder_.NewScratch(plan.scratch_chunks / plan.pieces * blocks) : Slice{};
  TakeOver(plan, team, [&](const Slice& slice) -> std::vector<Slice> {
    if (slice.chunks == 0 || chunks == 0) return {PlanBuilder::Nothing()};
    if (slice.buffer == BufferId::kScratch) {
      const int32_t block = slice.first / plan.pieces;
      const int32_t first = scratch.first + block * blocks * request_.pieces + skip + slice.first % plan.pieces;
      return {{BufferId::kScratch, first, slice.chunks}};
    }
    const Slice& whole = slice.buffer == BufferId::kIn ? in : out;
    return {{whole.buffer, whole.first + slice.first, slice.chunks}};
  });
}

void Embedding::OnBlocks(const AlgorithmInfo& algorithm, const Team& team, const BlockAt& in, const BlockAt& out,
                         bool joined) {
  PlanRequest request;
  request.kind = algorithm.kind;
  request.size = team.size;
  request.rank = team.rank;
  request.root = team.root;
  // In place, one buffer is the caller's block of the other (Canonical).
  const int32_t in_blocks = ChunksOf(BufferId::kIn, request);
  const int32_t out_blocks = ChunksOf(BufferId::kOut, request);
  if (in_blocks > 0 && out_blocks > 0) {
    const std::vector<Slice> from = in(in_blocks > out_blocks ? team.rank : 0);
    const std::vector<Slice> to = out(out_blocks > in_blocks ? team.rank : 0);
    request.in_place = !from.empty() && !to.empty() && SameMemory(from[0], to[0]);
  }
  const Plan plan = algorithm.build(request);
  std::vector<std::vector<Slice>> scratch;  // of each block of the plan's scratch memory
  for (int32_t block = 0; block < plan.scratch_chunks; ++block) {
    const Slice like = HasUnequalBlocks(plan.kind) ? plan.scratch_like[static_cast<size_t>(block)]
                                                   : Slice{in_blocks > 0 ? BufferId::kIn : BufferId::kOut, 0, 1};
    scratch.emplace_back();
    for (const Slice& slice : like.buffer == BufferId::kIn ? in(like.first) : out(like.first)) {
      scratch.back().push_back(builder_.NewScratchLike(slice));
    }
  }
  TakeOver(plan, team, [&](const Slice& slice) -> std::vector<Slice> {
    std::vector<Slice> slices;
    for (int32_t block = slice.first; block < slice.first + slice.chunks; ++block) {
      const std::vector<Slice> here = slice.buffer == BufferId::kScratch ? scratch[static_cast<size_t>(block)]
                                      : slice.buffer == BufferId::kIn    ? in(block)
                                                                         : out(block);
      for (const Slice& next : here) {
        joined ? Join(slices, next) : slices.push_back(next);
      }
    }
    if (slices.empty()) slices.push_back(PlanBuilder::Nothing());
    return slices;
  });
}

void Embedding::TakeOver(const Plan& plan, const Team& team, const Slices& at) {
  for (const Step& step : plan.lanes[0].steps) TakeOver(step, team, at);
}

void Embedding::TakeOver(const Step& step, const Team& team, const Slices& at) {
  const auto each = [&](const auto& add) {
    const std::vector<Slice> src = at(step.src);
    const std::vector<Slice> dst = at(step.dst);
    for (size_t i = 0; i < dst.size(); ++i) add(dst[i], src[i < src.size() ? i : 0]);
  };
  const int peer = step.peer >= 0 ? team.rank_of(step.peer) : -1;
  switch (step.kind) {
    case StepKind::kSend:
      for (const Slice& slice : at(step.src)) builder_.Send(peer, slice);
      break;
    case StepKind::kPublish:
      for (int i = 1; i < team.size; ++i) {
        for (const Slice& slice : at(step.src)) builder_.Send(team.rank_of(Modulo(team.rank + i, team.size)), slice);
      }
      break;
    case StepKind::kRecv:
      for (const Slice& slice : at(step.dst)) builder_.Recv(peer, slice);
      break;
    case StepKind::kRecvReduce:
      each([&](const Slice& dst, const Slice& src) {
        step.incoming_first ? builder_.RecvReduceFirst(peer, dst, src) : builder_.RecvReduce(peer, dst, src);
      });
      break;
    case StepKind::kReduce: {
      const std::vector<Slice> right = at(step.src2);
      size_t next = 0;
      each([&](const Slice& dst, const Slice& src) { builder_.Reduce(dst, src, right[next++]); });
      break;
    }
    case StepKind::kCopy:
      each([&](const Slice& dst, const Slice& src) { builder_.Copy(dst, src); });
      break;
    case StepKind::kOpen:
    case StepKind::kMeet:
    case StepKind::kFold:
      break;  // no algorithm with direct access is composed: composition.cc
  }
}

}  // namespace cohort::comm
