// CommunicationTimer: how long this rank is in collective calls, and how long in waiting for them; what else a step of
// a wrapper takes beyond the plain one is the wrapper's own work.
//
//   step   ── forward ── call ▒ ── backward ── call ▒ ── Wait ░░░░░ ── optimizer
//                        calling()                     waiting()
#pragma once

#include <functional>

#include "cohort/runtime/engine/work.h"

namespace cohort::trainer {

// Times this process's calls of collectives.h, all of the trainer's, in all threads, while it lives. Operations that
// are called meanwhile count as done only once somebody has waited for them. One at a time.
class [[nodiscard]] CommunicationTimer {
 public:
  CommunicationTimer();
  ~CommunicationTimer();
  CommunicationTimer(const CommunicationTimer&) = delete;
  CommunicationTimer& operator=(const CommunicationTimer&) = delete;

  // Seconds since this was made or Reset. In calls until they return: checking, planning, submitting.
  double calling() const;
  // In Work::Wait: the other ranks' delay, and moving and reducing data, which the waiting thread does.
  double waiting() const;
  void Reset();
};

// For collectives.cc: whether there is a timer, and a call that it times.
bool CommunicationIsTimed();
runtime::Work TimeCommunication(const std::function<runtime::Work()>& call);

}  // namespace cohort::trainer
