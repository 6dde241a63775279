#include "cohort/comm/run/lane_runner.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "cohort/comm/request.h"
#include "cohort/comm/transport/stream_copy.h"

namespace cohort::comm {
namespace {

// Local copies and reductions of more than this are spread over several calls of Advance. A fold counts all operands,
// and is never cut into shorter parts than kLeastFoldBytes.
constexpr size_t kLocalBytesAtOnce = 256 * 1024;
constexpr size_t kLeastFoldBytes = 4096;
// A rank's copy of its own block, from this length on, goes past the cache: nothing of it would be left there when the
// caller reads it, and it would drive out what is under way. Between two ranks blocks of 16 and 64 MiB take 0.74 to
// 0.83 of the time with far CPUs, 0.68 to 0.88 with near ones; blocks of 4 MiB took 1.1.
constexpr size_t kLocalPastCacheFrom = size_t{8} << 20;

// Bytes [at, at + bytes) of a fold of own memory. `operands` is used for it.
void FoldOwn(const BoundPlan& plan, const BoundStep& step, size_t at, size_t bytes,
             std::vector<const void*>* operands) {
  const PlanBinding& binding = plan.binding();
  operands->clear();
  for (const RankSlice& source : SourcesOf(*plan.plan(), *step.step)) {
    operands->push_back(plan.memory().At(source.slice).data + at);
  }
  void* const out = plan.At(step.dst) + at;
  binding.fold(&out, 1, operands->data(), operands->size(), bytes / binding.element_bytes, /*stream=*/false);
}

}  // namespace

void LaneRunner::Start(BoundPlan& plan, size_t index, DirectSteps* direct) {
  plan_ = &plan;
  cursor_ = &plan.lane(index);
  direct_ = direct;
  scanned_ = cursor_->next;
  EndReceive();
  local_moved_ = 0;
  sends_.Clear(ended() ? 0 : cursor_->next->sends_before);
  if (index == 0 && plan.begun().state != MessageState::kNone) TakeUp(plan.begun());
}

Progress LaneRunner::Advance() {
  // After the first look at what the others have sent: the fence waits until the published message has left this CPU.
  const absl::Cleanup wake = [this] {
    if (unwoken_ != nullptr) std::exchange(unwoken_, nullptr)->Wake();
  };
  bool moved = false;
  if (!sends_.empty() && !TrySends(&moved)) return Progress::kFailed;
  if (!ended() && !RunSteps(&moved)) return Progress::kFailed;
  if (!ended() && !ReceiveEarly(&moved)) return Progress::kFailed;
  if (ended() && sends_.empty()) return Progress::kDone;
  return moved ? Progress::kMoved : Progress::kBlocked;
}

bool LaneRunner::Settle(SendQueue::Slot& slot, Progress progress, bool* moved) {
  if (progress == Progress::kFailed) [[unlikely]] {
    Fail(std::move(slot.operation->error), slot.peer);
    return false;
  }
  if (progress == Progress::kDone) slot.state = MessageState::kDone;
  *moved = *moved || progress != Progress::kBlocked;
  return true;
}

bool LaneRunner::TrySends(bool* moved) {
  return sends_.ForEachPending([&](SendQueue::Slot& slot) { return Settle(slot, SendQueue::Try(slot), moved); });
}

void LaneRunner::TakeUp(BoundPlan::BegunMessage& begun) {
  const BoundStep& step = *cursor_->next;
  if (step.receives()) {
    receive_ = &begun.receive;
    receive_state_ = begun.state;
    return;
  }
  SendQueue::Slot& slot = sends_.Next(step);
  slot.operation = &begun.send;
  slot.state = begun.state;
  sends_.Keep(slot);
  if (step.ends_publish) sends_.NextStep();
  scanned_ = ++cursor_->next;
}

void LaneRunner::PublishFirst() {
  if (ended() || cursor_->next->fanout == nullptr || cursor_->next->kind != StepKind::kPublish) return;
  if (cursor_->next->step->sends_before > sends_.completed()) return;
  Fanout* const fanout = cursor_->next->fanout;
  SendQueue::Slot& slot = sends_.Next(*cursor_->next);
  plan_->Fill(*cursor_->next, &slot.own);
  bool moved = false;
  if (!Settle(slot, fanout->TryPublishQuietly(*slot.operation), &moved)) return;
  sends_.Keep(slot);
  sends_.NextStep();
  ++cursor_->next;
  unwoken_ = fanout;
}

bool LaneRunner::Post(BoundStep& step, bool* moved) {
  if (step.fanout == nullptr && LinkOf(step) == nullptr) return false;
  SendQueue::Slot& slot = sends_.Next(step);
  plan_->Fill(step, &slot.own);
  if (!Settle(slot, SendQueue::Try(slot), moved)) return false;
  sends_.Keep(slot);
  if (step.ends_publish) sends_.NextStep();
  return true;
}

bool LaneRunner::Combine(std::byte* dst, const std::byte* a, const std::byte* b, size_t bytes) {
  const size_t count = bytes / plan_->binding().element_bytes;
  const PlanBinding& binding = plan_->binding();
  if (binding.user_op == nullptr) [[likely]] {
    binding.kernel(dst, a, b, count);
    return true;
  }
  const UserReduceOp& op = *binding.user_op;
  std::string what = "something that is no std::exception";
  try {
    op.function(dst, a, b, static_cast<int64_t>(count), binding.dtype, op.context);
    return true;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  Fail(absl::InternalError("the function of the user op " + std::string(op.name) + " threw: " + what), -1);
  return false;
}

void LaneRunner::FillReceive(const BoundStep& step, RecvOperation* operation) {
  plan_->Fill(step, operation);
  if (plan_->binding().user_op == nullptr || step.kind != StepKind::kRecvReduce) [[likely]]
    return;
  if (incoming_.size() < step.bytes) incoming_.resize(step.bytes);
  operation->data = incoming_.data();
  operation->reduce = nullptr;
  operation->operand = nullptr;
}

Progress LaneRunner::Receive(BoundStep& step) {
  if (early_ != nullptr && !early_->empty() && early_->at(0).step == &step) {
    EarlyReceives::Entry& entry = early_->at(0);
    receive_state_ = MessageState::kUnderWay;
    Progress progress = Progress::kDone;
    if (!entry.done) progress = Received(step, entry.operation, step.link->TryRecv(entry.operation));
    if (progress == Progress::kDone) early_->RemoveFirst();
    return progress;
  }
  RecvOperation& operation = *receive_;
  if (receive_state_ == MessageState::kFailed) [[unlikely]]
    return Received(step, operation, Progress::kFailed);
  if (receive_state_ == MessageState::kNone) {
    FillReceive(step, &operation);
    receive_state_ = MessageState::kUnderWay;
  }
  if (step.fanout != nullptr) {
    return Received(step, operation, step.fanout->TryRecv(step.peer, operation));
  }
  Link* link = LinkOf(step);
  return link == nullptr ? Progress::kFailed : Received(step, operation, link->TryRecv(operation));
}

Progress LaneRunner::Received(const BoundStep& step, RecvOperation& operation, Progress progress) {
  if (progress == Progress::kFailed) {
    failure_.cause = operation.mismatch ? RunnerFailure::Cause::kOtherCall : RunnerFailure::Cause::kStatus;
    failure_.peer_call = operation.peer_call;
    if (operation.mismatch && plan_->memory().unequal()) {
      constexpr uint64_t kMostBytes = uint64_t{1} << 48;  // of what a signature of another call rarely looks like
      const PlanBinding& binding = plan_->binding();
      failure_.expected_bytes = operation.bytes;
      failure_.peer_bytes = runtime::LengthIn(operation.peer_signature, binding.signature);
      if (failure_.peer_bytes < kMostBytes && failure_.peer_bytes % binding.element_bytes == 0) {
        failure_.cause = RunnerFailure::Cause::kOtherLength;
      }
    }
    Fail(std::move(operation.error), step.peer);
  }
  const bool combines = plan_->binding().user_op != nullptr && step.kind == StepKind::kRecvReduce;
  if (progress == Progress::kDone && combines && step.bytes > 0) [[unlikely]] {
    const std::byte* left = plan_->At(step.src);
    const std::byte* right = incoming_.data();
    if (step.step->incoming_first) std::swap(left, right);
    if (!Combine(plan_->At(step.dst), left, right, step.bytes)) return Progress::kFailed;
  }
  return progress;
}

bool LaneRunner::ReceiveEarly(bool* moved) {
  BoundStep* const cursor = cursor_->next;
  BoundStep* const end = cursor_->end();
  for (uint32_t i = 0; early_ != nullptr && i < early_->size(); ++i) {
    EarlyReceives::Entry& entry = early_->at(i);
    if (entry.done || entry.step == cursor) continue;
    const Progress progress = Received(*entry.step, entry.operation, entry.step->link->TryRecv(entry.operation));
    if (progress == Progress::kFailed) return false;
    entry.done = progress == Progress::kDone;
    *moved = *moved || progress != Progress::kBlocked;
  }
  if (scanned_ == end) return true;
  scanned_ = std::max(scanned_, receive_state_ != MessageState::kNone ? cursor + 1 : cursor);
  int32_t fence = 0;
  for (const BoundStep* step = cursor; step < scanned_; ++step) fence = std::max(fence, step->step->sends_before);
  for (; scanned_ != end; ++scanned_) {
    BoundStep& step = *scanned_;
    fence = std::max(fence, step.step->sends_before);
    if (!step.receives()) continue;
    // Receives of one link begin in their order, so the first that can't stops all.
    const bool combined = plan_->binding().user_op != nullptr && step.kind == StepKind::kRecvReduce;
    if (combined || step.step - cursor->step > step.step->ahead || fence > sends_.completed()) break;
    if (step.fanout != nullptr) break;
    const Link* link = LinkOf(step);
    if (link == nullptr) return false;
    if (!link->wants_early_receives()) continue;
    if (early_ == nullptr) early_ = std::make_unique<EarlyReceives>();
    if (early_->full()) break;
    EarlyReceives::Entry& entry = early_->Add(&step);
    FillReceive(step, &entry.operation);
    const Progress progress = Received(step, entry.operation, step.link->TryRecv(entry.operation));
    if (progress == Progress::kFailed) return false;
    entry.done = progress == Progress::kDone;
    *moved = *moved || progress != Progress::kBlocked;
  }
  return true;
}

Progress LaneRunner::RunLocal(const BoundStep& step) {
  const size_t element_bytes = plan_->binding().element_bytes;
  const size_t at = local_moved_;
  std::byte* const dst = plan_->At(step.dst);
  const std::byte* const src = plan_->At(step.src);
  size_t bytes = step.bytes - at;
  size_t most = kLocalBytesAtOnce;
  if (step.kind == StepKind::kFold) most = std::max(most / static_cast<size_t>(step.step->sources), kLeastFoldBytes);
  if (bytes > most) bytes = most / element_bytes * element_bytes;
  if (bytes > 0) {
    if (step.kind == StepKind::kFold) {
      FoldOwn(*plan_, step, at, bytes, &operands_);
    } else if (step.kind == StepKind::kReduce) {
      if (!Combine(dst + at, src + at, plan_->At(step.src2) + at, bytes)) return Progress::kFailed;
    } else if (dst != src) {
      if (step.bytes >= kLocalPastCacheFrom) {
        StreamCopy(dst + at, src + at, bytes);
      } else {
        std::memcpy(dst + at, src + at, bytes);
      }
    }
  }
  local_moved_ += bytes;
  return local_moved_ == step.bytes ? Progress::kDone : Progress::kMoved;
}

bool LaneRunner::RunSteps(bool* moved) {
  while (!ended()) {
    BoundStep& step = *cursor_->next;
    if (step.step->sends_before > sends_.completed()) return true;
    Progress progress = Progress::kDone;
    switch (step.kind) {
      case StepKind::kSend:
      case StepKind::kPublish:
        if (!Post(step, moved)) return false;
        break;
      case StepKind::kRecv:
      case StepKind::kRecvReduce:
        progress = Receive(step);
        break;
      case StepKind::kReduce:
      case StepKind::kCopy:
        progress = RunLocal(step);
        break;
      case StepKind::kFold:
        progress = plan_->plan()->opens ? RunDirect(*step.step) : RunLocal(step);
        break;
      case StepKind::kOpen:
      case StepKind::kMeet:
        progress = RunDirect(*step.step);
        break;
    }
    if (progress == Progress::kFailed) return false;
    if (progress != Progress::kDone) {
      *moved = *moved || progress == Progress::kMoved;
      return true;
    }
    *moved = true;
    EndReceive();
    local_moved_ = 0;
    cursor_->next = direct_ != nullptr && direct_->diverted() ? cursor_->end() : &step + 1;
  }
  return true;
}

Progress LaneRunner::RunDirect(const Step& step) {
  Fanout* fanout = nullptr;
  if (!FanoutOf(&fanout)) return Progress::kFailed;
  const Progress progress = direct_->Run(step, fanout);
  if (progress == Progress::kFailed) {
    failure_ = std::move(direct_->failure());
    Fail(std::move(failure_.status), failure_.peer);
  }
  return progress;
}

Link* LaneRunner::LinkTo(int peer) {
  const auto place = static_cast<size_t>(peer);
  if (links_.size() <= place) links_.resize(place + 1);
  if (links_[place] != nullptr) [[likely]]
    return links_[place].get();
  absl::StatusOr<std::unique_ptr<Link>> made = source_->MakeLink(peer, lane_);
  if (!made.ok()) {
    Fail(made.status(), peer);
    return nullptr;
  }
  links_[place] = *std::move(made);
  return links_[place].get();
}

bool LaneRunner::FanoutOf(Fanout** out) {
  if (!fanout_asked_) [[unlikely]] {
    absl::StatusOr<std::unique_ptr<Fanout>> made = source_->MakeFanout(lane_);
    if (!made.ok()) {
      Fail(made.status(), -1);
      return false;
    }
    fanout_ = *std::move(made);
    fanout_asked_ = true;
  }
  *out = fanout_.get();
  return true;
}

void LaneRunner::Fail(absl::Status status, int peer) {
  failure_.status = status.ok() ? absl::InternalError("a transport failed without saying why") : std::move(status);
  failure_.peer = peer;
  failed_ = true;
}

void LaneRunner::AddWaitingFor(std::vector<int>* peers) const {
  sends_.AddPeers(peers);
  if (!ended() && receive_state_ != MessageState::kNone) peers->push_back(cursor_->next->peer);
}

}  // namespace cohort::comm
