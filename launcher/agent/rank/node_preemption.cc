#include "cohort/launcher/agent/rank/node_preemption.h"

#include <algorithm>
#include <utility>

namespace cohort::launcher {

bool NodePreemption::OnWish(int local_rank) {
  ranks_[static_cast<size_t>(local_rank)].wished = true;
  return !std::exchange(any_wished_, true);
}

void NodePreemption::OnStep(int local_rank, uint64_t step) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  if (answered_ || std::exchange(rank.counted, true)) return;
  answer_.set_step(std::max(answer_.step(), step));
}

void NodePreemption::OnJoin(int local_rank) {
  if (!answered_) ranks_[static_cast<size_t>(local_rank)] = {};
}

void NodePreemption::OnEnd(int local_rank, bool in_order) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  if (answered_ || std::exchange(rank.counted, true)) return;
  rank.left = in_order;
}

std::optional<v1::NodeStep> NodePreemption::TakeAnswer() {
  const bool all = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.counted; });
  if (!notice_.has_value() || !all || std::exchange(answered_, true)) return std::nullopt;
  answer_.set_left(std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.left; }));
  return answer_;
}

bool NodePreemption::OnPreempted() { return !std::exchange(preempted_, true); }

}  // namespace cohort::launcher
