// Messages between the rendezvous and dlaunch: actions of the one, orders of the other.
#pragma once

#include <optional>

#include "cohort/launcher/control/rendezvous.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// The message that reports a Restart, RanksLost, NodeLost, MembersChanged or StandbysWanted; of another action, an
// empty one.
v1::FromNode NewsOf(Action action);

// The event that an order is to the rendezvous; none for what concerns the agent alone.
std::optional<Event> OrderOf(const v1::ToNode& message);

}  // namespace cohort::launcher
