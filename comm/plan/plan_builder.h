// PlanBuilder: how algorithms write plans. Slices are named by blocks and parts, steps are added in order, and the
// fences that keep a step from overwriting what an earlier send still reads (Step::sends_before) follow by themselves.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "cohort/comm/plan/plan.h"

namespace cohort::comm {

// Part `index` of `parts` nearly equal parts of a slice, in whole chunks; empty where there are fewer chunks than
// parts.
Slice Part(const Slice& whole, int index, int parts);
// Parts [index, index + count) of `parts`, which are contiguous.
Slice Parts(const Slice& whole, int index, int count, int parts);

// For one rank and one plan. Empty slices are dropped by Copy and Reduce; in messages they are kept, because the other
// side expects them (skip them on both sides where they mean nothing).
class PlanBuilder {
 public:
  explicit PlanBuilder(const PlanRequest& request);

  // Blocks of the user's buffers, and scratch blocks of the plan's own that no other call gets.
  Slice In(int block = 0, int blocks = 1) const;
  Slice Out(int block = 0, int blocks = 1) const;
  Slice NewScratch(int blocks = 1);  // not for unequal blocks
  // Scratch that a slice's data fit into: chunk by chunk of the same lengths. The slice is one of the user's buffers.
  Slice NewScratchLike(const Slice& slice);
  static Slice Nothing() { return {BufferId::kScratch, 0, 0}; }

  // The steps that follow belong to this lane; lane 0 at first.
  PlanBuilder& UseLane(int lane);

  PlanBuilder& Send(int peer, const Slice& src);
  PlanBuilder& Recv(int peer, const Slice& dst);
  // dst = src op incoming, and dst = incoming op src.
  PlanBuilder& RecvReduce(int peer, const Slice& dst, const Slice& src);
  PlanBuilder& RecvReduceFirst(int peer, const Slice& dst, const Slice& src);
  // dst = a op b.
  PlanBuilder& Reduce(const Slice& dst, const Slice& a, const Slice& b);
  // Dropped where both are the same memory, as in place.
  PlanBuilder& Copy(const Slice& dst, const Slice& src);
  PlanBuilder& Publish(const Slice& src);
  PlanBuilder& RecvPublished(int peer, const Slice& dst);
  PlanBuilder& RecvReducePublished(int peer, const Slice& dst, const Slice& src);
  PlanBuilder& RecvReducePublishedFirst(int peer, const Slice& dst, const Slice& src);

  // Direct access to other ranks' memory (plan.h). Fold: the targets get the left fold of the sources; own targets that
  // are the very memory of a single own source are dropped, empty slices too. A fold of own memory needs no Open.
  PlanBuilder& Open();
  PlanBuilder& Meet();
  PlanBuilder& Fold(const std::vector<RankSlice>& targets, const std::vector<RankSlice>& sources);

  // True when the slices share memory, which only in-place calls make hard to see.
  bool Aliased(const Slice& a, const Slice& b) const;

  Plan Build() &&;

 private:
  // The chunks from the key to `end`, last read by send number `posted`.
  struct Reader {
    int32_t end;
    int32_t posted;
  };
  struct LaneState {
    int32_t posted = 0;  // sends and publishes so far
    // By buffer: ranges of chunks and the number of the last of them that reads each, from 1. Canonical.
    std::array<std::map<int32_t, Reader>, 3> last_read;
    int32_t fenced = 0;  // how many sends and publishes are complete for sure
  };
  static void SetLastRead(std::map<int32_t, Reader>& last_read, const Slice& slice, int32_t posted);
  static int32_t LastRead(const std::map<int32_t, Reader>& last_read, const Slice& slice);
  void Add(Step step);
  // Raises the step's fence to cover what it writes.
  void Fence(Step& step, const Slice& written);

  PlanRequest request_;
  Plan plan_;
  std::vector<LaneState> lanes_;
  size_t lane_ = 0;
};

}  // namespace cohort::comm
