#include "cohort/launcher/control/deadlocks.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/control/parts/rank_wait.h"

namespace cohort::launcher {

void Deadlocks::Clear() {
  waits_.clear();
  groups_.clear();
  suspects_.clear();
  awaited_.clear();
  answers_.clear();
  state_ = State::kIdle;
  news_ = false;
  ++request_;
}

void Deadlocks::OnWaits(ConnectionId from, uint32_t node, const v1::NodeWaits& waits) {
  if (waits.request() == 0) return OnReport(node, waits);
  if (waits.request() != request_ || awaited_.erase(from) == 0) return;  // too late
  for (const v1::RankWait& wait : waits.waits()) {
    if (roster_.IsOn(node, wait.rank())) answers_[wait.rank()] = {wait.number(), wait.looks()};
  }
}

void Deadlocks::OnReport(uint32_t node, const v1::NodeWaits& waits) {
  for (const v1::WaitedGroup& group : waits.groups()) {
    std::optional<std::vector<int>> members = ToMembers(group.members(), roster_.rank_count());
    if (members.has_value() && groups_.size() < kMaxGroups) groups_.emplace(group.group(), *std::move(members));
  }
  bool any = false;
  for (const v1::RankWait& wait : waits.waits()) {
    if (!roster_.IsOn(node, wait.rank()) || wait.number() == 0 || roster_.rank(wait.rank()).exit.has_value()) continue;
    any = true;
    const auto known = waits_.find(wait.rank());
    if (known != waits_.end() && known->second.number == wait.number()) continue;
    waits_[wait.rank()] = {ToRankWait(wait, static_cast<int>(node)), wait.number(), std::nullopt};
    std::erase(suspects_, wait.rank());  // the questions under way are about its earlier wait
  }
  if (any) GatherSoon();
}

void Deadlocks::GatherSoon() {
  if (state_ != State::kIdle) {
    news_ = state_ != State::kGathering;
    return;
  }
  state_ = State::kGathering;
  due_ = time_.now() + kGather;
}

std::optional<TimePoint> Deadlocks::NextDue() const {
  if (state_ == State::kIdle) return std::nullopt;
  const bool asked = state_ == State::kFirstQuestion || state_ == State::kSecondQuestion;
  return asked && awaited_.empty() ? TimePoint::min() : due_;
}

void Deadlocks::Continue(bool late_ones_too) {
  const bool over = time_.now() >= due_;
  switch (state_) {
    case State::kIdle:
      return;
    case State::kGathering:
      if (over && late_ones_too) Search();
      return;
    case State::kPausing:
      if (over && late_ones_too) Ask(State::kSecondQuestion);
      return;
    case State::kFirstQuestion:
      if (awaited_.empty() || (over && late_ones_too)) OnFirstAnswers();
      return;
    case State::kSecondQuestion:
      if (awaited_.empty() || (over && late_ones_too)) OnSecondAnswers();
      return;
  }
}

std::vector<runtime::Deadlock> Deadlocks::Find(const std::vector<uint32_t>& ranks) const {
  std::vector<runtime::RankWait> waits;
  for (const uint32_t rank : ranks) {
    if (const auto known = waits_.find(rank); known != waits_.end()) waits.push_back(known->second.wait);
  }
  return runtime::FindDeadlocks(waits, groups_);
}

void Deadlocks::Search() {
  std::erase_if(waits_, [this](const auto& entry) {
    return roster_.rank(entry.first).exit.has_value() || roster_.rank(entry.first).stays.has_value();
  });
  std::vector<uint32_t> all;
  for (const auto& [rank, known] : waits_) all.push_back(rank);
  suspects_.clear();
  for (const runtime::Deadlock& deadlock : Find(all)) {
    suspects_.insert(suspects_.end(), deadlock.ranks.begin(), deadlock.ranks.end());
    if (ShareFirstAnswer(deadlock)) continue;
    pause_ = kPause;
    for (const int rank : deadlock.ranks) waits_.at(static_cast<uint32_t>(rank)).first.reset();
  }
  news_ = false;
  if (suspects_.empty()) {
    state_ = State::kIdle;
    return;
  }
  Ask(State::kFirstQuestion);
}

// Whether these waits were already found to be a deadlock, and the same question counts as the first for all of them.
bool Deadlocks::ShareFirstAnswer(const runtime::Deadlock& deadlock) const {
  const std::optional<FirstAnswer>& one = waits_.at(static_cast<uint32_t>(deadlock.ranks[0])).first;
  return one.has_value() && std::all_of(deadlock.ranks.begin(), deadlock.ranks.end(), [&](int rank) {
           const std::optional<FirstAnswer>& other = waits_.at(static_cast<uint32_t>(rank)).first;
           return other.has_value() && other->request == one->request;
         });
}

void Deadlocks::Ask(State state) {
  state_ = state;
  due_ = time_.now() + kReplyTimeout;
  ++request_;
  answers_.clear();
  awaited_.clear();
  v1::ToAgent message;
  message.mutable_waits()->set_request(request_);
  std::set<uint32_t> nodes;
  for (const uint32_t rank : suspects_) {
    message.mutable_waits()->add_ranks(rank);
    nodes.insert(roster_.rank(rank).node);
  }
  const auto shared = std::make_shared<const v1::ToAgent>(std::move(message));
  for (const uint32_t node : nodes) {
    const std::optional<ConnectionId> connection = members_.ConnectionOf(node);
    if (!connection.has_value()) continue;
    awaited_.insert(*connection);
    outbox_->Add(Send{*connection, shared});
  }
}

std::vector<uint32_t> Deadlocks::StillWaiting() {
  std::vector<uint32_t> same;
  for (const uint32_t rank : suspects_) {
    const auto known = waits_.find(rank);
    if (known == waits_.end()) continue;
    const auto answer = answers_.find(rank);
    const std::optional<ConnectionId> connection = members_.ConnectionOf(roster_.rank(rank).node);
    const bool silent = !connection.has_value() || awaited_.contains(*connection);
    if (answer != answers_.end() && answer->second.number == known->second.number) {
      same.push_back(rank);
    } else if (!silent) {
      waits_.erase(known);
    }
  }
  return same;
}

void Deadlocks::OnFirstAnswers() {
  suspects_ = StillWaiting();
  for (const uint32_t rank : suspects_) {
    std::optional<FirstAnswer>& first = waits_.at(rank).first;
    if (!first.has_value()) first = {request_, answers_.at(rank).looks};
  }
  if (Find(suspects_).empty()) {
    state_ = State::kIdle;
    return GatherSoon();
  }
  state_ = State::kPausing;
  due_ = time_.now() + pause_;
}

bool Deadlocks::HasLookedSince(uint32_t rank) const {
  const std::optional<FirstAnswer>& first = waits_.at(rank).first;
  return first.has_value() && answers_.at(rank).looks >= first->looks + kLooks;
}

void Deadlocks::OnSecondAnswers() {
  suspects_ = StillWaiting();
  std::vector<uint32_t> looked;
  std::copy_if(suspects_.begin(), suspects_.end(), std::back_inserter(looked),
               [this](uint32_t rank) { return HasLookedSince(rank); });
  for (const runtime::Deadlock& deadlock : Find(looked)) {
    Declare(deadlock);
    for (const int rank : deadlock.ranks) {
      waits_.erase(static_cast<uint32_t>(rank));
      std::erase(suspects_, static_cast<uint32_t>(rank));
    }
  }
  if (news_ || Find(suspects_).empty()) {  // with the waits of agents that have not answered in time
    state_ = State::kIdle;
    return GatherSoon();
  }
  state_ = State::kPausing;  // some have not looked at everything since: the machine is busy, or they are stopped
  due_ = time_.now() + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
}

void Deadlocks::Declare(const runtime::Deadlock& deadlock) {
  for (const runtime::Deadlock::BrokenGroup& broken : deadlock.groups) {
    if (failed_->Contains(broken.group, broken.epoch)) continue;
    v1::GroupFailure failure;
    failure.set_group(broken.group);
    failure.set_epoch(broken.epoch);
    failure.set_code(static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition));
    failure.set_text(deadlock.text);
    failure.set_blamed_rank(-1);
    failure.set_from_rank(-1);
    std::vector<uint32_t> members;
    if (const auto known = groups_.find(broken.group); known != groups_.end()) {
      members.assign(known->second.begin(), known->second.end());
    } else {
      members.assign(deadlock.ranks.begin(), deadlock.ranks.end());
    }
    std::sort(members.begin(), members.end());
    if (members.size() == roster_.rank_count()) {
      failure.mutable_members()->set_everyone(true);
    } else {
      failure.mutable_members()->mutable_ranks()->Assign(members.begin(), members.end());
    }
    stalls_->Drop(broken.group, broken.epoch);
    failed_->Announce(std::move(failure), std::move(members));
  }
}

}  // namespace cohort::launcher
