#include "cohort/comm/nccl/profiler/call_watch.h"

#include <algorithm>
#include <utility>

namespace cohort::comm::nccl_profiler {
namespace {

constexpr uint64_t Nanoseconds(std::chrono::milliseconds time) {
  return static_cast<uint64_t>(std::chrono::nanoseconds(time).count());
}

}  // namespace

void CallWatch::Look(uint64_t now_ns) {
  std::map<uint64_t, Report> reports;
  uint64_t awaited = 0;
  for (const NcclRecorder::Running& call : recorder_.OldestRunning()) {
    const uint64_t waited_ns = now_ns > call.since_ns ? now_ns - call.since_ns : 0;
    if (awaited == 0 && waited_ns >= Nanoseconds(kShownAfter)) awaited = call.number;
    if (waited_ns < Nanoseconds(kReportedAfter)) continue;
    Report report = reports_[call.communicator];
    if (report.number != call.number) report = {.number = call.number, .due_ns = now_ns};
    if (now_ns >= report.due_ns && !call.members.empty()) {
      ReportCall(call, waited_ns >= Nanoseconds(kLongAfter));
      report.due_ns = now_ns + Nanoseconds(kReportEvery);
    }
    reports[call.communicator] = report;
  }
  reports_ = std::move(reports);
  recorder_.ShowWait(awaited);
}

void CallWatch::ReportCall(const NcclRecorder::Running& call, bool for_long) {
  runtime::RankSet members;
  for (const int rank : call.members) {
    if (rank >= 0) members.ranks.push_back(rank);
  }
  std::sort(members.ranks.begin(), members.ranks.end());
  if (call.message) return bootstrap_.ReportWait(call.group, epoch_, members);
  bootstrap_.ReportStall(call.group, epoch_, call.sequence, members, for_long);
}

}  // namespace cohort::comm::nccl_profiler
