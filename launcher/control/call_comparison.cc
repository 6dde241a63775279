#include "cohort/launcher/control/call_comparison.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/runtime/segment/call_compare.h"

namespace cohort::launcher {
namespace {

// Members whose calls of the operation agree.
struct CallClass {
  std::vector<uint32_t> ranks;
  const v1::CallState* call = nullptr;  // of its first member
};

struct Sorted {
  std::vector<CallClass> classes;  // largest first
  std::vector<const InspectedMember*> absent;
  std::vector<uint32_t> unknown;             // their boxes may have forgotten the call
  std::vector<const InspectedMember*> left;  // ended without having completed its call
  std::vector<const InspectedMember*> held;  // a debugger has stopped it
  uint64_t longest_wait_ms = 0;              // of a call that is not done
  bool waiting = false;                      // the call of someone who has not ended is not done
  bool someone_knows = false;                // of some member it is known that it came to the operation
};

// Whether a record shows that the rank has already left the operation behind.
bool Passed(const v1::CallState& call, uint64_t group, uint64_t epoch, uint64_t sequence) {
  return call.present() && !call.message() && call.group() == group && call.epoch() == epoch &&
         call.sequence() > sequence;
}

Sorted Sort(uint64_t group, uint64_t epoch, uint64_t sequence, const std::vector<InspectedMember>& members) {
  Sorted sorted;
  std::unordered_map<uint64_t, size_t> class_of;
  for (const InspectedMember& member : members) {
    const v1::CallState& call = member.call;
    sorted.someone_knows |= member.answered && call.sequence_seen();
    if (!member.ended && !call.held_by().empty()) sorted.held.push_back(&member);
    // A late answer may come when the box has forgotten the call: that is no evidence.
    if (member.answered && call.sequence_seen() && call.signature() == 0) {
      sorted.unknown.push_back(member.rank);
      continue;
    }
    if (member.answered && call.present() && call.sequence_seen()) {
      const auto [found, fresh] = class_of.emplace(call.signature(), sorted.classes.size());
      if (fresh) sorted.classes.push_back({{}, &call});
      sorted.classes[found->second].ranks.push_back(member.rank);
      sorted.waiting |= !call.done() && !member.ended;
      if (!call.done()) sorted.longest_wait_ms = std::max<uint64_t>(sorted.longest_wait_ms, call.age_ms());
      if (member.ended && (!call.done() || call.failed())) sorted.left.push_back(&member);
    } else if (!member.answered || !Passed(call, group, epoch, sequence)) {
      sorted.absent.push_back(&member);
    }
  }
  std::stable_sort(sorted.classes.begin(), sorted.classes.end(),
                   [](const CallClass& a, const CallClass& b) { return a.ranks.size() > b.ranks.size(); });
  return sorted;
}

CallVerdict Mismatch(uint64_t group, const std::vector<CallClass>& classes, uint64_t sequence) {
  CallVerdict verdict;
  verdict.code = static_cast<int>(absl::StatusCode::kFailedPrecondition);
  std::vector<runtime::CallVariant> variants;
  for (const CallClass& one : classes) {
    variants.push_back(
        {{one.ranks.begin(), one.ranks.end()}, std::string(one.call->call()), std::string(one.call->site())});
  }
  verdict.text = runtime::DescribeMismatch(group, sequence, variants);
  // Only a single rank against a majority stands out.
  if (classes.size() == 2 && classes[1].ranks.size() == 1 && classes[0].ranks.size() > 1) {
    verdict.blamed_rank = static_cast<int>(classes[1].ranks[0]);
  }
  return verdict;
}

// Whether the results of members whose calls agree do so too, as far as they are known.
CallComparison CompareResults(uint64_t group, uint64_t sequence, const std::vector<InspectedMember>& members,
                              OperationState state) {
  CallComparison result;
  std::vector<runtime::ResultVariant> variants;
  const v1::CallState* first = nullptr;
  size_t known = 0;
  for (const InspectedMember& member : members) {
    if (!member.answered || !member.call.sequence_seen() || member.call.result() == 0) continue;
    runtime::AddResult(member.call.result(), static_cast<int>(member.rank), &variants);
    if (first == nullptr) first = &member.call;
    ++known;
  }
  if (variants.size() < 2) return result;
  const bool majority = runtime::PutMajorityFirst(&variants);
  // The results that are to come may tell which of two is right.
  if (!majority && known < members.size() && state == OperationState::kStalled) {
    result.undecided = true;
    return result;
  }
  result.verdict = CallVerdict{static_cast<int>(absl::StatusCode::kDataLoss),
                               runtime::DescribeResults(group, sequence, CallAndSite(*first), variants), -1};
  if (majority && variants.size() == 2 && variants[1].ranks.size() == 1) {
    result.verdict->blamed_rank = variants[1].ranks[0];
  }
  return result;
}

// Whether the member is in, or was last in, a call of another group.
bool IsElsewhere(const InspectedMember& member, uint64_t group) {
  return !member.ended && member.answered && member.call.present() && member.call.group() != group;
}

// "all_reduce(sum, float32, 8) at a.cc:1 (operation #42), which ranks 0-2 called". The group is named where one of
// `absent` is in a call of another.
std::string WaitedFor(const std::vector<CallClass>& classes, uint64_t sequence,
                      const std::vector<const InspectedMember*>& absent = {}) {
  if (classes.empty()) return "operation #" + std::to_string(sequence) + " of a group";
  const uint64_t group = classes[0].call->group();
  const bool name_group = std::any_of(absent.begin(), absent.end(),
                                      [group](const InspectedMember* member) { return IsElsewhere(*member, group); });
  return CallAndSite(*classes[0].call) + " (operation #" + std::to_string(sequence) +
         (name_group ? " of " + GroupName(group) : "") + "), which " + RankNames(classes[0].ranks) + " called";
}

// "rank 3 (node1) never called X: it is in broadcast #7 at b.cc:2 for 4 s; ..."
std::string Absentees(uint64_t group, const std::vector<const InspectedMember*>& absent,
                      const std::string& waited_for) {
  std::vector<uint32_t> ranks;
  for (const InspectedMember* member : absent) ranks.push_back(member->rank);
  std::string text = RankNames(ranks) + " never called " + waited_for + ":";
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < std::min(absent.size(), kShown); ++i) {
    const InspectedMember& member = *absent[i];
    text += (i > 0 ? "; " : " ") + NameRank(member.rank, member.place, 0) + " ";
    if (member.ended) {
      text += member.end;
    } else if (!member.answered) {
      text += "is unknown, its agent did not answer";
    } else {
      text += "is " + DescribeCall(member.call, IsElsewhere(member, group));
    }
  }
  if (absent.size() > kShown) text += "; and " + std::to_string(absent.size() - kShown) + " more";
  return text;
}

// "rank 3 (node1) did not go on: it is in broadcast #7 at b.cc:2 for 4 s, stopped by a debugger (gdb, pid 4711); X
// waits for it".
std::string Held(const std::vector<const InspectedMember*>& held, const std::string& waiting) {
  std::string text;
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < std::min(held.size(), kShown); ++i) {
    const InspectedMember& member = *held[i];
    text += (i > 0 ? "; " : "") + NameRank(member.rank, member.place, 0) + " did not go on: it is " +
            DescribeCall(member.call, true);
  }
  if (held.size() > kShown) text += "; and " + std::to_string(held.size() - kShown) + " more";
  return text + "; " + waiting + ", " + (held.size() == 1 ? "waits for it" : "waits for them");
}

// "rank 1 (node0) exited with code 0 before its part of X was over; rank 0 waits for it in vain".
CallVerdict Left(const Sorted& sorted, uint64_t sequence) {
  std::string text;
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < std::min(sorted.left.size(), kShown); ++i) {
    const InspectedMember& member = *sorted.left[i];
    text += (i > 0 ? "; " : "") + NameRank(member.rank, member.place, 0) + " " + member.end;
  }
  if (sorted.left.size() > kShown) text += "; and " + std::to_string(sorted.left.size() - kShown) + " more";
  text += " before the call was complete that others still wait in: " + WaitedFor(sorted.classes, sequence) +
          "; wait for a call's Work before the program ends";
  return CallVerdict{static_cast<int>(absl::StatusCode::kUnavailable), text,
                     sorted.left.size() == 1 ? static_cast<int>(sorted.left[0]->rank) : -1};
}

// "; given up after 600 s (CallOptions::timeout)".
std::string WaitingTime(const Sorted& sorted, OperationState state) {
  const bool watched = state == OperationState::kWatched;
  if (sorted.longest_wait_ms == 0) return watched ? "" : "; given up at the end of CallOptions::timeout";
  char text[80];
  std::snprintf(text, sizeof text, watched ? "; waited for %.3g s" : "; given up after %.3g s (CallOptions::timeout)",
                static_cast<double>(sorted.longest_wait_ms) / 1000);
  return text;
}

CallVerdict Expired(uint64_t group, const Sorted& sorted, uint64_t sequence, OperationState state) {
  CallVerdict verdict;
  verdict.code = static_cast<int>(absl::StatusCode::kDeadlineExceeded);
  const std::string over = WaitingTime(sorted, state);
  if (!sorted.held.empty()) {  // an absent member may wait for it
    verdict.text = Held(sorted.held, WaitedFor(sorted.classes, sequence, sorted.held)) + over;
    if (sorted.held.size() == 1) verdict.blamed_rank = static_cast<int>(sorted.held[0]->rank);
    return verdict;
  }
  if (sorted.absent.empty() && !sorted.unknown.empty()) {
    verdict.text = WaitedFor(sorted.classes, sequence) + ", is not complete; whether " + RankNames(sorted.unknown) +
                   " came to it can't be told any more, after many other calls" + over;
    return verdict;
  }
  if (sorted.absent.empty()) {
    verdict.text = WaitedFor(sorted.classes, sequence) +
                   ", is not complete, though no member is absent: the data itself did not arrive in time" + over;
    return verdict;
  }
  verdict.text = Absentees(group, sorted.absent, WaitedFor(sorted.classes, sequence, sorted.absent)) + over;
  if (sorted.absent.size() == 1) verdict.blamed_rank = static_cast<int>(sorted.absent[0]->rank);
  return verdict;
}

}  // namespace

CallComparison CompareCalls(uint64_t group, uint64_t epoch, uint64_t sequence,
                            const std::vector<InspectedMember>& members, OperationState state) {
  const Sorted sorted = Sort(group, epoch, sequence, members);
  CallComparison result;
  if (sorted.classes.size() > 1) {
    result.verdict = Mismatch(group, sorted.classes, sequence);
    return result;
  }
  if (CallComparison results = CompareResults(group, sequence, members, state);
      results.verdict.has_value() || results.undecided) {
    return results;
  }
  if (state == OperationState::kFailed) {  // a member that has ended since may have ended because of that
    if (!sorted.absent.empty() || !sorted.held.empty()) result.verdict = Expired(group, sorted, sequence, state);
    return result;
  }
  std::vector<const InspectedMember*> ended;
  for (const InspectedMember* member : sorted.absent) {
    if (member->ended) ended.push_back(member);
  }
  if (!ended.empty() && sorted.waiting) {
    result.verdict = CallVerdict{static_cast<int>(absl::StatusCode::kUnavailable),
                                 Absentees(group, ended, WaitedFor(sorted.classes, sequence)),
                                 ended.size() == 1 ? static_cast<int>(ended[0]->rank) : -1};
    return result;
  }
  if (!sorted.left.empty() && sorted.waiting) {
    result.verdict = Left(sorted, sequence);
    return result;
  }
  // A call that ended just after its deadline, or nobody's: no reason to end a group.
  const bool pending = sorted.waiting || !sorted.someone_knows;
  if (state != OperationState::kStalled && pending) {
    result.verdict = Expired(group, sorted, sequence, state);
    return result;
  }
  // Also without a record of the operation: the reporter's agent may not have answered in time.
  result.undecided = !sorted.absent.empty() && pending;
  return result;
}

}  // namespace cohort::launcher
