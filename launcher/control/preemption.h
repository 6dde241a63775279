// Passes notices of a preemption on, and lets the ranks agree on the step at which they stop (parts/step_agreement.h).
//
//   signal at dlaunch or an agent ─► no rank has ever asked for notices: ToAgent.pass_on_signal, the programs get it
//                                 └► else ToAgent.preemption ─► FromAgent.preemption_step of each node ─► stop_step
//                                      ─► FromAgent.preempted, the ranks end in order ─► report: preempted, status 75
//
// SIGTERM at dlaunch or an agent ends the job when its grace is over, whatever the ranks do.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "cohort/launcher/control/outbox.h"
#include "cohort/launcher/control/parts/job_time.h"
#include "cohort/launcher/control/parts/phase.h"
#include "cohort/launcher/control/parts/step_agreement.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/control/root_cause.h"
#include "cohort/launcher/control/roster.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class Preemption {
 public:
  Preemption(const Roster& roster, const JobTime& time, Outbox* outbox)
      : roster_(roster), time_(time), outbox_(outbox) {}

  // A scheduler's signal. With `only`, it came to that agent.
  void OnNotice(int signal, std::optional<ConnectionId> only, Phase phase);
  // A rank asks for notices.
  void OnWish(Phase phase);
  void OnStep(uint32_t node, const v1::NodeStep& step);
  void OnPreempted(const v1::RankPreempted& preempted) {
    if (agreement_.has_value()) preempted_at_ = preempted.step();
  }
  // The node's ranks have gone, so that nobody is left to ask.
  void OnNodeDone(uint32_t node);
  void OnNodeLost(uint32_t node);

  // True where the ranks are told and get their grace; the stop is then due later.
  bool DelaysStop(const StopRequested& request, Phase phase);
  // A stop has been asked for, and ranks may still stop by themselves.
  bool ordered() const { return stop_.has_value(); }
  std::optional<TimePoint> stop_due() const { return stop_due_; }
  // The stop that was delayed, once, when its time has come.
  std::optional<ReportedStop> TakeDueStop();
  // The time that ranks told to end now have until they are killed. News during a grace does not extend it: the
  // scheduler's own grace runs on.
  std::chrono::milliseconds GraceLeft() const;

  // Nobody failed, and a rank has stopped as agreed: the report says so.
  void AddTo(v1::JobReport* report) const;
  void BeginEpoch();
  void Finish() { stop_due_.reset(); }

 private:
  void Begin(int signal);
  void AnswerFor(uint32_t node);
  void Conclude();

  const Roster& roster_;
  const JobTime& time_;
  Outbox* const outbox_;
  bool wished_ = false;                     // a rank has asked for notices, in whatever epoch
  int notice_ = 0;                          // the latest that ranks were told of; survives epochs
  std::optional<StepAgreement> agreement_;  // since the notice, in this epoch
  std::optional<uint64_t> preempted_at_;    // a rank has stopped before this step, as agreed
  std::optional<ReportedStop> stop_;        // what follows a notice that is an order
  std::optional<TimePoint> stop_due_;       // when it follows
};

}  // namespace cohort::launcher
