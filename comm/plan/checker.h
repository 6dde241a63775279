// The checker proves a set of plans, one per rank, without a network: it runs them on symbols. A chunk of input is a
// symbol, a reduction builds an expression of symbols, and what lies in every output chunk in the end is compared with
// what the collective promises. Messages are matched in order, and a send counts as complete only once it has been
// received, so whatever passes here cannot stand still over any transport.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "cohort/comm/plan/plan.h"

namespace cohort::comm {

// The checker's findings about plans. Data are in chunks; "busiest" is the maximum over the ranks.
struct PlanReport {
  int64_t rounds = 0;          // messages in the longest chain of messages that wait for one another
  int64_t messages = 0;        // sent, or received, by the busiest rank; a publish is sent once
  int64_t chunks = 0;          // sent (or stored into others' memory), or received (or read there), likewise
  int64_t scratch_chunks = 0;  // of the rank that needs most
  // Every reduced output chunk is ((x0 op x1) op x2) ..., in rank order: what fixes the bits whatever the transport.
  bool rank_order = true;
  bool same_association = true;  // every output chunk that several ranks get is the same expression on all of them
};

// Proves that the plans of ranks 0, 1, ... together perform their collective, each in place or not as it says:
//
//   - every send and publish is received, in order per (sender, receiver, lane), by a step of the same kind and the
//     same chunk lengths, and no rank waits for ever;
//   - every output chunk gets what it should, each contribution exactly once; nothing is read before it was written;
//   - no step writes the caller's input, reaches outside its buffers, mixes chunks of different lengths, overwrites
//     what an incomplete send still reads, or touches memory that another lane writes;
//   - no rank leaves a barrier before all have entered it;
//   - between two meets no rank touches memory that another one writes.
//
// kInvalidArgument when they do not; the message names the rank, the lane and the step. Memory and time grow with the
// number of steps times the chunks they move.
absl::StatusOr<PlanReport> CheckPlans(std::span<const Plan> plans);

}  // namespace cohort::comm
