// The order to a rank to end.
#pragma once

namespace cohort::launcher {

enum class RankEnding {
  kNone,     // nobody wants it to end
  kDecided,  // SIGTERM is decided, and held back; or the rank has ended by itself before it came
  kAsked,    // SIGTERM was the first signal that it was sent to end; it has time
  kKilled,   // SIGKILL was
};

// Whether an order may go on from `from` to `to`:
//   none    -> decided, killed
//   decided -> asked, killed
constexpr bool MayFollow(RankEnding from, RankEnding to) {
  switch (to) {
    case RankEnding::kNone:
      return false;
    case RankEnding::kDecided:
      return from == RankEnding::kNone;
    case RankEnding::kAsked:
      return from == RankEnding::kDecided;
    case RankEnding::kKilled:
      return from == RankEnding::kNone || from == RankEnding::kDecided;
  }
  return false;
}

}  // namespace cohort::launcher
