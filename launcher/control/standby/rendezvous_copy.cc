#include "cohort/launcher/control/standby/rendezvous_copy.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "cohort/launcher/control/launcher_messages.h"
#include "cohort/launcher/control/root_cause.h"

namespace cohort::launcher {

bool Counts(const v1::FromAgent& message) {
  return !message.has_join() && !message.has_beat() && !message.has_logged();
}

bool Counts(const v1::ToAgent& message) {
  return !message.has_beat() && !message.has_resumed() && !message.has_log() && !message.has_refused();
}

TimePoint TimeOf(const v1::LogEntry& entry) { return TimePoint(std::chrono::nanoseconds(entry.time_ns())); }

int64_t NanosecondsOf(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

std::vector<Action> RendezvousCopy::Apply(const v1::LogEntry& entry) {
  applied_ = entry.number();
  now_ = TimeOf(entry);
  if (machine_ == nullptr && !entry.has_start()) return {};
  switch (entry.kind_case()) {
    case v1::LogEntry::kStart:
      machine_ = std::make_unique<Rendezvous>(entry.start(), now_);
      standbys_ = entry.start().standbys();
      return {};
    case v1::LogEntry::kTick:
      return Note(machine_->Tick(now_));
    case v1::LogEntry::kReceived:
      return ApplyReceived(entry.connection(), entry.received());
    case v1::LogEntry::kDisconnected:
      if (const auto session = sessions_.find(entry.connection()); session != sessions_.end()) {
        session->second.closed = true;
      }
      return Note(machine_->Handle(Disconnected{entry.connection(), entry.disconnected()}, now_));
    case v1::LogEntry::kResumed:
      return ApplyResumed(entry.connection(), entry.resumed());
    case v1::LogEntry::kTakenOver:
      return Note(machine_->Handle(TakenOver{}, now_));
    case v1::LogEntry::kLauncher:
      return ApplyLauncher(entry.launcher());
    case v1::LogEntry::KIND_NOT_SET:
      break;
  }
  return {};
}

std::vector<Action> RendezvousCopy::ApplyReceived(ConnectionId from, const v1::FromAgent& message) {
  if (message.has_join()) {
    sessions_[from].agent = message.join().node();
  } else if (const auto session = sessions_.find(from); session != sessions_.end()) {
    if (message.has_beat()) {
      Forget(message.beat().taken(), &session->second);
    } else if (Counts(message)) {
      ++session->second.taken;
    }
  }
  std::vector<Action> actions = Note(machine_->Handle(Received{from, message}, now_));
  const bool refused = std::any_of(actions.begin(), actions.end(), [from](const Action& action) {
    const Send* const send = std::get_if<Send>(&action);
    return send != nullptr && send->to == from && send->message->has_refused();
  });
  if (message.has_join() && refused) {
    sessions_.erase(from);
  } else if (message.has_join() && message.join().has_resume()) {  // it has joined a host that is no more, unnoticed
    v1::ToAgent resumed;
    resumed.mutable_resumed();
    actions.insert(actions.begin(), Send{from, std::make_shared<const v1::ToAgent>(std::move(resumed))});
  }
  return actions;
}

std::vector<Action> RendezvousCopy::ApplyResumed(ConnectionId from, uint64_t taken) {
  Session& session = sessions_[from];
  if (session.closed && !machine_->finished()) {
    v1::ToAgent refused;
    refused.set_refused("node " + std::to_string(session.agent) + " was given up");
    return {Send{from, std::make_shared<const v1::ToAgent>(std::move(refused))}, Close{from}};
  }
  Forget(taken, &session);
  v1::ToAgent resumed;
  resumed.mutable_resumed()->set_taken(session.taken);
  std::vector<Action> actions{Send{from, std::make_shared<const v1::ToAgent>(std::move(resumed))}};
  for (const auto& message : session.kept) actions.emplace_back(Send{from, message});
  if (session.closed) actions.emplace_back(Close{from});
  v1::FromAgent heard;
  heard.mutable_beat();
  std::vector<Action> more = Note(machine_->Handle(Received{from, std::move(heard)}, now_));
  std::move(more.begin(), more.end(), std::back_inserter(actions));
  return actions;
}

std::vector<Action> RendezvousCopy::ApplyLauncher(const v1::ToNode& message) {
  if (message.number() != 0 && message.number() <= launcher_messages_) return {};
  launcher_messages_ = std::max(launcher_messages_, message.number());
  const std::optional<Event> order = OrderOf(message);
  return order.has_value() ? Note(machine_->Handle(*order, now_)) : std::vector<Action>();
}

void RendezvousCopy::Forget(uint64_t taken, Session* session) {
  while (!session->kept.empty() && session->first <= taken) {
    session->kept.pop_front();
    ++session->first;
  }
}

std::vector<Action> RendezvousCopy::Note(std::vector<Action> actions) {
  for (Action& action : actions) {
    if (Send* const send = std::get_if<Send>(&action)) {
      const auto session = sessions_.find(send->to);
      if (session == sessions_.end()) continue;
      if (send->message->has_beat()) {
        v1::ToAgent answer = *send->message;
        answer.mutable_beat()->set_taken(session->second.taken);
        send->message = std::make_shared<const v1::ToAgent>(std::move(answer));
      } else if (Counts(*send->message)) {
        session->second.kept.push_back(send->message);
      }
    } else if (const Close* const close = std::get_if<Close>(&action)) {
      if (const auto session = sessions_.find(close->connection); session != sessions_.end()) {
        session->second.closed = true;
      }
    } else {
      const uint64_t number = told_.size() + 1;
      if (Restart* const restart = std::get_if<Restart>(&action)) restart->number = number;
      if (RanksLost* const ranks = std::get_if<RanksLost>(&action)) ranks->number = number;
      if (NodeLost* const lost = std::get_if<NodeLost>(&action)) lost->number = number;
      if (MembersChanged* const members = std::get_if<MembersChanged>(&action)) members->number = number;
      if (Finish* const finish = std::get_if<Finish>(&action)) finish->number = number;
      told_.push_back(action);
      // dlaunch has known it for long; what counts is its number.
      Restart* const old =
          told_.size() > kWholeReports ? std::get_if<Restart>(&told_[told_.size() - kWholeReports - 1]) : nullptr;
      if (old != nullptr) KeepCauseAlone(old->restart.mutable_report());
    }
  }
  return actions;
}

std::optional<ConnectionId> RendezvousCopy::ConnectionOf(uint32_t agent) const {
  const auto found = std::find_if(sessions_.begin(), sessions_.end(),
                                  [agent](const auto& session) { return session.second.agent == agent; });
  if (found == sessions_.end()) return std::nullopt;
  return found->first;
}

bool RendezvousCopy::Closed(ConnectionId connection) const {
  const auto session = sessions_.find(connection);
  return session != sessions_.end() && session->second.closed;
}

std::vector<Action> RendezvousCopy::ToldSince(uint64_t number) const {
  if (number > told_.size()) return {};
  return {told_.begin() + static_cast<std::ptrdiff_t>(number - 1), told_.end()};
}

}  // namespace cohort::launcher
