#include "cohort/launcher/control/failed_groups.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/status/status.h"

namespace cohort::launcher {
namespace {

// Bounds on what is remembered: ranks decide how much they send.
constexpr size_t kMaxFailures = 16 << 10;
constexpr size_t kMaxFailedGroups = 64 << 10;
constexpr size_t kMaxFailureText = 16 << 10;

}  // namespace

bool FailedGroups::OnReport(uint32_t node, const v1::GroupFailure& failure) {
  std::optional<std::vector<uint32_t>> members = roster_->Members(failure.members());
  const int64_t from = failure.from_rank();
  if (!members.has_value() || (from >= 0 && !roster_->IsOn(node, static_cast<uint32_t>(from)))) return false;
  if (failure.code() == 0 || failure.blamed_rank() >= static_cast<int64_t>(roster_->rank_count())) return false;
  v1::GroupFailure said = failure;
  said.clear_sequence();
  if (said.text().empty()) said.set_text("a group of ranks has failed, and no reason was given");
  if (said.text().size() > kMaxFailureText) said.mutable_text()->resize(kMaxFailureText);
  if (!Contains(failure.group(), failure.epoch())) {
    Announce(std::move(said), *std::move(members));
  } else if (failures_.size() < kMaxFailures && !IsVerdict(failure)) {
    // It is too late to be announced, but it may tell who failed whom.
    failures_.push_back({std::move(said), *std::move(members), false, true, time_.now()});
  }
  return true;
}

void FailedGroups::Announce(v1::GroupFailure failure, std::vector<uint32_t> members) {
  if (announced_.size() >= kMaxFailedGroups) return;
  announced_.insert({failure.group(), failure.epoch()});
  bool told = false;
  if (failure.from_rank() >= 0) {
    const auto& told_at = roster_->node_of(static_cast<uint32_t>(failure.from_rank())).latest_told;
    told = told_at.has_value() && time_.now() - *told_at < kConsequenceTime;
  }
  for (const uint32_t node : Tell(failure, members)) roster_->node(node).latest_told = time_.now();
  if (failures_.size() < kMaxFailures) {
    failures_.push_back({std::move(failure), std::move(members), true, told, time_.now()});
  }
}

void FailedGroups::Watch(v1::GroupFailure failure, std::vector<uint32_t> members) {
  failure.set_watched(true);
  const auto same_group = [&failure](const ReportedFailure& known) {
    return known.failure.watched() && known.failure.group() == failure.group() &&
           known.failure.epoch() == failure.epoch();
  };
  auto known = std::find_if(failures_.begin(), failures_.end(), same_group);
  const bool is_news = known == failures_.end() || known->failure.sequence() != failure.sequence() ||
                       known->failure.code() != failure.code();
  // That others have not come yet is no news, since they may be late.
  if (is_news && failure.code() != static_cast<uint32_t>(absl::StatusCode::kDeadlineExceeded) && !members.empty()) {
    Tell(failure, {members[0]});
  }
  if (known != failures_.end()) {
    known->failure = std::move(failure);
    if (is_news) known->at = time_.now();
  } else if (failures_.size() < kMaxFailures) {
    failures_.push_back({std::move(failure), std::move(members), true, false, time_.now()});
  }
}

std::vector<uint32_t> FailedGroups::Tell(const v1::GroupFailure& failure, const std::vector<uint32_t>& members) {
  std::vector<bool> on_node(roster_->node_count());
  for (uint32_t rank : members) on_node[roster_->rank(rank).node] = true;
  std::vector<uint32_t> nodes;
  for (uint32_t node = 0; node < roster_->node_count(); ++node) {
    if (on_node[node] && !roster_->node(node).lost) nodes.push_back(node);
  }
  v1::ToAgent message;
  *message.mutable_group_failure() = failure;
  outbox_->SendToNodes(nodes, std::move(message));
  return nodes;
}

void FailedGroups::Explain(uint64_t group, uint64_t epoch, const CallVerdict& verdict) {
  for (ReportedFailure& failure : failures_) {
    v1::GroupFailure& said = failure.failure;
    if (!failure.announced || said.group() != group || said.epoch() != epoch) continue;
    said.set_code(static_cast<uint32_t>(verdict.code));
    said.set_text(verdict.text);
    said.set_blamed_rank(verdict.blamed_rank);
  }
}

void FailedGroups::Clear() {
  failures_.clear();
  announced_.clear();
}

}  // namespace cohort::launcher
