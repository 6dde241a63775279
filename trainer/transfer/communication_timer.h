// CommunicationTimer measures this rank's time in collective calls and in waiting for them. A wrapper's own work is the
// rest of the time by which its step exceeds the plain one.
//
//   step   ── forward ── call ▒ ── backward ── call ▒ ── Wait ░░░░░ ── optimizer
//                        calling()                     waiting()
#pragma once

#include <functional>

#include "cohort/runtime/engine/work.h"

namespace cohort::trainer {

// Times this process's calls of collectives.h, all of the trainer's, in all threads, while it lives. Operations called
// meanwhile count as done only once a thread has waited for them. Only one may live.
class [[nodiscard]] CommunicationTimer {
 public:
  CommunicationTimer();
  ~CommunicationTimer();
  CommunicationTimer(const CommunicationTimer&) = delete;
  CommunicationTimer& operator=(const CommunicationTimer&) = delete;

  // Seconds spent in calls until they return, since this was made or Reset: checking, planning, submitting.
  double calling() const;
  // Seconds spent in Work::Wait: the other ranks' delay, and moving and reducing data, which the waiting thread does.
  double waiting() const;
  void Reset();
};

// For collectives.cc: whether there is a timer, and a call that it times.
bool CommunicationIsTimed();
runtime::Work TimeCommunication(const std::function<runtime::Work()>& call);

}  // namespace cohort::trainer
