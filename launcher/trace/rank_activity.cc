#include "cohort/launcher/trace/rank_activity.h"

#include <algorithm>
#include <iterator>

namespace cohort::launcher {
namespace {

// Index: the number of the activity.
constexpr std::string_view kNames[] = {"is in an unknown state",
                                       "computes",
                                       "collects garbage",
                                       "reads",
                                       "writes",
                                       "waits for a lock",
                                       "waits for a process",
                                       "sleeps",
                                       "is in the kernel",
                                       "is stopped",
                                       "is held by a debugger",
                                       "swaps",
                                       "is throttled",
                                       "waits for a CPU"};
static_assert(std::size(kNames) == kActivities);

}  // namespace

std::string_view ActivityName(Activity activity) { return kNames[static_cast<size_t>(activity)]; }

std::optional<Activity> ActivityOfName(std::string_view name) {
  const auto* const found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) return std::nullopt;
  return static_cast<Activity>(found - std::begin(kNames));
}

// A number of a later version names nothing here.
Activity RankState::activity() const {
  return shape->activity() < kActivities ? static_cast<Activity>(shape->activity()) : Activity::kUnknown;
}

}  // namespace cohort::launcher
