#include "cohort/launcher/agent/rank/rank_waits.h"

#include <algorithm>
#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/rank/call_state.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/wait_graph.h"
#include "cohort/runtime/segment/wait_state.h"

namespace cohort::launcher {
namespace {

void AddCall(const runtime::CallRecord& record, v1::RankWait* wait) {
  const runtime::AwaitedCall call = runtime::MakeAwaitedCall(record);
  v1::AwaitedCall& message = *wait->add_calls();
  message.set_group(call.group);
  message.set_epoch(call.epoch);
  message.set_sequence(call.sequence);
  message.set_kind(call.kind);
  message.set_peer(call.peer);
  message.set_bytes(call.bytes);
  message.set_device(call.device);
  message.set_call(call.call);
  message.set_site(call.site);
}

// The latest `most` entries.
void AddProgress(const runtime::CallProgress& progress, size_t most, v1::RankWait* wait) {
  wait->set_forgets(progress.forgets || progress.latest.size() > most);
  for (size_t i = 0; i < std::min(most, progress.latest.size()); ++i) {
    const runtime::LatestCall& call = progress.latest[i];
    v1::LatestCall& message = *wait->add_latest();
    message.set_group(call.group);
    message.set_kind(call.kind);
    message.set_peer(call.peer);
    message.set_sequence(call.sequence);
    message.set_done(call.done);
  }
}

}  // namespace

RankWaits::RankWaits(std::function<runtime::Segment&(int local_rank)> segment_of, const v1::Assignment* assignment)
    : segment_of_(std::move(segment_of)),
      assignment_(assignment),
      seen_(static_cast<size_t>(assignment->placement().ranks_size())) {}

void RankWaits::NoteGroup(const v1::StallReport& stall) {
  // A set that stands for a list that was too long says nothing of who belongs to it.
  if (stall.members().everyone() && !stall.whole_world()) return;
  const auto known = std::find_if(groups_.begin(), groups_.end(),
                                  [&stall](const v1::WaitedGroup& group) { return group.group() == stall.group(); });
  if (known != groups_.end()) return;
  v1::WaitedGroup& group = groups_.emplace_back();
  group.set_group(stall.group());
  if (stall.whole_world()) {
    group.mutable_members()->set_everyone(true);
  } else {
    *group.mutable_members() = stall.members();
  }
  if (groups_.size() > kMaxGroups) groups_.pop_front();
}

// A rank says who belongs to a group when its call has not moved for 50 ms.
bool RankWaits::KnowsGroupsOf(const v1::RankWait& wait) const {
  return std::all_of(wait.calls().begin(), wait.calls().end(), [this](const v1::AwaitedCall& call) {
    return std::any_of(groups_.begin(), groups_.end(),
                       [&call](const v1::WaitedGroup& group) { return group.group() == call.group(); });
  });
}

std::optional<v1::NodeWaits> RankWaits::Look(TimePoint now) {
  v1::NodeWaits waits;
  for (size_t i = 0; i < seen_.size(); ++i) {
    const int local_rank = static_cast<int>(i);
    runtime::Segment& segment = segment_of_(local_rank);
    const uint64_t number = runtime::ReadWaitNumber(segment.control(local_rank)).number;
    if (number == 0) {
      seen_[i] = {};
      continue;
    }
    if (seen_[i].segment != &segment || seen_[i].number != number) {
      seen_[i] = {.segment = &segment, .number = number, .since = now, .told = false};
    }
    if (seen_[i].told || now - seen_[i].since < kUnmovedFor) continue;
    v1::RankWait wait = Describe(local_rank, runtime::kBlackBoxRecords);
    if (wait.number() != number) continue;
    if (!KnowsGroupsOf(wait) && now - seen_[i].since < kGroupsComeWithin) continue;
    seen_[i].told = true;
    if (wait.bound() && !wait.calls().empty()) *waits.add_waits() = std::move(wait);
  }
  if (waits.waits().empty()) return std::nullopt;
  *waits.mutable_groups() = GroupsOf(waits.waits());
  return waits;
}

template <typename Waits>
google::protobuf::RepeatedPtrField<v1::WaitedGroup> RankWaits::GroupsOf(const Waits& waits) const {
  std::unordered_set<uint64_t> awaited;
  for (const v1::RankWait& wait : waits) {
    for (const v1::AwaitedCall& call : wait.calls()) awaited.insert(call.group());
  }
  google::protobuf::RepeatedPtrField<v1::WaitedGroup> groups;
  for (const v1::WaitedGroup& group : groups_) {
    if (awaited.contains(group.group())) *groups.Add() = group;
  }
  return groups;
}

v1::NodeWaits RankWaits::Answer(const v1::WaitQuestion& question) const {
  v1::NodeWaits waits;
  waits.set_request(question.request());
  for (const v1::RankPlacement& rank : assignment_->placement().ranks()) {
    if (std::find(question.ranks().begin(), question.ranks().end(), rank.rank()) == question.ranks().end()) continue;
    const int local_rank = static_cast<int>(rank.local_rank());
    const runtime::WaitNumber now = runtime::ReadWaitNumber(segment_of_(local_rank).control(local_rank));
    if (now.number == 0) continue;
    v1::RankWait& wait = *waits.add_waits();
    wait.set_rank(rank.rank());
    wait.set_number(now.number);
    wait.set_looks(now.looks);
  }
  return waits;
}

v1::CallState RankWaits::LatestCallOf(int local_rank) const {
  return LatestCall(segment_of_(local_rank).black_box_of(local_rank),
                    assignment_->placement().ranks(local_rank).rank());
}

v1::RankWait RankWaits::Describe(int local_rank, size_t most_progress) const {
  v1::RankWait message;
  message.set_rank(assignment_->placement().ranks(local_rank).rank());
  const runtime::RankControl& control = segment_of_(local_rank).control(local_rank);
  const runtime::BlackBoxReader box = segment_of_(local_rank).black_box_of(local_rank);
  const std::optional<runtime::Wait> wait = runtime::ReadWait(control, box);
  AddProgress(runtime::ReadCallProgress(box), most_progress, &message);
  // The box was read during this wait only if the wait still goes on.
  if (!wait.has_value() || runtime::ReadWaitNumber(control).number != wait->number) return message;
  message.set_number(wait->number);
  message.set_looks(wait->looks);
  message.set_bound(wait->bound);
  for (const runtime::CallRecord& record : wait->awaited) AddCall(record, &message);
  return message;
}

void RankWaits::Add(v1::NodeView* view) const {
  std::vector<v1::RankWait> waits;
  for (int i = 0; i < view->ranks_size(); ++i) {
    waits.push_back(Describe(i, kProgressForWatchers));
    *view->mutable_ranks(i)->mutable_wait() = waits.back();
  }
  *view->mutable_groups() = GroupsOf(waits);
}

}  // namespace cohort::launcher
