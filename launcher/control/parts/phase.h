// The phases of a job, as its rendezvous counts them.
#pragma once

namespace cohort::launcher {

enum class Phase {
  kGathering,  // not every planned node has joined
  kRunning,    // the ranks of an epoch run
  kStopping,   // the agents have been told to end them
  kPausing,    // the epoch has failed, and another will follow
  kFinished,
};

// Whether a job may go from `from` to `to`:
//   gathering -> running, finished
//   running   -> stopping, pausing, finished
//   stopping  -> pausing, finished
//   pausing   -> running, finished
constexpr bool MayFollow(Phase from, Phase to) {
  switch (to) {
    case Phase::kGathering:
      return false;
    case Phase::kRunning:
      return from == Phase::kGathering || from == Phase::kPausing;
    case Phase::kStopping:
      return from == Phase::kRunning;
    case Phase::kPausing:
      return from == Phase::kRunning || from == Phase::kStopping;
    case Phase::kFinished:
      return from != Phase::kFinished;
  }
  return false;
}

}  // namespace cohort::launcher
