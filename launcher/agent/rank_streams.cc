#include "cohort/launcher/agent/rank_streams.h"

namespace cohort::launcher {

void RankStreams::Pause() {
  paused_ = true;
  for (const SupervisedRank& rank : *ranks_) {
    if (rank.handle().output() != nullptr) rank.handle().output()->Pause();
  }
}

void RankStreams::Resume() {
  paused_ = unread_ = false;
  for (const SupervisedRank& rank : *ranks_) {
    if (rank.handle().output() != nullptr) rank.handle().output()->Resume();
  }
}

void RankStreams::Drain() {
  for (const SupervisedRank& rank : *ranks_) {
    if (rank.handle().output() != nullptr) rank.handle().output()->Drain(true);
  }
}

void RankStreams::TakeInput(const v1::StandardInput& input) {
  for (const SupervisedRank& rank : *ranks_) {
    if (rank.handle().input() != nullptr) rank.handle().input()->Take(input.bytes(), input.end());
  }
}

}  // namespace cohort::launcher
