// An agent's messages to the rendezvous and back, across the streams to several hosts one after another. Nothing is
// lost and nothing is said twice. See replicated_rendezvous.h. Without standbys there is one stream, and nothing is
// kept.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class AgentSession {
 public:
  // Every message is kept until a host says that it has taken it. True: write it now; false: it will be written when
  // another host has taken over.
  bool Say(const v1::FromAgent& message);

  // A message of the rendezvous has come, in the order of its stream. Returns what is to be said again: after
  // `resumed`.
  std::vector<v1::FromAgent> Hear(const v1::ToAgent& message);

  // The stream has ended, or is no longer read.
  void Leave() { connected_ = false; }
  // For NodeOffer.resume: messages that have come.
  uint64_t heard() const { return heard_; }

 private:
  void Forget(uint64_t taken);

  bool connected_ = true;
  uint64_t heard_ = 0;
  uint64_t first_ = 1;  // the number of the first message that is kept
  std::deque<v1::FromAgent> kept_;
};

}  // namespace cohort::launcher
