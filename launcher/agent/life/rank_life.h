// The life of a rank's process, as its supervisor counts it.
#pragma once

namespace cohort::launcher {

enum class RankLife {
  kNone,      // no process yet
  kStarting,  // forked; whether its program runs is not known yet
  kRunning,
  kStaying,   // has left the epoch, and waits for the next
  kReported,  // its end is reported, or that it could not be started; the process is not reaped yet
  kReaped,    // the process is gone; its end is not reported yet, while others start or what it left behind lives
  kGone,      // there is no process of it, and nothing more to report
};

// Whether a rank may go from `from` to `to`:
//   none     -> starting, running (its process was kept from the epoch before), gone (could not be forked)
//   starting -> running, reported (could not be executed), reaped
//   running  -> staying, reported, reaped, gone (killed at the epoch's end)
//   staying  -> reported, reaped, gone (the next epoch takes it over)
//   reported -> gone
//   reaped   -> gone
constexpr bool MayFollow(RankLife from, RankLife to) {
  switch (to) {
    case RankLife::kNone:
      return false;
    case RankLife::kStarting:
      return from == RankLife::kNone;
    case RankLife::kRunning:
      return from == RankLife::kNone || from == RankLife::kStarting;
    case RankLife::kStaying:
      return from == RankLife::kRunning;
    case RankLife::kReported:
    case RankLife::kReaped:
      return from == RankLife::kStarting || from == RankLife::kRunning || from == RankLife::kStaying;
    case RankLife::kGone:
      return from != RankLife::kStarting && from != RankLife::kGone;
  }
  return false;
}

// Whether there is a process that is not reaped.
constexpr bool HasProcess(RankLife life) {
  return life == RankLife::kStarting || life == RankLife::kRunning || life == RankLife::kStaying ||
         life == RankLife::kReported;
}

}  // namespace cohort::launcher
