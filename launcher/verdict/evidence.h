// All that is known of a job's time, prepared for the parts of a verdict. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cohort/launcher/verdict/critical_path.h"
#include "cohort/launcher/verdict/history.h"
#include "cohort/launcher/verdict/reason.h"
#include "cohort/launcher/verdict/steps.h"
#include "cohort/launcher/verdict/timelines.h"
#include "cohort/launcher/verdict/usual_times.h"
#include "cohort/launcher/verdict/verdict.h"

namespace cohort::launcher {

// Shorter waits are none.
inline constexpr uint64_t kLeastWaitNs = 2'000;

struct Evidence {
  explicit Evidence(const History& history);
  Evidence(const Evidence&) = delete;
  Evidence& operator=(const Evidence&) = delete;

  const std::vector<PlacedCall>& LineOf(uint32_t rank) const { return timelines.ranks.at(rank); }
  std::string NodeOf(uint32_t rank) const;
  // The critical path of a step, an index of Steps::all: from the rank that ends it last.
  std::vector<PathPiece> PathOf(size_t step) const;
  // Names the call of that index as the one before which, or in which, time was lost.
  void Name(uint32_t rank, size_t call, Culprit* culprit) const;
  // Names those that were blocked in these spans for at least a tenth of them, but the culprits.
  void NameWaiting(const std::vector<Span>& spans, Culprit* culprit) const;
  // In a call that itself took long: the rank that was held up in these spans, with the reason, or the nodes between
  // which the call was.
  Culprit BlameCall(const std::vector<CallName>& members, const std::vector<Span>& spans) const;

  std::vector<std::string> nodes;
  std::map<uint32_t, size_t> node_of;         // the node of each rank that has a call or a state
  std::map<uint32_t, UnjoinedRank> unjoined;  // other ranks, which have not joined
  Timelines timelines;
  Steps steps;
  CriticalPath path;
  RankDoings doings;
  UsualTimes usual;
};

// The time that the spans have together.
uint64_t LengthOf(const std::vector<Span>& spans);

}  // namespace cohort::launcher
