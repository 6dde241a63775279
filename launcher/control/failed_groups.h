// The groups of ranks that have failed in this epoch, and why: each failure is announced to the group's members once.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "cohort/launcher/control/call_comparison.h"
#include "cohort/launcher/control/outbox.h"
#include "cohort/launcher/control/parts/job_time.h"
#include "cohort/launcher/control/root_cause.h"
#include "cohort/launcher/control/roster.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class FailedGroups {
 public:
  FailedGroups(Roster* roster, const JobTime& time, Outbox* outbox) : roster_(roster), time_(time), outbox_(outbox) {}

  bool Contains(uint64_t group, uint64_t epoch) const { return announced_.contains({group, epoch}); }
  const std::vector<ReportedFailure>& failures() const { return failures_; }

  // A rank of `node` says so. False: a rank may not say that, and it is ignored.
  bool OnReport(uint32_t node, const v1::GroupFailure& failure);
  void Announce(v1::GroupFailure failure, std::vector<uint32_t> members);
  // Notes why a call of another library waits (StallReport::watched), the latest of its group, which does not fail. A
  // certain cause is told to people at once, through the agent of the first member. The others are for the report.
  void Watch(v1::GroupFailure failure, std::vector<uint32_t> members);
  // Tells the agents of the members, and returns their nodes.
  std::vector<uint32_t> Tell(const v1::GroupFailure& failure, const std::vector<uint32_t>& members);
  // Replaces the cause of a group's failure, which has been announced with a lesser one.
  void Explain(uint64_t group, uint64_t epoch, const CallVerdict& verdict);
  void Clear();

 private:
  Roster* const roster_;
  const JobTime& time_;
  Outbox* const outbox_;
  std::vector<ReportedFailure> failures_;
  std::set<std::pair<uint64_t, uint64_t>> announced_;  // group, epoch
};

}  // namespace cohort::launcher
