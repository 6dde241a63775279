#include "cohort/comm/nccl/profiler/nccl_recorder.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "cohort/runtime/base/clock.h"
#include "cohort/runtime/segment/black_box.h"
#include "cohort/runtime/segment/call_names.h"
#include "cohort/runtime/segment/wait_state.h"

namespace cohort::comm::nccl_profiler {

using runtime::MutexLock;

uint64_t GroupOf(uint64_t communicator_hash) {
  uint64_t mixed = (communicator_hash ^ 0x6e63636c636f6d6du) * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ mixed >> 32) * 0xda942042e4dd58b5u;
  return (mixed ^ mixed >> 29) | 1;
}

NcclRecorder::NcclRecorder(runtime::Segment* segment, uint32_t epoch)
    : segment_(segment), epoch_(epoch), box_(segment) {}

NcclRecorder::Communicator* NcclRecorder::Find(uint64_t communicator) {
  const auto found = communicators_.find(communicator);
  return found == communicators_.end() ? nullptr : &found->second;
}

// A process with several ranks of a communicator has one black box: it holds the calls of the first of them.
bool NcclRecorder::IsTwin(const CommunicatorFacts& facts) const {
  return std::any_of(communicators_.begin(), communicators_.end(), [&facts](const auto& entry) {
    return entry.second.facts.hash == facts.hash && entry.second.facts.rank != facts.rank;
  });
}

uint64_t NcclRecorder::Add(const CommunicatorFacts& facts) {
  const MutexLock lock(mutex_);
  if (communicators_.size() >= kCommunicators || (facts.hash != 0 && IsTwin(facts))) return 0;
  communicators_[++latest_communicator_].facts = facts;
  return latest_communicator_;
}

bool NcclRecorder::Describe(uint64_t communicator, const CommunicatorFacts& facts) {
  const MutexLock lock(mutex_);
  Communicator* const known = Find(communicator);
  if (known == nullptr) return false;
  if (known->facts.hash != 0) return true;
  if (facts.hash == 0 || IsTwin(facts)) return false;
  known->facts = facts;
  return true;
}

void NcclRecorder::Remove(uint64_t communicator) {
  const MutexLock lock(mutex_);
  const Communicator* const known = Find(communicator);
  if (known == nullptr) return;
  for (const uint64_t number : known->running) {
    if (CallSlot* const slot = slots_.Find(number)) End(slot, runtime::CallState::kFailed);
  }
  communicators_.erase(communicator);
}

uint64_t NcclRecorder::NextSequence(const AnnouncedCall& call, Communicator* communicator) {
  if (call.peer < 0) return ++communicator->sequence;
  const auto known = communicator->messages.find(call.peer);
  if (known == communicator->messages.end() && communicator->messages.size() >= kPeers) return 0;
  Messages& messages = communicator->messages[call.peer];
  return runtime::CallKindName(call.kind) == "send" ? ++messages.sent : ++messages.received;
}

void* NcclRecorder::Announce(uint64_t communicator, const AnnouncedCall& call) {
  if (!open()) return nullptr;
  const MutexLock lock(mutex_);
  Communicator* const known = Find(communicator);
  if (known == nullptr || known->facts.hash == 0) return nullptr;
  const uint64_t sequence = NextSequence(call, known);
  if (sequence == 0) return nullptr;
  CallSlot& slot = slots_.Add();
  slot.communicator = communicator;
  slot.call = call;
  slot.sequence = sequence;
  return CallHandle{slot.number}.pointer();
}

void NcclRecorder::Begin(CallSlot* slot) {
  Communicator* const communicator = Find(slot->communicator);
  if (communicator == nullptr) return;
  runtime::CallRecord record = ToRecord(slot->call, communicator->facts.rank, communicator->facts.size);
  record.signature.group = GroupOf(communicator->facts.hash);
  record.signature.sequence = slot->sequence;
  record.signature.epoch = epoch_;
  record.wire_signature = runtime::HashSignature(record.signature);
  const int other = std::max(slot->call.peer, slot->call.root);
  if (other >= 0 && static_cast<size_t>(other) < communicator->world_ranks.size()) {
    record.peer_world_rank = communicator->world_ranks[static_cast<size_t>(other)];
  }
  const auto start = [slot, &record](runtime::BlackBoxWriter& writer) { slot->ticket = writer.Start(record); };
  if (!box_.Write(start)) return;
  slot->since_ns = runtime::SteadyNow();
  slot->life = CallLife::kRunning;
  if (communicator->running.size() >= kRunningCalls) EndEarlier(communicator, communicator->running.front() + 1);
  communicator->running.push_back(slot->number);
}

void NcclRecorder::End(CallSlot* slot, runtime::CallState state, bool at_once) {
  if (slot->life != CallLife::kRunning) return;
  slot->life = CallLife::kEnded;
  box_.Write([=](runtime::BlackBoxWriter& writer) { writer.Finish(slot->ticket, state, at_once); });
  if (slot->number == shown_call_) HideWait();
}

void NcclRecorder::HideWait() {
  if (shown_call_ != 0) runtime::HideWait(segment_->control(segment_->local_rank()), shown_wait_);
  shown_call_ = 0;
}

// Ends the communicator's running calls before the one with this number.
void NcclRecorder::EndEarlier(Communicator* communicator, uint64_t number) {
  std::erase_if(communicator->running, [this, number](uint64_t earlier) COHORT_NO_THREAD_SAFETY_ANALYSIS {
    if (earlier >= number) return false;
    if (CallSlot* const slot = slots_.Find(earlier)) End(slot, runtime::CallState::kDone);
    return true;
  });
}

void* NcclRecorder::BeginKernel(const void* call, int channel) {
  if (!open()) return nullptr;
  const CallHandle handle = CallHandle::Of(call);
  if (handle.channel >= 0 || channel < 0) return nullptr;
  const MutexLock lock(mutex_);
  CallSlot* const slot = slots_.Find(handle.number);
  if (slot == nullptr || slot->life == CallLife::kEnded) return nullptr;
  if (slot->life == CallLife::kAnnounced) Begin(slot);
  if (slot->life != CallLife::kRunning) return nullptr;
  const uint64_t bit = uint64_t{1} << channel % CallHandle::kChannels;
  slot->begun |= bit;
  slot->open |= bit;
  return CallHandle{handle.number, channel % CallHandle::kChannels}.pointer();
}

void NcclRecorder::Stop(const void* handle) {
  if (!open()) return;
  const CallHandle stopped = CallHandle::Of(handle);
  const MutexLock lock(mutex_);
  CallSlot* const slot = slots_.Find(stopped.number);
  if (slot == nullptr || slot->life == CallLife::kEnded) return;
  if (stopped.channel < 0) {  // launched
    if (slot->life == CallLife::kRunning || slot->call.channels > 0) return;
    Begin(slot);
    if (Communicator* const communicator = Find(slot->communicator)) std::erase(communicator->running, slot->number);
    return End(slot, runtime::CallState::kDone, /*at_once=*/true);  // when it ends is not announced
  }
  slot->open &= ~(uint64_t{1} << stopped.channel);
  if (slot->open != 0 || std::popcount(slot->begun) < slot->call.channels) return;
  Communicator* const communicator = Find(slot->communicator);
  // Kernels of one communicator run one after the other; messages share theirs.
  if (communicator != nullptr && slot->call.peer < 0) EndEarlier(communicator, slot->number);
  if (communicator != nullptr) std::erase(communicator->running, slot->number);
  End(slot, runtime::CallState::kDone);
}

std::vector<NcclRecorder::Running> NcclRecorder::OldestRunning() {
  const MutexLock lock(mutex_);
  std::vector<Running> oldest;
  for (const auto& [number, communicator] : communicators_) {
    if (communicator.running.empty()) continue;
    const CallSlot* const slot = slots_.Find(communicator.running.front());
    if (slot == nullptr) continue;
    oldest.push_back({.number = slot->number,
                      .communicator = number,
                      .group = GroupOf(communicator.facts.hash),
                      .sequence = slot->sequence,
                      .message = slot->call.peer >= 0,
                      .since_ns = slot->since_ns,
                      .members = communicator.world_ranks});
  }
  std::sort(oldest.begin(), oldest.end(), [](const Running& a, const Running& b) { return a.since_ns < b.since_ns; });
  return oldest;
}

void NcclRecorder::ShowWait(uint64_t number) {
  if (!open()) return;
  const MutexLock lock(mutex_);
  const CallSlot* const slot = slots_.Find(number);
  if (slot == nullptr || slot->life != CallLife::kRunning) return HideWait();
  runtime::RankControl& control = segment_->control(segment_->local_rank());
  const auto show = [&](runtime::BlackBoxWriter&) COHORT_NO_THREAD_SAFETY_ANALYSIS {
    shown_wait_ = runtime::ShowWait(control, slot->ticket, slot->ticket, /*bound=*/false);
  };
  if (box_.Write(show)) shown_call_ = number;
}

std::vector<NcclRecorder::Unresolved> NcclRecorder::UnresolvedCommunicators() {
  const MutexLock lock(mutex_);
  std::vector<Unresolved> unresolved;
  for (const auto& [number, communicator] : communicators_) {
    if (communicator.facts.hash == 0 || !communicator.world_ranks.empty()) continue;
    unresolved.push_back({number, communicator.facts});
  }
  return unresolved;
}

void NcclRecorder::SetMembers(uint64_t communicator, std::vector<int> world_ranks) {
  const MutexLock lock(mutex_);
  Communicator* const known = Find(communicator);
  if (known == nullptr) return;
  if (known->facts.size == 0) known->facts.size = static_cast<int>(world_ranks.size());
  known->world_ranks = std::move(world_ranks);
}

}  // namespace cohort::comm::nccl_profiler
