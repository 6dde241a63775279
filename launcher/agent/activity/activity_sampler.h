// Looks at processes on a thread of its own: to read the memory of one that is swapped out may block for seconds, and
// an agent that is silent for so long loses its lease.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/launcher/agent/activity/process_activity.h"
#include "cohort/launcher/base/bounded_call.h"

namespace cohort::launcher {

// All of it is called by one thread, its owner.
class ActivitySampler {
 public:
  struct Subject {
    size_t number = 0;       // of the owner
    WatchedProcess process;  // none: what was known of the one before is forgotten
    bool waits = false;      // see ProcessActivity::Look
  };
  struct Sample {
    size_t number = 0;
    ProcessActivity::State state;
  };

  // kResourceExhausted: there can't be a thread.
  static absl::StatusOr<std::unique_ptr<ActivitySampler>> Start();
  // Ends the thread. Waits for it up to `kEndsWithin`: a look that blocks is left behind, and nobody gets what it sees.
  ~ActivitySampler();
  ActivitySampler(const ActivitySampler&) = delete;
  ActivitySampler& operator=(const ActivitySampler&) = delete;

  // Begins a look at each of these. Does not block. False: the looks before are not over, and nothing is begun.
  bool Look(std::vector<Subject> subjects);
  // The samples of looks that are over, each once. At most kMostSamples are kept, and later ones are lost.
  std::vector<Sample> Take();

 private:
  static constexpr std::chrono::milliseconds kEndsWithin{20};
  static constexpr size_t kMostSamples = 4096;
  struct Shared;  // outlives this where the thread is stuck in a look

  ActivitySampler();
  static void Run(Shared* shared);

  const std::shared_ptr<Shared> shared_;
  BoundedCall looks_;
};

}  // namespace cohort::launcher
