// The output and input of a node's ranks.
#pragma once

#include <utility>

#include "cohort/launcher/agent/life/supervised_rank.h"
#include "cohort/launcher/agent/rank/rank_input.h"
#include "cohort/launcher/agent/rank/rank_output.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RankStreams {
 public:
  explicit RankStreams(SupervisedRanks* ranks) : ranks_(ranks) {}

  // For all ranks. `want`: how much rank 0 reads, where it gets dlaunch's standard input.
  void SetUp(RankOutput::Options options, RankInput::Want want) {
    options_ = std::move(options);
    want_ = std::move(want);
  }
  // The rank's program runs.
  void Begin(SupervisedRank* rank) { rank->Begin(options_, paused_, want_); }

  // Stops reading what ranks print, so that they block in time, and starts again.
  void Pause();
  void Resume();
  // Whether it was stopped all the time since the last call.
  bool TakeUnread() { return std::exchange(unread_, paused_); }
  // Passes on what is left in the pipes, unfinished lines too: after the last process that could write has gone.
  void Drain();
  // For the rank that wants input; dropped where there is none.
  void TakeInput(const v1::StandardInput& input);

 private:
  SupervisedRanks* const ranks_;
  RankOutput::Options options_;
  RankInput::Want want_;
  bool paused_ = false;
  bool unread_ = false;  // all the time since the last look
};

}  // namespace cohort::launcher
