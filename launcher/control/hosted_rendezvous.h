// The rendezvous as the agent that hosts it sees it: it takes dlaunch's orders.
#pragma once

#include <functional>

#include "cohort/launcher/control/rendezvous.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class HostedRendezvous {
 public:
  // Receives messages for dlaunch while the job goes on: ranks_lost, restart, node_lost,
  // members, standbys.
  using OnNews = std::function<void(v1::FromNode)>;
  // Called once, after the agents were told. It must return soon and not destroy the rendezvous.
  using OnFinished = std::function<void(v1::JobReport)>;

  virtual ~HostedRendezvous() = default;

  // An order of dlaunch's (launcher_messages.h). It never blocks.
  virtual void OnEvent(Event order) = 0;
};

}  // namespace cohort::launcher
