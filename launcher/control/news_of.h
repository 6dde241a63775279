// Actions of the rendezvous as messages to dlaunch.
#pragma once

#include "cohort/launcher/control/rendezvous.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// The message that reports a Restart, RanksLost, NodeLost, MembersChanged or StandbysWanted; of another action, an
// empty one.
v1::FromNode NewsOf(Action action);

}  // namespace cohort::launcher
