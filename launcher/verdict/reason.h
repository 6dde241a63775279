// Why a rank took its time, from the states that its agent has seen. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/launcher/trace/rank_activity.h"
#include "cohort/launcher/verdict/timelines.h"

namespace cohort::launcher {

// The activities of a rank in a time.
struct Doings {
  std::array<double, kActivities> ns{};  // by activity
  double seen_ns = 0;                    // of the time, in which it was looked at
  double asked_ns = 0;                   // all of it
  // By activity: how long each object and each place was seen.
  std::array<std::map<std::string, double>, kActivities> objects;
  std::array<std::map<std::string, double>, kActivities> places;

  double of(Activity activity) const { return ns[static_cast<size_t>(activity)]; }
  // The time for which something else than the program kept it from running: stopped, throttled, swapped, no CPU.
  double held_up_ns() const;
};

class RankDoings {
 public:
  explicit RankDoings(const std::vector<RankState>& states);

  // In these spans, which do not overlap. The kernel counts the times on a CPU and waiting for one; what is left is
  // shared by the states in which it was seen otherwise.
  Doings In(uint32_t rank, const std::vector<Span>& spans) const;

  // The latest moment at which any rank was looked at; 0: none was.
  uint64_t latest_ns() const { return latest_ns_; }

 private:
  std::map<uint32_t, std::vector<const RankState*>> states_;  // by time
  uint64_t latest_ns_ = 0;
};

struct Reason {
  Activity activity = Activity::kUnknown;
  std::string object;  // "read of /data/x"; empty: not known, or nothing
  std::string place;   // the Python line; empty: not known
  double ns = 0;       // spent so, beyond the usual
  double seen = 0;     // the part of the time in which it was looked at
  double sure = 0;     // 0 to 1
};

// The activity that took the time beyond the usual: `usual` is what the rank, or others, do in such a time.
Reason FindReason(const Doings& doings, const Doings& usual);

}  // namespace cohort::launcher
