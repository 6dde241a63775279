// The course of a job through its phases (phase.h): when an epoch begins, what its failure leads to, and how the job
// ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/launcher/control/deadlocks.h"
#include "cohort/launcher/control/failed_groups.h"
#include "cohort/launcher/control/membership.h"
#include "cohort/launcher/control/outbox.h"
#include "cohort/launcher/control/parts/job_time.h"
#include "cohort/launcher/control/parts/phase.h"
#include "cohort/launcher/control/parts/restart.h"
#include "cohort/launcher/control/preemption.h"
#include "cohort/launcher/control/root_cause.h"
#include "cohort/launcher/control/roster.h"
#include "cohort/launcher/control/stall_inquiries.h"
#include "cohort/launcher/control/store_requests.h"
#include "cohort/runtime/base/checked_state.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class JobCourse {
 public:
  // The parts that a new epoch or the end clears.
  struct Parts {
    Roster* roster;
    Membership* members;
    Preemption* preemption;
    FailedGroups* failed_groups;
    StallInquiries* stalls;
    Deadlocks* deadlocks;
    StoreRequests* store;
    Outbox* outbox;
  };

  JobCourse(const Parts& parts, const JobTime& time);

  Phase phase() const { return phase_; }
  bool finished() const { return phase_ == Phase::kFinished; }
  // The present one, or while the job pauses the next.
  uint64_t epoch() const { return 1 + restarts_.restarts(); }

  // Every planned node has joined.
  void BeginFirstEpoch() { AssignAll(/*same_nodes=*/false); }
  void OnStopRequested(const StopRequested& request);
  // The rank's end is known.
  void RecordExit(const v1::RankExit& exit, TimePoint gone_at);
  // All nodes are told of the loss. With on_failure "continue" dlaunch is, too; else the job stops soon, and dlaunch is
  // told the cause that is known by then: the first loss may be another's consequence. Losses that follow are gathered:
  // nodes are told of them only where the order to stop takes longer than that.
  void AnnounceLoss(const std::vector<uint32_t>& ranks, const std::string& text);
  // The ranks of a lost node are lost too.
  void LoseRanksOf(uint32_t node, const std::string& text, TimePoint gone_at);
  void FinishUnstarted(const std::string& headline, int exit_code);
  // Ends a job that pauses and can't go on. False: it does.
  bool FinishIfLacking(const std::string& text);
  // A job that pauses goes on when its time has come.
  void BeginNextEpochIfDue();
  void FinishIfDone();

  // The nodes that were told to stop have had their time.
  bool StopIsLate() const { return phase_ == Phase::kStopping && time_.now() >= *end_deadline_; }
  void LetTimePass();
  // When LetTimePass is next due. While the cause is still asked for, the part that asks knows when the next answer is
  // due.
  std::optional<TimePoint> NextDue() const;

 private:
  // Losses after the first, of which the nodes have not been told yet.
  struct LaterLosses {
    std::vector<uint32_t> ranks;
    std::string first;  // the first of them, in words
    std::optional<TimePoint> due;
  };

  void Enter(Phase phase);
  void TellNodes(const std::vector<uint32_t>& ranks, const std::string& text);
  void TellLaterLosses();
  void AssignAll(bool same_nodes);
  void StopAll(const std::string& reason, int exit_code, std::chrono::milliseconds grace, bool restarting = false);
  void MarkAllTold();
  // When the order to stop must be sent after a failure: at once, or when its cause is known.
  std::optional<TimePoint> OrderDue() const;
  void Pause(v1::JobReport report, const RestartPolicy::Decision& decision);
  void BeginNextEpoch();
  void Finish(v1::JobReport report);

  const Parts parts_;
  const JobTime& time_;
  runtime::CheckedState<Phase> phase_{Phase::kGathering};
  RestartPolicy restarts_;
  TimePoint epoch_began_;
  std::optional<ReportedStop> stop_;
  std::optional<TimePoint> stop_due_;  // after a failure: when Stop is sent, should its cause be known
  std::string first_loss_;             // with that, in words
  LaterLosses later_;
  std::optional<TimePoint> end_deadline_;  // after Stop: when we no longer wait for agents
  std::optional<TimePoint> restart_due_;   // while pausing
};

}  // namespace cohort::launcher
