#include "cohort/launcher/control/parts/inspection.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cohort::launcher {

void Inspections::Report(const OperationId& operation, std::vector<uint32_t> members, bool expired, TimePoint now) {
  const auto found = inquiries_.find(operation);
  if (found == inquiries_.end()) {
    if (inquiries_.size() >= kMaxOperations && !expired) return;
    Inquiry inquiry;
    inquiry.members = std::move(members);
    inquiry.expired = expired;
    inquiry.due = now;
    inquiries_.emplace(operation, std::move(inquiry));
    return;
  }
  Inquiry& inquiry = found->second;
  const bool newly_expired = expired && !inquiry.expired;
  inquiry.expired |= expired;
  inquiry.interval = kMinInterval;
  if (inquiry.request != 0) {
    inquiry.reported_again = true;
  } else {
    inquiry.due = newly_expired ? now : std::min(inquiry.due, std::max(now, inquiry.last_start + kMinInterval));
  }
}

std::vector<OperationId> Inspections::Due(TimePoint now) const {
  std::vector<OperationId> due;
  for (const auto& [operation, inquiry] : inquiries_) {
    if (inquiry.request == 0 && inquiry.due <= now) due.push_back(operation);
  }
  return due;
}

const std::vector<uint32_t>& Inspections::MembersOf(const OperationId& operation) const {
  return inquiries_.at(operation).members;
}

uint64_t Inspections::Begin(const OperationId& operation, std::unordered_set<ConnectionId> asked, TimePoint now) {
  Inquiry& inquiry = inquiries_.at(operation);
  inquiry.request = next_request_++;
  inquiry.awaited = std::move(asked);
  inquiry.calls.clear();
  inquiry.reported_again = false;
  inquiry.last_start = now;
  inquiry.patient = inquiry.expired;
  inquiry.due = now + (inquiry.patient ? kVerdictReplyTimeout : kReplyTimeout);
  by_request_[inquiry.request] = operation;
  return inquiry.request;
}

void Inspections::Reply(ConnectionId from, const v1::InspectReply& reply) {
  const auto found = by_request_.find(reply.request());
  if (found == by_request_.end()) return;  // too late
  const auto asked = inquiries_.find(found->second);
  if (asked == inquiries_.end() || asked->second.awaited.erase(from) == 0) return;
  Inquiry& inquiry = asked->second;
  for (const v1::CallState& call : reply.calls()) inquiry.calls[call.rank()] = call;
}

void Inspections::ForgetAnswers(uint32_t rank) {
  for (auto& [operation, inquiry] : inquiries_) inquiry.calls.erase(rank);
}

void Inspections::Forget(ConnectionId connection) {
  for (auto& [operation, inquiry] : inquiries_) inquiry.awaited.erase(connection);
}

std::vector<Inspections::Round> Inspections::TakeFinished(TimePoint now) {
  std::vector<Round> rounds;
  for (auto& [operation, inquiry] : inquiries_) {
    if (inquiry.request == 0 || (!inquiry.awaited.empty() && now < inquiry.due)) continue;
    by_request_.erase(inquiry.request);
    inquiry.request = 0;
    inquiry.due = TimePoint::max();  // until AskAgain
    const bool expired = inquiry.expired && (inquiry.patient || inquiry.awaited.empty());
    rounds.push_back({operation, inquiry.members, expired, std::move(inquiry.calls)});
    inquiry.calls.clear();
  }
  return rounds;
}

void Inspections::AskAgain(const OperationId& operation, TimePoint now) {
  Inquiry& inquiry = inquiries_.at(operation);
  inquiry.due = std::max(now, inquiry.last_start + inquiry.interval);
  inquiry.interval = std::min(2 * inquiry.interval, kMaxInterval);
}

void Inspections::Drop(const OperationId& operation) {
  const auto found = inquiries_.find(operation);
  if (found == inquiries_.end()) return;
  Inquiry& inquiry = found->second;
  if (inquiry.reported_again) {  // by someone whose call this round may not have seen
    inquiry.reported_again = false;
    inquiry.due = inquiry.last_start + kMinInterval;
    return;
  }
  Erase(found);
}

void Inspections::Clear() {
  inquiries_.clear();
  by_request_.clear();
}

void Inspections::DropGroup(uint64_t group, uint64_t epoch) { DropGroupBut(group, epoch, std::nullopt); }

void Inspections::DropAllBut(const OperationId& operation) {
  DropGroupBut(operation.group, operation.epoch, operation.sequence);
}

void Inspections::DropGroupBut(uint64_t group, uint64_t epoch, std::optional<uint64_t> kept_sequence) {
  for (auto at = inquiries_.lower_bound({group, epoch, 0});
       at != inquiries_.end() && at->first.group == group && at->first.epoch == epoch;) {
    at = at->first.sequence == kept_sequence ? std::next(at) : Erase(at);
  }
}

std::map<OperationId, Inspections::Inquiry>::iterator Inspections::Erase(std::map<OperationId, Inquiry>::iterator at) {
  if (at->second.request != 0) by_request_.erase(at->second.request);
  return inquiries_.erase(at);
}

std::optional<Inspections::TimePoint> Inspections::NextDue() const {
  std::optional<TimePoint> next;
  for (const auto& [operation, inquiry] : inquiries_) {
    const TimePoint due = inquiry.request != 0 && inquiry.awaited.empty() ? TimePoint::min() : inquiry.due;
    if (!next.has_value() || due < *next) next = due;
  }
  return next;
}

}  // namespace cohort::launcher
