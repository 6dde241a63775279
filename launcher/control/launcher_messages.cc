#include "cohort/launcher/control/launcher_messages.h"

#include <utility>
#include <variant>

namespace cohort::launcher {

v1::FromNode NewsOf(Action action) {
  v1::FromNode news;
  if (Restart* const restart = std::get_if<Restart>(&action)) {
    *news.mutable_restart() = std::move(restart->restart);
    news.set_number(restart->number);
  } else if (RanksLost* const ranks = std::get_if<RanksLost>(&action)) {
    news.set_ranks_lost(std::move(ranks->text));
    news.set_number(ranks->number);
  } else if (NodeLost* const lost = std::get_if<NodeLost>(&action)) {
    *news.mutable_node_lost() = std::move(lost->lost);
    news.set_number(lost->number);
  } else if (MembersChanged* const changed = std::get_if<MembersChanged>(&action)) {
    *news.mutable_members() = std::move(changed->members);
    news.set_number(changed->number);
  } else if (StandbysWanted* const wanted = std::get_if<StandbysWanted>(&action)) {
    *news.mutable_standbys() = std::move(wanted->standbys);
  }
  return news;
}

std::optional<Event> OrderOf(const v1::ToNode& message) {
  switch (message.kind_case()) {
    case v1::ToNode::kStop:
      return StopRequested{message.stop().reason(), message.stop().exit_code(), message.stop().signal(),
                           message.number()};
    case v1::ToNode::kNoticeSignal:
      return NoticeGiven{message.notice_signal(), message.number()};
    case v1::ToNode::kAgentEnded:
      return AgentEnded{message.agent_ended().agent(), message.agent_ended().text(), message.number()};
    case v1::ToNode::kStandbys:
      return StandbysNoted{message.standbys()};
    default:
      return std::nullopt;
  }
}

}  // namespace cohort::launcher
