#include "cohort/comm/plan/plan_builder.h"

#include <algorithm>
#include <utility>

namespace cohort::comm {

Slice Parts(const Slice& whole, int index, int count, int parts) {
  const auto begin = static_cast<int32_t>(int64_t{whole.chunks} * index / parts);
  const auto end = static_cast<int32_t>(int64_t{whole.chunks} * (index + count) / parts);
  return {whole.buffer, whole.first + begin, end - begin};
}

Slice Part(const Slice& whole, int index, int parts) { return Parts(whole, index, 1, parts); }

PlanBuilder::PlanBuilder(const PlanRequest& request) : request_(request) {
  plan_.kind = request.kind;
  plan_.size = request.size;
  plan_.rank = request.rank;
  plan_.root = request.root;
  plan_.in_place = request.in_place;
  plan_.fold_once = request.fold_once;
  plan_.pieces = request.pieces;
  UseLane(0);
}

Slice PlanBuilder::In(int block, int blocks) const {
  return {BufferId::kIn, block * request_.pieces, blocks * request_.pieces};
}

Slice PlanBuilder::Out(int block, int blocks) const {
  return {BufferId::kOut, block * request_.pieces, blocks * request_.pieces};
}

Slice PlanBuilder::NewScratch(int blocks) {
  const Slice slice{BufferId::kScratch, plan_.scratch_chunks, blocks * request_.pieces};
  plan_.scratch_chunks += slice.chunks;
  return slice;
}

Slice PlanBuilder::NewScratchLike(const Slice& slice) {
  const int32_t skip = slice.first % request_.pieces;
  if (HasUnequalBlocks(request_.kind)) {
    plan_.scratch_like.push_back({slice.buffer, slice.first - skip, request_.pieces});
    return {BufferId::kScratch, NewScratch().first + skip, slice.chunks};
  }
  const int32_t blocks = (skip + slice.chunks + request_.pieces - 1) / request_.pieces;
  return {BufferId::kScratch, NewScratch(blocks).first + skip, slice.chunks};
}

PlanBuilder& PlanBuilder::UseLane(int lane) {
  lane_ = static_cast<size_t>(lane);
  if (lane_ >= lanes_.size()) {
    lanes_.resize(lane_ + 1);
    plan_.lanes.resize(lane_ + 1);
  }
  return *this;
}

bool PlanBuilder::Aliased(const Slice& a, const Slice& b) const {
  return Overlap(Canonical(a, request_), Canonical(b, request_));
}

void PlanBuilder::SetLastRead(std::map<int32_t, Reader>& last_read, const Slice& slice, int32_t posted) {
  if (slice.chunks == 0) return;
  const int32_t end = slice.first + slice.chunks;
  for (const int32_t cut : {slice.first, end}) {  // no range may reach over either end
    auto range = last_read.upper_bound(cut);
    if (range == last_read.begin()) continue;
    --range;
    if (range->first == cut || range->second.end <= cut) continue;
    const Reader rest = range->second;
    range->second.end = cut;
    last_read.emplace(cut, rest);
  }
  last_read.erase(last_read.lower_bound(slice.first), last_read.lower_bound(end));
  last_read[slice.first] = {end, posted};
}

int32_t PlanBuilder::LastRead(const std::map<int32_t, Reader>& last_read, const Slice& slice) {
  const int32_t end = slice.first + slice.chunks;
  auto range = last_read.upper_bound(slice.first);
  if (range != last_read.begin()) --range;
  int32_t posted = 0;
  for (; range != last_read.end() && range->first < end; ++range) {
    if (range->second.end > slice.first) posted = std::max(posted, range->second.posted);
  }
  return posted;
}

void PlanBuilder::Fence(Step& step, const Slice& written) {
  LaneState& lane = lanes_[lane_];
  const Slice dst = Canonical(written, request_);
  const int32_t needed = LastRead(lane.last_read[static_cast<size_t>(dst.buffer)], dst);
  if (needed > lane.fenced) lane.fenced = step.sends_before = needed;
}

void PlanBuilder::Add(Step step) {
  if (step.kind == StepKind::kSend || step.kind == StepKind::kPublish) {
    LaneState& lane = lanes_[lane_];
    const Slice read = Canonical(step.src, request_);
    SetLastRead(lane.last_read[static_cast<size_t>(read.buffer)], read, ++lane.posted);
  } else {
    Fence(step, step.dst);
  }
  plan_.lanes[lane_].steps.push_back(step);
}

PlanBuilder& PlanBuilder::Open() {
  plan_.opens = true;
  Add({.kind = StepKind::kOpen});
  return *this;
}

PlanBuilder& PlanBuilder::Meet() {
  Add({.kind = StepKind::kMeet});
  return *this;
}

PlanBuilder& PlanBuilder::Fold(const std::vector<RankSlice>& targets, const std::vector<RankSlice>& sources) {
  if (sources[0].slice.chunks == 0) return *this;
  Step step{.kind = StepKind::kFold,
            .operands = static_cast<int32_t>(plan_.operands.size()),
            .sources = static_cast<int32_t>(sources.size())};
  plan_.operands.insert(plan_.operands.end(), sources.begin(), sources.end());
  const bool copies_own = sources.size() == 1 && sources[0].rank == request_.rank;
  for (const RankSlice& target : targets) {
    const bool own = target.rank == request_.rank;
    if (own && copies_own && Aliased(target.slice, sources[0].slice)) continue;
    if (own) Fence(step, target.slice);
    plan_.operands.push_back(target);
    ++step.targets;
  }
  if (step.targets == 0) {
    plan_.operands.resize(static_cast<size_t>(step.operands));
  } else {
    plan_.lanes[lane_].steps.push_back(step);
  }
  return *this;
}

PlanBuilder& PlanBuilder::Send(int peer, const Slice& src) {
  Add({.kind = StepKind::kSend, .peer = peer, .src = src});
  return *this;
}

PlanBuilder& PlanBuilder::Recv(int peer, const Slice& dst) {
  Add({.kind = StepKind::kRecv, .peer = peer, .dst = dst});
  return *this;
}

PlanBuilder& PlanBuilder::RecvReduce(int peer, const Slice& dst, const Slice& src) {
  Add({.kind = StepKind::kRecvReduce, .peer = peer, .src = src, .dst = dst});
  return *this;
}

PlanBuilder& PlanBuilder::RecvReduceFirst(int peer, const Slice& dst, const Slice& src) {
  Add({.kind = StepKind::kRecvReduce, .incoming_first = true, .peer = peer, .src = src, .dst = dst});
  return *this;
}

PlanBuilder& PlanBuilder::Reduce(const Slice& dst, const Slice& a, const Slice& b) {
  if (dst.chunks > 0) Add({.kind = StepKind::kReduce, .src = a, .src2 = b, .dst = dst});
  return *this;
}

PlanBuilder& PlanBuilder::Copy(const Slice& dst, const Slice& src) {
  if (dst.chunks > 0 && !Aliased(dst, src)) Add({.kind = StepKind::kCopy, .src = src, .dst = dst});
  return *this;
}

PlanBuilder& PlanBuilder::Publish(const Slice& src) {
  Add({.kind = StepKind::kPublish, .src = src});
  return *this;
}

PlanBuilder& PlanBuilder::RecvPublished(int peer, const Slice& dst) {
  Add({.kind = StepKind::kRecv, .published = true, .peer = peer, .dst = dst});
  return *this;
}

PlanBuilder& PlanBuilder::RecvReducePublished(int peer, const Slice& dst, const Slice& src) {
  Add({.kind = StepKind::kRecvReduce, .published = true, .peer = peer, .src = src, .dst = dst});
  return *this;
}

PlanBuilder& PlanBuilder::RecvReducePublishedFirst(int peer, const Slice& dst, const Slice& src) {
  Add({.kind = StepKind::kRecvReduce, .published = true, .incoming_first = true, .peer = peer, .src = src, .dst = dst});
  return *this;
}

Plan PlanBuilder::Build() && { return std::move(plan_); }

}  // namespace cohort::comm
