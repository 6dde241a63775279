#include "cohort/comm/run/runner.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "cohort/comm/transport/stream_copy.h"
#include "cohort/runtime/base/check.h"

namespace cohort::comm {
namespace {

// Local copies and reductions of more than this are spread over several calls of Advance.
constexpr size_t kLocalBytesAtOnce = 256 * 1024;
// A rank's copy of its own block, from this length on, goes past the cache: nothing of it would be left there when the
// caller reads it, and it would drive out what is under way. Between two ranks blocks of 16 and 64 MiB take 0.74 to
// 0.83 of the time with far CPUs, 0.68 to 0.88 with near ones; blocks of 4 MiB took 1.1.
constexpr size_t kLocalPastCacheFrom = size_t{8} << 20;
// Bound plans with more steps are not kept by calls: a group may remember many calls.
constexpr size_t kMostKeptSteps = 64;

bool Publishes(const comm::Lane& lane) {
  return std::any_of(lane.steps.begin(), lane.steps.end(),
                     [](const Step& step) { return step.published || step.kind == StepKind::kPublish; });
}
}  // namespace

PlanRunner::PlanRunner(LinkSource* source, int rank, int size)
    : source_(source), rank_(rank), size_(size), direct_(rank, size) {}
PlanRunner::~PlanRunner() = default;

bool PlanRunner::BindTo(BoundPlan* bound, std::shared_ptr<const Plan> plan, const PlanBinding& binding) {
  while (lanes_.size() < plan->lanes.size()) {
    auto state = std::make_unique<Lane>();
    state->lane = static_cast<uint16_t>(lanes_.size());
    state->links.resize(size_);
    lanes_.push_back(std::move(state));
  }
  fanouts_.assign(plan->lanes.size(), nullptr);
  for (size_t i = 0; i < plan->lanes.size(); ++i) {
    if (Publishes(plan->lanes[i]) && !FanoutOf(*lanes_[i], &fanouts_[i])) return false;
  }
  if (absl::Status status = bound->Bind(std::move(plan), binding, fanouts_); !status.ok()) {
    Fail(std::move(status), -1);
    return false;
  }
  return true;
}

bool PlanRunner::Start(std::shared_ptr<const Plan> plan, const PlanBinding& binding) {
  if (own_.Fits(plan.get(), binding)) {
    own_.Begin(binding);
  } else if (!BindTo(&own_, std::move(plan), binding)) {
    lanes_in_use_ = 0;
    return false;
  }
  Start(own_);
  return true;
}

void PlanRunner::Start(BoundPlan& plan) {
  plan_ = &plan;
  lanes_in_use_ = plan.lanes();
  for (size_t i = 0; i < lanes_in_use_; ++i) {
    Lane& lane = *lanes_[i];
    lane.plan = &plan.lane(i);
    lane.scanned = lane.plan->next;
    lane.EndReceive();
    lane.local_moved = 0;
    lane.sends.Clear(lane.ended() ? 0 : lane.plan->next->sends_before);
  }
  if (plan.begun().under_way) lanes_.front()->TakeUp(plan.begun());
  direct_.Start(*plan.plan(), plan.binding(), plan.memory().buffers());
}

std::shared_ptr<BoundPlan> PlanRunner::Bind(std::shared_ptr<const Plan> plan, const PlanBinding& binding) {
  size_t steps = 0;
  for (const comm::Lane& lane : plan->lanes) steps += lane.steps.size();
  if (failed_ || steps > kMostKeptSteps) return nullptr;
  auto bound = std::make_shared<BoundPlan>();
  return BindTo(bound.get(), std::move(plan), binding) ? bound : nullptr;
}

Progress PlanRunner::Advance() {
  if (failed_) return Progress::kFailed;
  // After the first look at what the others have sent: the fence waits until the published message has left this CPU.
  const absl::Cleanup wake = [this] {
    if (unwoken_ != nullptr) std::exchange(unwoken_, nullptr)->Wake();
  };
  bool moved = false;
  bool done = true;
  for (size_t i = 0; i < lanes_in_use_; ++i) {
    Lane& lane = *lanes_[i];
    if (!lane.sends.empty() && !TrySends(lane, &moved)) return Progress::kFailed;
    if (!lane.ended() && !RunSteps(lane, &moved)) return Progress::kFailed;
    if (!lane.ended() && !ReceiveEarly(lane, &moved)) return Progress::kFailed;
    done = done && lane.ended() && lane.sends.empty();
  }
  if (done) {
    lanes_in_use_ = 0;  // the plan may go
    return Progress::kDone;
  }
  return moved ? Progress::kMoved : Progress::kBlocked;
}

bool PlanRunner::TrySlot(SendQueue::Slot& slot, bool* moved) {
  if (slot.failed) [[unlikely]]
    return Settle(slot, Progress::kFailed, moved);
  const bool publish = slot.fanout != nullptr;
  return Settle(slot, publish ? slot.fanout->TryPublish(*slot.operation) : slot.link->TrySend(*slot.operation), moved);
}

bool PlanRunner::Settle(SendQueue::Slot& slot, Progress progress, bool* moved) {
  if (progress == Progress::kFailed) [[unlikely]] {
    Fail(std::move(slot.operation->error), slot.peer);
    return false;
  }
  slot.done = progress == Progress::kDone;
  *moved = *moved || progress != Progress::kBlocked;
  return true;
}

bool PlanRunner::TrySends(Lane& lane, bool* moved) {
  return lane.sends.ForEachPending([&](SendQueue::Slot& slot) { return TrySlot(slot, moved); });
}

SendQueue::Slot& PlanRunner::NextSlot(Lane& lane, const BoundStep& step) {
  SendQueue::Slot& slot = lane.sends.Next();
  slot.link = step.link;
  slot.fanout = step.fanout;
  slot.peer = step.fanout != nullptr ? -1 : step.peer;
  slot.operation = &slot.own;
  slot.failed = false;
  plan_->Fill(step, slot.operation);
  return slot;
}

void PlanRunner::Lane::TakeUp(BoundPlan::BegunMessage& begun) {
  const BoundStep& step = *plan->next;
  if (step.receives()) {
    receiving = true;
    receive = &begun.receive;
    receive_failed = begun.failed;
    return;
  }
  SendQueue::Slot& slot = sends.Next();
  slot.link = step.link;
  slot.fanout = step.fanout;
  slot.peer = step.fanout != nullptr ? -1 : step.peer;
  slot.operation = &begun.send;
  slot.failed = begun.failed;
  sends.Keep(slot);
  if (step.ends_publish) sends.NextStep();
  scanned = ++plan->next;
}

void PlanRunner::PublishFirst() {
  Lane& lane = *lanes_.front();
  if (lane.ended() || lane.plan->next->fanout == nullptr || lane.plan->next->kind != StepKind::kPublish) return;
  if (lane.plan->next->step->sends_before > lane.sends.completed()) return;
  Fanout* const fanout = lane.plan->next->fanout;
  SendQueue::Slot& slot = NextSlot(lane, *lane.plan->next);
  bool moved = false;
  if (!Settle(slot, fanout->TryPublishQuietly(*slot.operation), &moved)) return;
  lane.sends.Keep(slot);
  lane.sends.NextStep();
  ++lane.plan->next;
  unwoken_ = fanout;
}

bool PlanRunner::Post(Lane& lane, BoundStep& step, bool* moved) {
  if (step.fanout == nullptr && LinkOf(lane, step) == nullptr) return false;
  SendQueue::Slot& slot = NextSlot(lane, step);
  if (!TrySlot(slot, moved)) return false;
  lane.sends.Keep(slot);
  if (step.ends_publish) lane.sends.NextStep();
  return true;
}

bool PlanRunner::Combine(std::byte* dst, const std::byte* a, const std::byte* b, size_t bytes) {
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

bool PlanRunner::CombineReceived(Lane& lane, const BoundStep& step) {
  const std::byte* own = plan_->At(step.src);
  const std::byte* incoming = lane.incoming.data();
  const bool incoming_first = step.step->incoming_first;
  if (step.bytes == 0) return true;
  return Combine(plan_->At(step.dst), incoming_first ? incoming : own, incoming_first ? own : incoming, step.bytes);
}

void PlanRunner::FillReceive(Lane& lane, const BoundStep& step, RecvOperation* operation) {
  plan_->Fill(step, operation);
  if (plan_->binding().user_op == nullptr || step.kind != StepKind::kRecvReduce) [[likely]]
    return;
  if (lane.incoming.size() < step.bytes) lane.incoming.resize(step.bytes);
  operation->data = lane.incoming.data();
  operation->reduce = nullptr;
  operation->operand = nullptr;
}

Progress PlanRunner::Receive(Lane& lane, BoundStep& step) {
  if (lane.early != nullptr && !lane.early->empty() && lane.early->at(0).step == &step) {
    EarlyReceives::Entry& entry = lane.early->at(0);
    lane.receiving = true;
    Progress progress = Progress::kDone;
    if (!entry.done) progress = Received(lane, step, entry.operation, step.link->TryRecv(entry.operation));
    if (progress == Progress::kDone) lane.early->RemoveFirst();
    return progress;
  }
  RecvOperation& operation = *lane.receive;
  if (lane.receive_failed) [[unlikely]]
    return Received(lane, step, operation, Progress::kFailed);
  if (!lane.receiving) {
    FillReceive(lane, step, &operation);
    lane.receiving = true;
  }
  if (step.fanout != nullptr) {
    return Received(lane, step, operation, step.fanout->TryRecv(step.peer, operation));
  }
  Link* link = LinkOf(lane, step);
  return link == nullptr ? Progress::kFailed : Received(lane, step, operation, link->TryRecv(operation));
}

Progress PlanRunner::Received(Lane& lane, const BoundStep& step, RecvOperation& operation, Progress progress) {
  if (progress == Progress::kFailed) {
    failure_.mismatch = operation.mismatch;
    failure_.peer_signature = operation.peer_signature;
    failure_.peer_call = operation.peer_call;
    if (operation.mismatch && plan_->memory().unequal()) {
      constexpr uint64_t kMostBytes = uint64_t{1} << 48;  // of what a signature of another call rarely looks like
      const PlanBinding& binding = plan_->binding();
      failure_.expected_bytes = operation.bytes;
      failure_.peer_bytes = runtime::LengthIn(operation.peer_signature, binding.signature);
      failure_.other_length = failure_.peer_bytes < kMostBytes && failure_.peer_bytes % binding.element_bytes == 0;
    }
    Fail(std::move(operation.error), step.peer);
  }
  if (progress == Progress::kDone && plan_->binding().user_op != nullptr && step.kind == StepKind::kRecvReduce)
      [[unlikely]] {
    if (!CombineReceived(lane, step)) return Progress::kFailed;
  }
  return progress;
}

bool PlanRunner::BeginEarly(Lane& lane, const BoundStep& step, bool* moved) {
  if (lane.early == nullptr) lane.early = std::make_unique<EarlyReceives>();
  EarlyReceives::Entry& entry = lane.early->Add(&step);
  FillReceive(lane, step, &entry.operation);
  const Progress progress = Received(lane, step, entry.operation, step.link->TryRecv(entry.operation));
  entry.done = progress == Progress::kDone;
  *moved = *moved || progress == Progress::kMoved || entry.done;
  return progress != Progress::kFailed;
}

bool PlanRunner::ReceiveEarly(Lane& lane, bool* moved) {
  BoundStep* const cursor = lane.plan->next;
  BoundStep* const end = lane.plan->end();
  for (uint32_t i = 0; lane.early != nullptr && i < lane.early->size(); ++i) {
    EarlyReceives::Entry& entry = lane.early->at(i);
    if (entry.done || entry.step == cursor) continue;
    const Progress progress = Received(lane, *entry.step, entry.operation, entry.step->link->TryRecv(entry.operation));
    if (progress == Progress::kFailed) return false;
    entry.done = progress == Progress::kDone;
    *moved = *moved || progress != Progress::kBlocked;
  }
  if (lane.scanned == end) return true;
  lane.scanned = std::max(lane.scanned, lane.receiving ? cursor + 1 : cursor);
  int32_t fence = 0;
  for (const BoundStep* step = cursor; step < lane.scanned; ++step) fence = std::max(fence, step->step->sends_before);
  for (; lane.scanned != end; ++lane.scanned) {
    BoundStep& step = *lane.scanned;
    fence = std::max(fence, step.step->sends_before);
    if (!step.receives()) continue;
    // Receives of one link begin in their order, so the first that can't stops all.
    const bool combined = plan_->binding().user_op != nullptr && step.kind == StepKind::kRecvReduce;
    if (combined || step.step - cursor->step > step.step->ahead || fence > lane.sends.completed()) break;
    if (step.fanout != nullptr) break;
    const Link* link = LinkOf(lane, step);
    if (link == nullptr) return false;
    if (!link->wants_early_receives()) continue;
    if (lane.early != nullptr && lane.early->full()) break;
    if (!BeginEarly(lane, step, moved)) return false;
  }
  return true;
}

Progress PlanRunner::RunLocal(Lane& lane, const BoundStep& step) {
  const size_t element_bytes = plan_->binding().element_bytes;
  const size_t at = lane.local_moved;
  std::byte* const dst = plan_->At(step.dst);
  const std::byte* const src = plan_->At(step.src);
  size_t bytes = step.bytes - at;
  if (bytes > kLocalBytesAtOnce) bytes = kLocalBytesAtOnce / element_bytes * element_bytes;
  if (bytes > 0) {
    if (step.kind == StepKind::kReduce) {
      if (!Combine(dst + at, src + at, plan_->At(step.src2) + at, bytes)) return Progress::kFailed;
    } else if (dst != src) {
      if (step.bytes >= kLocalPastCacheFrom) {
        StreamCopy(dst + at, src + at, bytes);
      } else {
        std::memcpy(dst + at, src + at, bytes);
      }
    }
  }
  lane.local_moved += bytes;
  return lane.local_moved == step.bytes ? Progress::kDone : Progress::kMoved;
}

bool PlanRunner::RunSteps(Lane& lane, bool* moved) {
  while (!lane.ended()) {
    BoundStep& step = *lane.plan->next;
    if (step.step->sends_before > lane.sends.completed()) return true;
    Progress progress = Progress::kDone;
    switch (step.kind) {
      case StepKind::kSend:
      case StepKind::kPublish:
        if (!Post(lane, step, moved)) return false;
        break;
      case StepKind::kRecv:
      case StepKind::kRecvReduce:
        progress = Receive(lane, step);
        break;
      case StepKind::kReduce:
      case StepKind::kCopy:
        progress = RunLocal(lane, step);
        break;
      case StepKind::kOpen:
      case StepKind::kMeet:
      case StepKind::kFold:
        progress = RunDirect(lane, *step.step);
        break;
    }
    if (progress == Progress::kFailed) return false;
    if (progress != Progress::kDone) {
      *moved = *moved || progress == Progress::kMoved;
      return true;
    }
    *moved = true;
    lane.EndReceive();
    lane.local_moved = 0;
    lane.plan->next = direct_.diverted() ? lane.plan->end() : &step + 1;
  }
  return true;
}

Progress PlanRunner::RunDirect(Lane& lane, const Step& step) {
  Fanout* fanout = nullptr;
  if (!FanoutOf(lane, &fanout)) return Progress::kFailed;
  const Progress progress = direct_.Run(step, fanout);
  if (progress == Progress::kFailed) {
    failure_ = std::move(direct_.failure());
    Fail(std::move(failure_.status), failure_.peer);
  }
  return progress;
}

Link* PlanRunner::LinkTo(Lane& lane, int peer) {
  if (Link* link = lane.links[peer].get(); link != nullptr) [[likely]]
    return link;
  absl::StatusOr<std::unique_ptr<Link>> made = source_->MakeLink(peer, lane.lane);
  if (!made.ok()) {
    Fail(made.status(), peer);
    return nullptr;
  }
  lane.links[peer] = *std::move(made);
  return lane.links[peer].get();
}

bool PlanRunner::FanoutOf(Lane& lane, Fanout** out) {
  if (!lane.fanout_asked) [[unlikely]] {
    absl::StatusOr<std::unique_ptr<Fanout>> made = source_->MakeFanout(lane.lane);
    if (!made.ok()) {
      Fail(made.status(), -1);
      return false;
    }
    lane.fanout = *std::move(made);
    lane.fanout_asked = true;
  }
  *out = lane.fanout.get();
  return true;
}

void PlanRunner::Fail(absl::Status status, int peer) {
  failure_.status = status.ok() ? absl::InternalError("a transport failed without saying why") : std::move(status);
  failure_.peer = peer;
  failed_ = true;
}

std::vector<int> PlanRunner::WaitingFor() const {
  std::vector<int> peers;
  for (size_t i = 0; i < lanes_in_use_; ++i) {
    const Lane& lane = *lanes_[i];
    lane.sends.AddPeers(&peers);
    if (!lane.ended() && lane.receiving) peers.push_back(lane.plan->next->peer);
  }
  if (lanes_in_use_ > 0) direct_.AddWaitingFor(&peers);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

void PlanRunner::Reset() {
  own_.Forget();
  lanes_.clear();
  lanes_in_use_ = 0;
  unwoken_ = nullptr;
  failed_ = false;
}

}  // namespace cohort::comm
