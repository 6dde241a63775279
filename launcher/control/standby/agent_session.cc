#include "cohort/launcher/control/standby/agent_session.h"

#include "cohort/launcher/control/standby/rendezvous_copy.h"

namespace cohort::launcher {

bool AgentSession::Say(const v1::FromAgent& message) {
  if (Counts(message)) kept_.push_back(message);
  return connected_;
}

std::vector<v1::FromAgent> AgentSession::Hear(const v1::ToAgent& message) {
  if (message.has_beat()) Forget(message.beat().taken());
  if (Counts(message)) ++heard_;
  // The table that came before the assignment is part of it by now.
  if (message.has_assignment() && message.assignment().nodes_size() > 0) ++heard_;
  if (!message.has_resumed()) return {};
  Forget(message.resumed().taken());
  connected_ = true;
  return {kept_.begin(), kept_.end()};
}

void AgentSession::Forget(uint64_t taken) {
  while (!kept_.empty() && first_ <= taken) {
    kept_.pop_front();
    ++first_;
  }
}

}  // namespace cohort::launcher
