// A verdict in words. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/launcher/trace/rank_activity.h"
#include "cohort/launcher/verdict/verdict.h"

namespace cohort::launcher {

// The cause first, then where it was, what the rank did meanwhile, how sure that is, what to do, and the steps. Ranks
// that have not joined are named with what their processes do, and nothing else is said. Text that came from ranks has
// its control characters escaped. Like
//
//   step 37 took 412 ms, usually 120 ms: ranks 0,1,3 waited 290 ms for rank 2 (node1)
//     where: before all_reduce(sum, float32, 1024) at train.cc:88, after train.cc:80
//     meanwhile: it read (read of /data/shard-17) for 288 ms, at /x/train.py:30 in load
//     sure: 97 % of the rank, 95 % of the reason
//     to do: faster storage, a copy on a local disk, or more workers that read ahead
//   58 steps, found by the calls that repeat; 3 slow, by 620 ms together: rank 2 in 12, 37; no rank for sure in 44
std::vector<std::string> VerdictLines(const Verdict& verdict);

// The name in JSON: "slow step", "every step", "waits now", "all of it", "nothing".
std::string_view KindName(Verdict::Kind kind);

// The remedy against a rank that does that.
std::string_view RemedyFor(Activity activity);

// "412 ms", "1.93 s", "85 us".
std::string TimeText(uint64_t ns);

}  // namespace cohort::launcher
