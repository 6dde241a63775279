// dlaunch's part in a take-over: who hosts the rendezvous, in which term, and who may host it next. See
// replicated_rendezvous.h for why a choice on mere suspicion does no harm.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class StandbyChoice {
 public:
  uint32_t host() const { return host_; }
  uint64_t term() const { return term_; }
  // The host has said where it listens.
  void SetReached() { reached_ = true; }

  // The host says who may take over. The answer for it; nothing when it is the host no more.
  std::optional<v1::Standbys> Note(uint32_t from, const v1::Standbys& standbys);
  // A standby has lost the host of `term`. True: there is to be another.
  bool IsNews(uint32_t from, uint64_t term) const { return term == term_ && standbys_.contains(from); }
  // Whether the host of `term`, which was chosen a while ago, has not said yet where it listens.
  bool Doubts(uint64_t term) const { return term == term_ && !reached_; }
  // That agent lives no more.
  void Lose(uint32_t agent) { gone_.insert(agent); }
  // The host is lost. The next one's order, by the order of the agents, or nothing: nobody may take over.
  std::optional<v1::TakeOver> Choose();

 private:
  uint64_t term_ = 1;
  uint32_t host_ = 0;
  bool reached_ = false;
  std::set<uint32_t> standbys_;
  std::set<uint32_t> gone_;
};

}  // namespace cohort::launcher
