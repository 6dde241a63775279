// Finds out why an operation of a group stands still: asks the members' agents for their calls (parts/inspection.h),
// compares them (call_comparison.h) and fails the group when they explain it. A member whose call has timed out may
// fail the group before all have answered. The question is then put to its end: the answer is the failure's cause in
// the job's report, whichever member gave up first.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/launcher/control/call_comparison.h"
#include "cohort/launcher/control/failed_groups.h"
#include "cohort/launcher/control/membership.h"
#include "cohort/launcher/control/outbox.h"
#include "cohort/launcher/control/parts/inspection.h"
#include "cohort/launcher/control/parts/job_time.h"
#include "cohort/launcher/control/roster.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class StallInquiries {
 public:
  StallInquiries(const Roster& roster, const Membership& members, const JobTime& time, FailedGroups* failed,
                 Outbox* outbox)
      : roster_(roster), members_(members), time_(time), failed_(failed), outbox_(outbox) {}

  void OnStall(const v1::StallReport& stall);
  void OnReply(ConnectionId from, const v1::InspectReply& reply) { inspections_.Reply(from, reply); }
  // The rank has ended in order, or left for the next epoch: members that wait for it need not report again.
  void AskAboutStallsWith(uint32_t rank);
  // The group has failed.
  void Drop(uint64_t group, uint64_t epoch);
  // The group has failed since a member's call was not complete in its time.
  void OnTimeout(uint64_t group, uint64_t epoch);
  // The cause of such a failure is still being asked for. Ends at the latest when every agent asked has answered, is
  // lost, or was given Inspections::kVerdictReplyTimeout.
  bool explains() const { return !failed_operations_.empty(); }
  // The connection will not answer any more.
  void Forget(ConnectionId connection) { inspections_.Forget(connection); }
  void Clear();

  // Starts the rounds that are due, and concludes those that are over. With `late_ones_too` also those whose time is
  // up.
  void Continue(bool late_ones_too);
  std::optional<TimePoint> NextDue() const { return inspections_.NextDue(); }

 private:
  struct Stall {
    uint64_t sequence = 0;
    std::vector<uint32_t> members;  // ascending
    bool watched = false;
    TimePoint at;
    std::optional<CallVerdict> verdict;  // that the members were told at the end of its time
  };

  void ForgetOldStalls();
  void Start();
  void Conclude(bool late_ones_too);
  void Conclude(const Inspections::Round& round);
  void Explain(const Inspections::Round& round);
  void Fail(const Inspections::Round& round, const CallVerdict& verdict);
  v1::RankSet SetOf(const std::vector<uint32_t>& members) const;
  std::vector<InspectedMember> MembersOf(const Inspections::Round& round) const;

  const Roster& roster_;
  const Membership& members_;
  const JobTime& time_;
  FailedGroups* const failed_;
  Outbox* const outbox_;
  Inspections inspections_;
  std::map<std::pair<uint64_t, uint64_t>, Stall> stalls_;                   // the latest report, by group and epoch
  std::map<std::pair<uint64_t, uint64_t>, OperationId> failed_operations_;  // whose cause is asked for
};

}  // namespace cohort::launcher
