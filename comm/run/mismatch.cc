#include "cohort/comm/run/mismatch.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <vector>

#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_compare.h"
#include "cohort/runtime/segment/call_names.h"

namespace cohort::comm {
namespace {

using runtime::CallRecord;
using runtime::CallView;

std::string NodeOf(const runtime::Runtime& runtime, int world_rank) {
  const int node = runtime.node_of(world_rank);
  for (const runtime::NodeInfo& info : runtime.identity().nodes) {
    if (info.index == node) return info.name;
  }
  return "";
}

bool CameAlong(const RunnerFailure& failure) { return failure.peer_call.signature.kind != 0; }

std::string PointToPointText(const GroupContext& group, const CallRecord& mine, const RunnerFailure& failure) {
  const std::string peer = "rank " + std::to_string(group.members[failure.peer]);
  std::string text = "calls do not match: rank " + std::to_string(group.members[group.rank]) + ": " +
                     runtime::DescribeCallAndSite(mine) + "; " + peer + ": ";
  return text + (CameAlong(failure) ? runtime::DescribeCallAndSite(failure.peer_call)
                                    : "a send of another count or type (it can't be seen from here)");
}

// Operations before the one in which a mismatch shows that are looked at.
constexpr uint64_t kLookBack = 16;

// Everything known about operation `sequence`: from the black boxes of the members on this node, and from the message.
std::vector<CallView> Views(const GroupContext& group, uint64_t sequence, const RunnerFailure& failure) {
  runtime::Runtime& runtime = *group.runtime;
  std::vector<CallView> views;
  for (int i = 0; i < group.size; ++i) {
    const int world_rank = group.members[i];
    const std::string node = NodeOf(runtime, world_rank);
    if (i == failure.peer && CameAlong(failure) && failure.peer_call.signature.sequence == sequence) {
      views.push_back(runtime::MakeCallView(world_rank, node, failure.peer_call, true, failure.peer_call));
    } else if (runtime.node_of(world_rank) == runtime.node()) {
      const runtime::BlackBoxReader box = runtime.segment().black_box_of(runtime.local_rank_of(world_rank));
      CallView view = runtime::InspectCall(box, world_rank, node, group.id, group.epoch, sequence);
      if (view.seen) views.push_back(std::move(view));  // who has not called yet is no evidence
    }
  }
  return views;
}

// The calls are the same, but for the number of elements between two ranks.
absl::Status OtherLengthError(const GroupContext& group, const CallRecord& mine, const RunnerFailure& failure) {
  const uint64_t element = std::max<uint64_t>(1, SizeOf(static_cast<DataType>(mine.signature.dtype)));
  const int peer = group.members[failure.peer];
  std::string text = "calls do not match: rank " + std::to_string(group.members[group.rank]) + " called " +
                     runtime::DescribeCallAndSite(mine) + " and expects " +
                     std::to_string(failure.expected_bytes / element) + " elements from rank " + std::to_string(peer) +
                     ", which sends " + std::to_string(failure.peer_bytes / element);
  if (CameAlong(failure))
    text += "; rank " + std::to_string(peer) + " called " + runtime::DescribeCallAndSite(failure.peer_call);
  return absl::FailedPreconditionError(text + " (operation " + std::to_string(mine.signature.sequence) + ")");
}

// The group rank of the one member against a majority, or -1.
int CulpritOf(const GroupContext& group, const runtime::CallVerdict& verdict) {
  if (!verdict.majority || verdict.blamed.size() != 1) return -1;
  const auto found = std::find(group.members.begin(), group.members.end(), verdict.blamed[0]);
  return found == group.members.end() ? -1 : static_cast<int>(found - group.members.begin());
}

}  // namespace

std::string DescribePending(const CallRecord& record) {
  std::string text(runtime::CallKindName(record.signature.kind));
  text += " #" + std::to_string(record.signature.sequence);
  const std::string site = runtime::SiteOf(record);
  return site.empty() ? text : text + " at " + site;
}

uint64_t FirstSuspect(uint64_t last) { return last > kLookBack ? last - kLookBack : 1; }

Mismatch ExplainMismatch(const GroupContext& group, const CallRecord& mine, const RunnerFailure& failure) {
  if (runtime::IsPointToPoint(mine.signature.kind)) {
    return {absl::FailedPreconditionError(PointToPointText(group, mine, failure)), true};
  }
  if (failure.cause == RunnerFailure::Cause::kOtherLength) return {OtherLengthError(group, mine, failure), true};
  const uint64_t last = mine.signature.sequence;
  for (uint64_t sequence = FirstSuspect(last); sequence <= last; ++sequence) {
    const std::vector<CallView> views = Views(group, sequence, failure);
    const runtime::CallVerdict verdict = runtime::CompareCalls(group.id, sequence, views);
    if (verdict.kind == runtime::CallVerdict::Kind::kMismatch) {
      return {absl::FailedPreconditionError(verdict.text), true, CulpritOf(group, verdict)};
    }
    if (verdict.kind == runtime::CallVerdict::Kind::kResults) {
      // Without a majority the results of the others decide, which may yet be to come.
      const bool found = verdict.majority || verdict.results == static_cast<size_t>(group.size);
      return {absl::DataLossError(verdict.text), found, CulpritOf(group, verdict)};
    }
  }
  const std::string here = "rank " + std::to_string(group.members[group.rank]);
  const std::string peer = "rank " + std::to_string(group.members[failure.peer]);
  std::string text = "calls do not match: " + here + ": " + runtime::DescribeCallAndSite(mine) + "; " + peer + ": ";
  if (!CameAlong(failure)) {
    text += "another call, which can't be seen from here";
  } else if (failure.peer_call.signature == mine.signature) {
    text += group.checks.results ? "the same, but an earlier call of theirs in this group, or its result, differed"
                                 : "the same, but an earlier call of theirs in this group differed";
  } else {
    text += runtime::DescribeCallAndSite(failure.peer_call);
    if (runtime::DescribeCall(failure.peer_call) == runtime::DescribeCall(mine)) text += runtime::kOtherInvisibly;
  }
  // A call of another number was made after, or before, the one that differs.
  const bool found = CameAlong(failure) && failure.peer_call.signature.sequence == last &&
                     failure.peer_call.signature != mine.signature;
  return {absl::FailedPreconditionError(text + runtime::kMismatchRemedy), found};
}

absl::Status TimeoutError(const GroupContext& group, const CallRecord& mine, std::chrono::nanoseconds timeout,
                          const std::vector<int>& waiting_for) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3g", std::chrono::duration<double>(timeout).count());
  std::string text = runtime::DescribeCall(mine) + " #" + std::to_string(mine.signature.sequence);
  const std::string site = runtime::SiteOf(mine);
  if (!site.empty()) text += " at " + site;
  text += " was not complete after " + std::string(seconds) + " s, its timeout";
  std::vector<int> ranks;
  for (const int peer : waiting_for) ranks.push_back(group.members[peer]);
  if (!ranks.empty()) {
    text += ": rank " + std::to_string(group.members[group.rank]) + " waits for " + runtime::DescribeRanks(ranks);
  }
  return absl::DeadlineExceededError(text);
}

}  // namespace cohort::comm
