#include "cohort/launcher/control/standby/standby_choice.h"

#include <algorithm>

namespace cohort::launcher {

std::optional<v1::Standbys> StandbyChoice::Note(uint32_t from, const v1::Standbys& standbys) {
  if (from != host_ || standbys.term() != term_) return std::nullopt;
  standbys_ = {standbys.agents().begin(), standbys.agents().end()};
  return standbys;
}

// The others stay noted: the new host acts on nothing without them until it has asked to do so. Those of which dlaunch
// knows that they live no more will never take over, and nobody need wait for them.
std::optional<v1::TakeOver> StandbyChoice::Choose() {
  const auto next = std::find_if(standbys_.begin(), standbys_.end(), [this](uint32_t a) { return !gone_.contains(a); });
  if (next == standbys_.end()) return std::nullopt;
  host_ = *next;
  reached_ = false;
  standbys_.erase(next);
  v1::TakeOver order;
  order.set_term(++term_);
  for (const uint32_t agent : standbys_) {
    if (!gone_.contains(agent)) order.add_standbys(agent);
  }
  return order;
}

}  // namespace cohort::launcher
