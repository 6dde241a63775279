// The waits of ranks, from messages to what the graph of waits is made of (runtime/segment/wait_graph.h). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/runtime/segment/wait_graph.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// Bounded: an agent reports a limited number of calls. Where a message has more, the first ones count, and the rank may
// have forgotten calls.
runtime::RankWait ToRankWait(const v1::RankWait& message, int node);

// World ranks; nothing where the message makes no sense in a world of this size.
std::optional<std::vector<int>> ToMembers(const v1::RankSet& set, uint32_t world_size);

}  // namespace cohort::launcher
