#include "cohort/launcher/control/outbox.h"

#include <optional>
#include <utility>

namespace cohort::launcher {

void Outbox::SendTo(ConnectionId to, v1::ToAgent message) {
  Add(Send{to, std::make_shared<const v1::ToAgent>(std::move(message))});
}

void Outbox::SendToNodes(const std::vector<uint32_t>& nodes, v1::ToAgent message) {
  const auto shared = std::make_shared<const v1::ToAgent>(std::move(message));
  for (const uint32_t node : nodes) {
    if (const std::optional<ConnectionId> to = members_.ConnectionOf(node)) Add(Send{*to, shared});
  }
}

void Outbox::BroadcastShared(const Shared& message) {
  for (const std::optional<ConnectionId>& to : members_.connections()) {
    if (to.has_value()) Add(Send{*to, message});
  }
}

void Outbox::Broadcast(v1::ToAgent message) {
  BroadcastShared(std::make_shared<const v1::ToAgent>(std::move(message)));
}

void Outbox::BroadcastToAll(v1::ToAgent message) {
  const auto shared = std::make_shared<const v1::ToAgent>(std::move(message));
  BroadcastShared(shared);
  for (const Membership::Spare& spare : members_.spares()) Add(Send{spare.connection, shared});
}

void Outbox::Refuse(ConnectionId connection, const std::string& why) {
  v1::ToAgent message;
  message.set_refused(why);
  SendTo(connection, std::move(message));
  Add(Close{connection});
}

void Outbox::CloseAll() {
  for (const std::optional<ConnectionId>& connection : members_.connections()) {
    if (connection.has_value()) Add(Close{*connection});
  }
  for (const Membership::Spare& spare : members_.spares()) Add(Close{spare.connection});
}

std::vector<Action> Outbox::Take() { return std::exchange(actions_, {}); }

}  // namespace cohort::launcher
