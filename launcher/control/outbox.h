// The actions that the rendezvous has decided on and its owner has yet to carry out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/launcher/control/membership.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class Outbox {
 public:
  explicit Outbox(const Membership& members) : members_(members) {}

  void Add(Action action) { actions_.push_back(std::move(action)); }
  void SendTo(ConnectionId to, v1::ToAgent message);
  // Sends one shared message to the agents of these nodes. Nodes without a connection get nothing.
  void SendToNodes(const std::vector<uint32_t>& nodes, v1::ToAgent message);
  // To the agents of all nodes.
  void Broadcast(v1::ToAgent message);
  // To the agents of all nodes, and to the spares.
  void BroadcastToAll(v1::ToAgent message);
  // Says why, and ends the connection.
  void Refuse(ConnectionId connection, const std::string& why);
  void CloseAll();

  std::vector<Action> Take();

 private:
  using Shared = std::shared_ptr<const v1::ToAgent>;
  void BroadcastShared(const Shared& message);

  const Membership& members_;
  std::vector<Action> actions_;
};

}  // namespace cohort::launcher
