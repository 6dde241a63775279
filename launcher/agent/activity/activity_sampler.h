// Looks at processes on a thread of its own: to read the memory of one that is swapped out may block for seconds, and
// an agent that is silent for so long loses its lease. A look that blocks for longer is left behind with its thread,
// and another thread looks at the other processes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
  // Looks once, on a thread of the sampler. It owns all that it uses.
  using LookAt = std::function<std::optional<ProcessActivity::State>(ProcessActivity& process, bool waits)>;

  // A look that takes longer counts as blocking: its process is left out until the look is over.
  static constexpr std::chrono::milliseconds kStuckAfter{1000};
  // Threads that are left behind at a time. With one more nothing is looked at until one of them comes back.
  static constexpr size_t kMostStuck = 4;

  // kResourceExhausted: there can't be a thread.
  static absl::StatusOr<std::unique_ptr<ActivitySampler>> Start(LookAt look_at = [](ProcessActivity& process,
                                                                                    bool waits) {
    return process.Look(waits);
  });
  // Ends the thread. Waits for it up to `kEndsWithin`: a look that blocks is left behind, and nobody gets what it sees.
  ~ActivitySampler();
  ActivitySampler(const ActivitySampler&) = delete;
  ActivitySampler& operator=(const ActivitySampler&) = delete;

  // Begins a look at each of these, but at those whose looks block. Does not block. False: the looks before are not
  // over, and nothing is begun.
  bool Look(std::vector<Subject> subjects);
  // The samples of looks that are over, each once. At most kMostSamples are kept, and later ones are lost.
  std::vector<Sample> Take();

 private:
  static constexpr std::chrono::milliseconds kEndsWithin{20};
  static constexpr size_t kMostSamples = 4096;
  struct Shared;  // outlives its worker where the thread is stuck in a look
  struct Worker {
    std::shared_ptr<Shared> shared;
    std::unique_ptr<BoundedCall> looks;
  };
  struct Stuck {
    Worker worker;
    Subject subject;
  };

  ActivitySampler(LookAt look_at, Worker worker);
  static absl::StatusOr<Worker> StartWorker(const LookAt& look_at);
  static void Run(Shared* shared, const LookAt& look_at);
  std::optional<Subject> FindStuck() const;
  void LeaveBehind(const Subject& subject);

  const LookAt look_at_;
  Worker worker_;
  std::vector<Stuck> stuck_;   // whose threads have not come back
  std::vector<Sample> taken_;  // of workers that were left behind
};

}  // namespace cohort::launcher
