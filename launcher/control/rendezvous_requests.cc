// The part of the rendezvous that answers what ranks ask: the key-value store, stalled operations, failed groups.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <unordered_set>
#include <utility>

#include "cohort/launcher/control/call_comparison.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/control/rendezvous_machine.h"

namespace cohort::launcher {
namespace {

// Bounds on what is remembered: ranks decide how much they send.
constexpr size_t kMaxFailures = 16 << 10;
constexpr size_t kMaxFailedGroups = 64 << 10;
constexpr size_t kMaxStalls = 4 << 10;
constexpr size_t kMaxFailureText = 16 << 10;

}  // namespace

void Rendezvous::Machine::OnPut(ConnectionId from, const v1::PutRequest& put) {
  std::vector<KeyValueStore::Waiter> answered;
  v1::ToAgent reply;
  reply.mutable_put()->set_request(put.request());
  reply.mutable_put()->set_error(store_.Put(put.key(), put.value(), &answered));
  SendTo(from, std::move(reply));
  for (const KeyValueStore::Waiter& waiter : answered) {
    v1::ToAgent answer;
    answer.mutable_get()->set_request(waiter.request);
    answer.mutable_get()->set_found(true);
    answer.mutable_get()->set_value(put.value());
    SendTo(waiter.connection, std::move(answer));
  }
}

void Rendezvous::Machine::OnGet(ConnectionId from, const v1::GetRequest& get) {
  bool refused = false;
  const std::string* value =
      store_.Get(get.key(), {from, get.request()}, now_, now_ + std::chrono::milliseconds(get.timeout_ms()), &refused);
  if (value == nullptr && !refused) return;  // answered later
  v1::ToAgent reply;
  reply.mutable_get()->set_request(get.request());
  reply.mutable_get()->set_found(value != nullptr);
  if (value != nullptr) reply.mutable_get()->set_value(*value);
  SendTo(from, std::move(reply));
}

void Rendezvous::Machine::OnStall(const v1::StallReport& stall) {
  if (failed_groups_.count({stall.group(), stall.epoch()}) > 0) return;  // its members have been told
  std::optional<std::vector<uint32_t>> members = roster_.Members(stall.members());
  if (!members.has_value()) return;
  if (stalls_.size() >= kMaxStalls) ForgetOldStalls();
  if (stalls_.size() < kMaxStalls) stalls_[{stall.group(), stall.epoch()}] = {stall.sequence(), *members, now_};
  inspections_.Report({stall.group(), stall.epoch(), stall.sequence()}, *std::move(members), stall.expired(), now_);
}

// Ranks report a call that still stands still every second.
void Rendezvous::Machine::ForgetOldStalls() {
  std::erase_if(stalls_, [this](const auto& entry) { return now_ - entry.second.at > std::chrono::seconds(3); });
}

// Whoever waits for a rank that has ended in order, or left for the next epoch, need not wait until they report again.
// And no answer of the time when it lived is compared with its end: it may have completed its call in between.
void Rendezvous::Machine::AskAboutStallsWith(uint32_t rank) {
  inspections_.ForgetAnswers(rank);
  ForgetOldStalls();
  for (const auto& [group, stall] : stalls_) {
    if (!std::binary_search(stall.members.begin(), stall.members.end(), rank)) continue;
    inspections_.Report({group.first, group.second, stall.sequence}, stall.members, false, now_);
  }
}

void Rendezvous::Machine::OnGroupFailure(uint32_t node, const v1::GroupFailure& failure) {
  std::optional<std::vector<uint32_t>> members = roster_.Members(failure.members());
  const int64_t from = failure.from_rank();
  if (!members.has_value() || (from >= 0 && !IsOn(node, static_cast<uint32_t>(from)))) return;
  if (failure.code() == 0 || failure.blamed_rank() >= static_cast<int64_t>(roster_.rank_count())) return;
  v1::GroupFailure said = failure;
  said.clear_sequence();
  if (said.text().empty()) said.set_text("a group of ranks has failed, and no reason was given");
  if (said.text().size() > kMaxFailureText) said.mutable_text()->resize(kMaxFailureText);
  if (failed_groups_.count({failure.group(), failure.epoch()}) == 0) {
    AnnounceFailure(std::move(said), *std::move(members));
  } else if (failures_.size() < kMaxFailures &&
             !IsVerdict(failure)) {  // too late to be announced, but it may tell who failed whom
    failures_.push_back({std::move(said), *std::move(members), false, true, now_});
  }
}

void Rendezvous::Machine::AnnounceFailure(v1::GroupFailure failure, std::vector<uint32_t> members) {
  stalls_.erase({failure.group(), failure.epoch()});
  inspections_.DropGroup(failure.group(), failure.epoch());
  if (failed_groups_.size() >= kMaxFailedGroups) return;
  failed_groups_.insert({failure.group(), failure.epoch()});
  bool told = false;
  if (failure.from_rank() >= 0) {
    const auto& told_at = roster_.node_of(static_cast<uint32_t>(failure.from_rank())).latest_told;
    told = told_at.has_value() && now_ - *told_at < kConsequenceTime;
  }
  for (const uint32_t node : TellMembers(failure, members)) MarkTold(node);
  if (failures_.size() < kMaxFailures) failures_.push_back({std::move(failure), std::move(members), true, told, now_});
}

// Returns the nodes that were told.
std::vector<uint32_t> Rendezvous::Machine::TellMembers(const v1::GroupFailure& failure,
                                                       const std::vector<uint32_t>& members) {
  v1::ToAgent message;
  *message.mutable_group_failure() = failure;
  const auto shared = std::make_shared<const v1::ToAgent>(std::move(message));
  std::vector<bool> on_node(roster_.node_count());
  for (uint32_t rank : members) on_node[roster_.rank(rank).node] = true;
  std::vector<uint32_t> told;
  for (uint32_t node = 0; node < roster_.node_count(); ++node) {
    if (!on_node[node] || !connection_of_[node].has_value()) continue;
    actions_.emplace_back(Send{*connection_of_[node], shared});
    told.push_back(node);
  }
  return told;
}

void Rendezvous::Machine::StartInspections() {
  for (const OperationId& operation : inspections_.Due(now_)) {
    const std::vector<uint32_t>& members = inspections_.MembersOf(operation);
    std::unordered_set<ConnectionId> asked;
    for (uint32_t rank : members) {
      const Roster::Rank& entry = roster_.rank(rank);
      // Ended ones too: their boxes outlive them, and know more than the last call that was told of their end.
      if (connection_of_[entry.node].has_value()) asked.insert(*connection_of_[entry.node]);
    }
    v1::ToAgent message;
    v1::InspectRequest& request = *message.mutable_inspect();
    request.set_group(operation.group);
    request.set_epoch(operation.epoch);
    request.set_sequence(operation.sequence);
    if (members.size() == roster_.rank_count()) {
      request.mutable_members()->set_everyone(true);
    } else {
      request.mutable_members()->mutable_ranks()->Assign(members.begin(), members.end());
    }
    request.set_request(inspections_.Begin(operation, asked, now_));
    const auto shared = std::make_shared<const v1::ToAgent>(std::move(message));
    for (ConnectionId connection : asked) actions_.emplace_back(Send{connection, shared});
  }
}

namespace {

// Of a rank that lives on, but has let go of all that belongs to the epoch.
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
  }
}

}  // namespace

std::vector<InspectedMember> Rendezvous::Machine::MembersOf(const Inspections::Round& round) const {
  std::vector<InspectedMember> members;
  for (uint32_t rank : round.members) {
    InspectedMember member;
    member.rank = rank;
    member.node = roster_.node_of(rank).name;
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

void Rendezvous::Machine::ConcludeInspections(bool late_ones_too) {
  for (const Inspections::Round& round : inspections_.TakeFinished(late_ones_too ? now_ : TimePoint::min())) {
    const auto [group, epoch, sequence] = round.operation;
    if (!inspections_.Knows(round.operation)) continue;  // an earlier round's verdict has ended its group
    const std::vector<InspectedMember> members = MembersOf(round);
    const bool someone_failed = std::any_of(members.begin(), members.end(), [this](const InspectedMember& member) {
      const std::optional<v1::RankExit>& exit = roster_.rank(member.rank).exit;
      return exit.has_value() && IsFailure(*exit);
    });
    if (someone_failed) {  // its members have been told of that
      inspections_.Drop(round.operation);
      continue;
    }
    CallComparison comparison = CompareCalls(group, epoch, sequence, members, round.expired);
    if (comparison.verdict.has_value()) {
      v1::GroupFailure failure;
      failure.set_group(group);
      failure.set_epoch(epoch);
      failure.set_code(static_cast<uint32_t>(comparison.verdict->code));
      failure.set_text(comparison.verdict->text);
      failure.set_blamed_rank(comparison.verdict->blamed_rank);
      failure.set_from_rank(-1);
      if (round.members.size() == roster_.rank_count()) {
        failure.mutable_members()->set_everyone(true);
      } else {
        failure.mutable_members()->mutable_ranks()->Assign(round.members.begin(), round.members.end());
      }
      if (failure.code() == static_cast<uint32_t>(absl::StatusCode::kDeadlineExceeded)) {
        failure.set_sequence(sequence);  // it may be complete by now: who still waits in it will say so
        TellMembers(failure, round.members);
        inspections_.Drop(round.operation);
      } else {
        AnnounceFailure(std::move(failure), round.members);
      }
    } else if (comparison.undecided) {
      inspections_.AskAgain(round.operation, now_);
    } else {
      inspections_.Drop(round.operation);
    }
  }
}

}  // namespace cohort::launcher
