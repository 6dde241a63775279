// A node's part in a preemption: which of its ranks ask for notices, and at which step each waits. The rendezvous gets
// one answer for all of them (launcher/control/parts/step_agreement.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class NodePreemption {
 public:
  explicit NodePreemption(int ranks) : ranks_(static_cast<size_t>(ranks)) {}

  // A rank asks for notices. True for the node's first.
  bool OnWish(int local_rank);
  bool wished(int local_rank) const { return ranks_[static_cast<size_t>(local_rank)].wished; }
  bool any_wished() const { return any_wished_; }

  // The notice, which counts once.
  void OnNotice(const v1::PreemptionNotice& notice) { notice_ = notice; }
  // The notice that a rank gets which asks later, or nothing.
  const std::optional<v1::PreemptionNotice>& notice() const { return notice_; }

  // A rank is about to begin a step, and waits.
  void OnStep(int local_rank, uint64_t step);
  // A rank opens a runtime. Where it had left, it counts again.
  void OnJoin(int local_rank);
  // A rank has ended, or said goodbye; `in_order`: not by a failure.
  void OnEnd(int local_rank, bool in_order);
  // The node's answer to the notice: once, when each of its ranks has answered or ended.
  std::optional<v1::NodeStep> TakeAnswer();

  // A rank stops as agreed. True for the node's first.
  bool OnPreempted();

 private:
  struct Rank {
    bool wished = false;
    bool counted = false;
    bool left = false;  // in order
  };
  std::vector<Rank> ranks_;
  bool any_wished_ = false;
  std::optional<v1::PreemptionNotice> notice_;
  bool answered_ = false;
  bool preempted_ = false;
  v1::NodeStep answer_;
};

}  // namespace cohort::launcher
