#include "cohort/launcher/control/stall_inquiries.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <unordered_set>

#include "absl/status/status.h"
#include "cohort/launcher/control/describe.h"

namespace cohort::launcher {
namespace {

// Bounds what is remembered: ranks decide how much they send.
constexpr size_t kMaxStalls = 4 << 10;

// The end of a rank that lives on, but has let go of all that belongs to the epoch.
constexpr char kStays[] = "has left for the next epoch (Runtime::NextEpoch)";

// All that is known of a member whose agent does not answer: what was told of its end.
void SetLastCall(const OperationId& operation, const v1::CallState& last, InspectedMember* member) {
  member->answered = true;
  member->call = last;
  if (!last.present()) return;
  const bool same_group = !last.message() && last.group() == operation.group && last.epoch() == operation.epoch;
  if (same_group) {
    member->call.set_sequence_seen(last.sequence() == operation.sequence);
  } else {  // what it called in this group before that is not known
    member->call.set_sequence_seen(true);
    member->call.clear_signature();
    member->call.clear_result();
  }
}

}  // namespace

void StallInquiries::OnStall(const v1::StallReport& stall) {
  if (failed_->Contains(stall.group(), stall.epoch())) return;  // its members have been told
  std::optional<std::vector<uint32_t>> members = roster_.Members(stall.members());
  if (!members.has_value()) return;
  if (stalls_.size() >= kMaxStalls) ForgetOldStalls();
  if (Stall* const known = stalls_.size() < kMaxStalls ? &stalls_[{stall.group(), stall.epoch()}] : nullptr) {
    if (known->sequence != stall.sequence()) known->verdict.reset();
    known->sequence = stall.sequence();
    known->members = *members;
    known->watched = stall.watched();
    known->at = time_.now();
  }
  const OperationId operation{stall.group(), stall.epoch(), stall.sequence(), stall.watched()};
  inspections_.Report(operation, *std::move(members), stall.expired(), time_.now());
}

// Ranks report a call that still stands still every second.
void StallInquiries::ForgetOldStalls() {
  std::erase_if(stalls_, [this](const auto& entry) { return time_.now() - entry.second.at > std::chrono::seconds(3); });
}

// No answer from the time when it lived is compared with its end: it may have completed its call in between.
void StallInquiries::AskAboutStallsWith(uint32_t rank) {
  inspections_.ForgetAnswers(rank);
  ForgetOldStalls();
  for (const auto& [group, stall] : stalls_) {
    if (!std::binary_search(stall.members.begin(), stall.members.end(), rank)) continue;
    const OperationId operation{group.first, group.second, stall.sequence, stall.watched};
    inspections_.Report(operation, stall.members, false, time_.now());
  }
}

void StallInquiries::OnTimeout(uint64_t group, uint64_t epoch) {
  const auto found = stalls_.find({group, epoch});
  if (found == stalls_.end() || failed_operations_.contains({group, epoch})) return Drop(group, epoch);
  const Stall stall = std::move(found->second);
  const OperationId operation{group, epoch, stall.sequence};
  if (stall.verdict.has_value()) failed_->Explain(group, epoch, *stall.verdict);
  if (stall.verdict.has_value()) return Drop(group, epoch);
  stalls_.erase(found);
  inspections_.DropAllBut(operation);
  inspections_.Report(operation, stall.members, /*expired=*/true, time_.now());
  failed_operations_[{group, epoch}] = operation;
}

void StallInquiries::Drop(uint64_t group, uint64_t epoch) {
  if (failed_operations_.contains({group, epoch})) return;
  stalls_.erase({group, epoch});
  inspections_.DropGroup(group, epoch);
}

void StallInquiries::Clear() {
  stalls_.clear();
  failed_operations_.clear();
  inspections_.Clear();
}

void StallInquiries::Continue(bool late_ones_too) {
  Conclude(late_ones_too);
  Start();
  Conclude(late_ones_too);
}

v1::RankSet StallInquiries::SetOf(const std::vector<uint32_t>& members) const {
  v1::RankSet set;
  if (members.size() == roster_.rank_count()) {
    set.set_everyone(true);
  } else {
    set.mutable_ranks()->Assign(members.begin(), members.end());
  }
  return set;
}

void StallInquiries::Start() {
  for (const OperationId& operation : inspections_.Due(time_.now())) {
    const std::vector<uint32_t>& members = inspections_.MembersOf(operation);
    std::unordered_set<ConnectionId> asked;
    for (uint32_t rank : members) {
      // Ended ones too: their boxes outlive them, and know more than the last call that was told of their end.
      if (const auto connection = members_.ConnectionOf(roster_.rank(rank).node)) asked.insert(*connection);
    }
    v1::ToAgent message;
    v1::InspectRequest& request = *message.mutable_inspect();
    request.set_group(operation.group);
    request.set_epoch(operation.epoch);
    request.set_sequence(operation.sequence);
    *request.mutable_members() = SetOf(members);
    request.set_request(inspections_.Begin(operation, asked, time_.now()));
    const auto shared = std::make_shared<const v1::ToAgent>(std::move(message));
    for (ConnectionId connection : asked) outbox_->Add(Send{connection, shared});
  }
}

std::vector<InspectedMember> StallInquiries::MembersOf(const Inspections::Round& round) const {
  std::vector<InspectedMember> members;
  for (uint32_t rank : round.members) {
    InspectedMember member;
    member.rank = rank;
    member.place = roster_.Place(rank);
    const std::optional<v1::RankExit>& exit = roster_.rank(rank).exit;
    const std::optional<v1::CallState>& stays = roster_.rank(rank).stays;
    if (const auto call = round.calls.find(rank); call != round.calls.end()) {
      member.answered = true;
      member.call = call->second;
    } else if (exit.has_value()) {
      SetLastCall(round.operation, exit->doing(), &member);
    } else if (stays.has_value()) {
      SetLastCall(round.operation, *stays, &member);
    }
    member.ended = exit.has_value() || stays.has_value();
    if (member.ended) member.end = exit.has_value() ? DescribeEnd(*exit) : kStays;
    members.push_back(std::move(member));
  }
  return members;
}

void StallInquiries::Fail(const Inspections::Round& round, const CallVerdict& verdict) {
  const OperationId& operation = round.operation;
  v1::GroupFailure failure;
  failure.set_group(operation.group);
  failure.set_epoch(operation.epoch);
  failure.set_code(static_cast<uint32_t>(verdict.code));
  failure.set_text(verdict.text);
  failure.set_blamed_rank(verdict.blamed_rank);
  failure.set_from_rank(-1);
  *failure.mutable_members() = SetOf(round.members);
  if (operation.watched) {
    failure.set_sequence(operation.sequence);
    failed_->Watch(std::move(failure), round.members);
    return inspections_.Drop(operation);  // it is reported again as long as it waits
  }
  if (failure.code() == static_cast<uint32_t>(absl::StatusCode::kDeadlineExceeded)) {
    failure.set_sequence(operation.sequence);  // it may be complete by now: who still waits in it will say so
    failed_->Tell(failure, round.members);
    const auto stall = stalls_.find({operation.group, operation.epoch});
    if (stall != stalls_.end() && stall->second.sequence == operation.sequence) stall->second.verdict = verdict;
    inspections_.Drop(operation);
    return;
  }
  Drop(operation.group, operation.epoch);
  failed_->Announce(std::move(failure), round.members);
}

void StallInquiries::Explain(const Inspections::Round& round) {
  const auto [group, epoch, sequence, watched] = round.operation;
  if (!round.expired) return inspections_.AskAgain(round.operation, time_.now());
  const CallComparison comparison = CompareCalls(group, epoch, sequence, MembersOf(round), OperationState::kFailed);
  if (comparison.verdict.has_value()) failed_->Explain(group, epoch, *comparison.verdict);
  failed_operations_.erase({group, epoch});
  Drop(group, epoch);
}

void StallInquiries::Conclude(const Inspections::Round& round) {
  const auto [group, epoch, sequence, watched] = round.operation;
  if (failed_operations_.contains({group, epoch})) return Explain(round);
  const std::vector<InspectedMember> members = MembersOf(round);
  const bool someone_failed = std::any_of(members.begin(), members.end(), [this](const InspectedMember& member) {
    const std::optional<v1::RankExit>& exit = roster_.rank(member.rank).exit;
    return exit.has_value() && IsFailure(*exit);
  });
  if (someone_failed) return inspections_.Drop(round.operation);  // its members have been told of that
  const OperationState over = watched ? OperationState::kWatched : OperationState::kExpired;
  const CallComparison comparison =
      CompareCalls(group, epoch, sequence, members, round.expired ? over : OperationState::kStalled);
  if (comparison.verdict.has_value()) return Fail(round, *comparison.verdict);
  if (comparison.undecided) return inspections_.AskAgain(round.operation, time_.now());
  inspections_.Drop(round.operation);
}

void StallInquiries::Conclude(bool late_ones_too) {
  for (const Inspections::Round& round : inspections_.TakeFinished(late_ones_too ? time_.now() : TimePoint::min())) {
    if (inspections_.Knows(round.operation)) Conclude(round);  // else an earlier round's verdict has ended its group
  }
}

}  // namespace cohort::launcher
