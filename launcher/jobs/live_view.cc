#include "cohort/launcher/jobs/live_view.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cohort::launcher {
namespace {

void Cut(std::string* text, size_t most) {
  if (text->size() > most) text->resize(most);
}

const v1::RankView* FindRank(const v1::NodeView& view, uint32_t rank) {
  for (const v1::RankView& one : view.ranks()) {
    if (one.rank() == rank) return &one;
  }
  return nullptr;
}

}  // namespace

void LiveView::Refresh(const JobMembers& members, TimePoint now) {
  if (look_ > 0 && now - asked_at_ < kMinInterval) return;
  if (counted_ < look_) CountWaits(asked_at_);  // of an agent that did not answer nothing is known
  asked_at_ = now;
  ++look_;
  asked_ = *members.agents;
  world_size_ = 0;
  for (const v1::NodePlacement& node : *members.nodes) world_size_ += static_cast<uint32_t>(node.ranks_size());
  for (const size_t agent : *members.agents) ask_(agent, look_);
}

void LiveView::OnView(size_t agent, const v1::NodeView& view, TimePoint now) {
  if (view.look() == 0 || view.look() > look_) return;
  Latest& latest = latest_[agent];
  latest.view = view;
  latest.at = now;
  for (v1::RankView& rank : *latest.view.mutable_ranks()) {
    Cut(rank.mutable_doing()->mutable_call(), kMaxCall);
    Cut(rank.mutable_doing()->mutable_site(), kMaxCall);
  }
  const bool all = std::all_of(asked_.begin(), asked_.end(), [this](size_t asked) {
    const auto found = latest_.find(asked);
    return found != latest_.end() && found->second.view.look() == look_;
  });
  if (all && counted_ < look_) CountWaits(now);
  if (counted_ == look_) DropWaits(&latest.view);  // it comes too late to be counted
}

void LiveView::DropWaits(v1::NodeView* view) {
  view->clear_groups();
  for (v1::RankView& rank : *view->mutable_ranks()) rank.clear_wait();
}

bool LiveView::KeepsWaits() const {
  return std::any_of(latest_.begin(), latest_.end(), [](const auto& entry) {
    const v1::NodeView& view = entry.second.view;
    return !view.groups().empty() || std::any_of(view.ranks().begin(), view.ranks().end(),
                                                 [](const v1::RankView& rank) { return rank.has_wait(); });
  });
}

void LiveView::CountWaits(TimePoint now) {
  counted_ = look_;
  std::vector<const v1::NodeView*> views;
  for (const size_t agent : asked_) {
    const auto found = latest_.find(agent);
    const bool answered = found != latest_.end() && found->second.view.look() == look_;
    views.push_back(answered ? &found->second.view : nullptr);
  }
  tally_.Count(views, world_size_, now);
  for (auto& [agent, latest] : latest_) DropWaits(&latest.view);
}

void LiveView::AddRanks(const JobMembers& members, uint32_t first_rank, size_t max_bytes, TimePoint now,
                        v1::JobSnapshot* snapshot) const {
  constexpr size_t kFraming = 8;
  size_t bytes = 0;
  for (size_t node = 0; node < members.nodes->size(); ++node) {
    const auto latest = latest_.find((*members.agents)[node]);
    for (const v1::RankPlacement& placed : (*members.nodes)[node].ranks()) {
      if (placed.rank() < first_rank) continue;
      v1::JobRank rank;
      rank.set_node(static_cast<uint32_t>(node));
      const v1::RankView* const view = latest == latest_.end() ? nullptr : FindRank(latest->second.view, placed.rank());
      if (view != nullptr) {
        *rank.mutable_view() = *view;
        rank.mutable_view()->clear_wait();  // it may not be counted yet
        rank.set_waiting_for(static_cast<uint32_t>(tally_.WaitingFor(placed.rank())));
        rank.set_waited_for_ms(static_cast<uint64_t>(tally_.WaitedFor(placed.rank()).count()));
        rank.set_known(true);
        const auto ago = std::chrono::duration_cast<std::chrono::milliseconds>(now - latest->second.at);
        rank.set_ago_ms(static_cast<uint64_t>(std::max<int64_t>(0, ago.count())));
      }
      rank.mutable_view()->set_rank(placed.rank());
      bytes += rank.ByteSizeLong() + kFraming;
      if (bytes > max_bytes && !snapshot->ranks().empty()) return;
      *snapshot->add_ranks() = std::move(rank);
    }
  }
}

}  // namespace cohort::launcher
