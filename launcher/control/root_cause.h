// Which of many failures was the first cause. What a rank says of a peer is an edge of a graph; the cause is a failure
// that nothing else explains. What we killed ourselves is never a cause.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/launcher/control/roster.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// Whether the failure stands for itself, whatever happened to the rank that it names: calls differ, or are late. All
// members may then say the same.
bool IsVerdict(const v1::GroupFailure& failure);

// A group's failure as it was announced, or a later complaint about the same group.
struct ReportedFailure {
  v1::GroupFailure failure;
  std::vector<uint32_t> members;
  // The first of its group and epoch, whose members were told; or the latest of a watched group (FailedGroups::Watch).
  bool announced = false;
  bool told = false;  // the node that decided it had been told of another failure before
  std::chrono::steady_clock::time_point at;
};

// The user's wish to end the job.
struct ReportedStop {
  std::string reason;
  int exit_code = 1;
  std::chrono::steady_clock::time_point at;
};

// SIGKILL that we did not send is never a rank's answer to a peer's failure, but the kernel may report it later than
// the peers' own exits (tearing down a large process takes time). Within this time it takes precedence over them.
inline constexpr std::chrono::milliseconds kLateDeath{500};

// A rank that fails within this time of being told of another failure is taken to fail because of it.
inline constexpr std::chrono::minutes kConsequenceTime{5};

// The job's report, root cause first. Pure.
//
// A failed rank has an edge to a failed rank that it blamed, and to an announced failure of a group of which it is a
// member; an announced failure has an edge to the failed rank that it blames, except mismatches and deadlines, which
// are causes themselves. A failure of a watched group explains the ranks that ended while they waited in its call.
// Among failures without outgoing edges those come first that were not told of another before, then the earlier ones.
v1::JobReport FindRootCause(const Roster& roster, const std::vector<ReportedFailure>& failures,
                            const std::optional<ReportedStop>& stop);

// The number of failed epochs, the latest ones, whose whole reports are kept: a job may be restarted for weeks, and a
// report may be large. The others keep their cause, in one line.
inline constexpr size_t kWholeReports = 100;
void KeepCauseAlone(v1::JobReport* report);

}  // namespace cohort::launcher
