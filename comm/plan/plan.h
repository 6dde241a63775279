// A plan: what one rank does in one collective operation, as data. Built by algorithms (pure functions), executed by
// the runner over any transport, proved by the checker, drawn by `plan show`.
//
// Units. Every operation has a block of n elements (see CollectiveRequest::count) and cuts it into `pieces` pieces of
// nearly equal length: piece p is elements [p*n/pieces, (p+1)*n/pieces). A buffer of b blocks thus has b*pieces
// chunks; chunk i is piece i % pieces of block i / pieces. The same chunk number has the same length in every buffer
// whose chunk has the same piece, which is what lets data move between buffers. Lengths are bound at run time, so one
// plan serves all counts.
//
//   kIn, kOut   the user's buffers, as many blocks as the operation gives them on this rank
//   kScratch    `scratch_chunks` chunks of the plan's own; chunk i has the length of piece i % pieces
//
// Unequal blocks. In plans of the variable-count forms every block has a length of its own, and blocks of the user's
// buffers need not lie together: a slice stays inside one block, and scratch blocks are made like one of the user's.
//
// Order. A plan is a list of lanes; lanes run independently and touch disjoint memory. In a lane, steps start in
// order. kSend and kPublish are only *posted* by their turn (they must not wait for the receiver, or two ranks that
// send to each other would stand still); they complete in order. Every other step is finished before the next starts.
// `sends_before` of a step is the number of this lane's posted sends and publishes that must be complete before it
// starts, because it overwrites what they read; PlanBuilder computes it, the checker verifies it.
//
// Memory of other ranks. A plan of one lane may begin with kOpen: all ranks tell each other where their buffers lie.
// From then on kFold steps read and write any rank's kIn and kOut, until the rank's last kMeet. kOpen and kMeet are
// barriers: between two of them (in an epoch) no rank may touch what another one writes. Open is also where such a plan
// may be given up for another one, before anything has moved: where members can't reach each other's memory. A kFold of
// own memory alone, scratch too, needs none of this.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/comm/request.h"
#include "cohort/comm/types.h"

namespace cohort::comm {

enum class BufferId : uint8_t { kIn = 0, kOut = 1, kScratch = 2 };

struct Slice {
  BufferId buffer = BufferId::kIn;
  int32_t first = 0;   // chunk
  int32_t chunks = 0;  // contiguous; 0: empty
};

enum class StepKind : uint8_t {
  kSend,        // src to peer
  kRecv,        // from peer into dst
  kRecvReduce,  // dst = src op (what peer sent); src may equal dst
  kReduce,      // dst = src op src2
  kCopy,        // dst = src
  kPublish,     // src, once, to all other members of the group, each of whom has a matching published Recv/RecvReduce
  kOpen,        // all ranks tell each other where `in` and `out` lie
  kMeet,        // done when all ranks have come here
  kFold,        // every target = source 0 op source 1 op ..., from the left; one source: a copy. See Plan::operands
};

// A slice of the memory of `rank`: its own, or another rank's kIn or kOut.
struct RankSlice {
  int32_t rank = 0;
  Slice slice;
};

struct Step {
  StepKind kind = StepKind::kCopy;
  // kRecv, kRecvReduce: comes from the peer's publish and not from a send.
  bool published = false;
  // kRecvReduce: the incoming data is the left operand (dst = incoming op src). Fixes the association for bit-equal
  // results; for commutative ops the value is the same.
  bool incoming_first = false;
  int32_t peer = -1;  // group rank
  Slice src = {};
  Slice src2 = {};
  Slice dst = {};
  int32_t sends_before = 0;
  // kFold: operands [operands, operands + sources) of the plan are read, the `targets` after them written.
  int32_t operands = 0;
  int32_t sources = 0;
  int32_t targets = 0;
  // kRecv, kRecvReduce: the number of steps before its turn at which it may be begun (MarkEarlyReceives).
  int32_t ahead = 0;
};

struct Lane {
  std::vector<Step> steps;
};

struct Plan {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string algorithm;
  int size = 1;
  int rank = 0;
  int root = -1;
  bool in_place = false;
  bool fold_once = false;  // as in PlanRequest
  bool opens = false;      // has kOpen
  int32_t pieces = 1;
  int32_t scratch_chunks = 0;
  // Unequal blocks: for each block of scratch, the block of a user's buffer that has its length.
  std::vector<Slice> scratch_like;
  std::vector<Lane> lanes;
  std::vector<RankSlice> operands;  // of the kFold steps

  // For people: one line a step.
  std::string DebugString() const;
};

class Placement;

// The arguments of an algorithm.
struct PlanRequest {
  CollectiveKind kind = CollectiveKind::kBarrier;
  int size = 1;
  int rank = 0;
  int root = -1;
  bool in_place = false;
  int32_t pieces = 1;
  // Which ranks share a host, for algorithms of two levels; null: not known. Outlives the call.
  const Placement* placement = nullptr;
  // Each result is to be one kFold of all operands, which is rounded once; for algorithms with the trait `folds_once`.
  bool fold_once = false;
};

// Chunks of a buffer on this rank, for the given kind: 0 where the operation has no such buffer here, and for kScratch,
// which is the plan's own.
int32_t ChunksOf(BufferId buffer, const PlanRequest& request);

// True for the kinds whose buffers hold a block for each rank on some rank.
constexpr bool HasBlockPerRank(CollectiveKind kind) {
  const CollectiveKind form = EqualBlocksForm(kind);
  return form == CollectiveKind::kGather || form == CollectiveKind::kScatter || form == CollectiveKind::kAllGather ||
         form == CollectiveKind::kReduceScatter || form == CollectiveKind::kAllToAll;
}

// In place, one of the user's buffers is a part of the other: the same chunk has two names. Gives every chunk one name,
// that of the larger buffer, so that slices overlap if and only if their canonical forms do. Whether a call is in place
// is known to its own rank only, so plans of one operation may differ in it.
Slice Canonical(const Slice& slice, const PlanRequest& request);

// Unequal blocks: names the length of the block that a slice lies in, so that two slices on any ranks have the same
// name exactly when the call gives them the same length: that of rank r's block is r, and of what rank r sends to rank
// s in an all-to-all r * size + s.
int64_t LengthName(const Plan& plan, const Slice& slice);

// The rank that the part-th message of a publish goes to where it is sent to every other rank, from part 1 on: from the
// next rank on, so that not all ranks begin with the same one.
constexpr int PublishedTo(int rank, int size, int part) {
  return rank + part < size ? rank + part : rank + part - size;
}

// True when the slices, both canonical, share a chunk.
inline bool Overlap(const Slice& a, const Slice& b) {
  return a.chunks > 0 && b.chunks > 0 && a.buffer == b.buffer && a.first < b.first + b.chunks &&
         b.first < a.first + a.chunks;
}

// Returns the arguments that the plan was made for.
PlanRequest RequestOf(const Plan& plan);

// "in", "out", "scratch"; "send", "recv_reduce", ...
std::string_view Name(BufferId buffer);
std::string_view Name(StepKind kind);
// "out[3]", "in[0..4] of rank 2".
std::string ToString(const Slice& slice);
std::string ToString(const RankSlice& slice);
// One line for people, such as "recv_reduce  out[3] = in[3] op rank 2". The step is one of the plan's.
std::string ToString(const Plan& plan, const Step& step);

inline std::span<const RankSlice> SourcesOf(const Plan& plan, const Step& step) {
  return std::span(plan.operands).subspan(static_cast<size_t>(step.operands), static_cast<size_t>(step.sources));
}
inline std::span<const RankSlice> TargetsOf(const Plan& plan, const Step& step) {
  return std::span(plan.operands)
      .subspan(static_cast<size_t>(step.operands) + static_cast<size_t>(step.sources),
               static_cast<size_t>(step.targets));
}

}  // namespace cohort::comm
