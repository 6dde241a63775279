#include "cohort/comm/run/runner.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "cohort/comm/run/shorten.h"
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
}  // namespace

PlanRunner::PlanRunner(LinkSource* source, int rank, int size)
    : source_(source), rank_(rank), size_(size), direct_(rank, size) {}
PlanRunner::~PlanRunner() = default;

bool PlanRunner::Start(const Plan& plan, const PlanBinding& binding, const ShortCall* begun) {
  binding_ = binding;
  lanes_in_use_ = plan.lanes.size();
  while (lanes_.size() < lanes_in_use_) {
    auto state = std::make_unique<Lane>();
    state->lane = static_cast<uint16_t>(lanes_.size());
    state->links.resize(size_);
    lanes_.push_back(std::move(state));
  }
  for (size_t i = 0; i < lanes_in_use_; ++i) {
    Lane& lane = *lanes_[i];
    lane.cursor = plan.lanes[i].steps.data();
    lane.end = lane.cursor + plan.lanes[i].steps.size();
    lane.scanned = lane.cursor;
    lane.receiving = false;
    lane.local_moved = 0;
    lane.parts_sent = 0;
    lane.sends.Clear();
  }
  if (absl::Status bound = memory_.Bind(plan, binding_); !bound.ok()) {
    Fail(std::move(bound), -1);
    lanes_in_use_ = 0;
    return false;
  }
  direct_.Start(plan, binding_, memory_.buffers());
  if (begun != nullptr) {
    Lane& lane = *lanes_.front();
    for (size_t step = 0; step < begun->done(); ++step, ++lane.cursor) {
      if (lane.cursor->kind == StepKind::kSend || lane.cursor->kind == StepKind::kPublish) lane.sends.NextStep();
    }
    lane.scanned = lane.cursor;
    lane.parts_sent = static_cast<int>(begun->parts_done());
    std::byte* scratch = memory_.buffers()[static_cast<size_t>(BufferId::kScratch)];
    std::copy(begun->scratch().begin(), begun->scratch().end(), scratch);
  }
  return true;
}

std::unique_ptr<ShortCall> PlanRunner::Shorten(const Plan& plan, const PlanBinding& binding, int divisor) {
  if (failed_ || lanes_.empty()) return nullptr;
  Lane& lane = *lanes_.front();
  return ShortenPlan(plan, binding, divisor,
                     {.rank = rank_,
                      .size = size_,
                      .link = [&](int peer) { return LinkTo(lane, peer); },
                      .fanout = [&]() -> Fanout* {
                        Fanout* fanout = nullptr;
                        return FanoutOf(lane, &fanout) ? fanout : nullptr;
                      }});
}

Progress PlanRunner::Advance() {
  if (failed_) return Progress::kFailed;
  // After the first look at what the others have sent: the fence waits until the published message has left this CPU.
  const absl::Cleanup wake = [this] {
    if (unwoken_ != nullptr) std::exchange(unwoken_, nullptr)->WakeReaders();
  };
  bool moved = false;
  bool done = true;
  for (size_t i = 0; i < lanes_in_use_; ++i) {
    Lane& lane = *lanes_[i];
    if (!lane.sends.empty() && !TrySends(lane, &moved)) return Progress::kFailed;
    if (lane.cursor != lane.end && !RunSteps(lane, &moved)) return Progress::kFailed;
    if (lane.cursor != lane.end && !ReceiveEarly(lane, &moved)) return Progress::kFailed;
    done = done && lane.cursor == lane.end && lane.sends.empty();
  }
  if (done) return Progress::kDone;
  return moved ? Progress::kMoved : Progress::kBlocked;
}

bool PlanRunner::TrySlot(SendQueue::Slot& slot, bool* moved) {
  const bool publish = slot.fanout != nullptr;
  return Settle(slot, publish ? slot.fanout->TryPublish(slot.operation) : slot.link->TrySend(slot.operation), moved);
}

bool PlanRunner::Settle(SendQueue::Slot& slot, Progress progress, bool* moved) {
  if (progress == Progress::kFailed) [[unlikely]] {
    Fail(std::move(slot.operation.error), slot.peer);
    return false;
  }
  slot.done = progress == Progress::kDone;
  *moved = *moved || progress != Progress::kBlocked;
  return true;
}

bool PlanRunner::TrySends(Lane& lane, bool* moved) {
  return lane.sends.ForEachPending([&](SendQueue::Slot& slot) { return TrySlot(slot, moved); });
}

SendQueue::Slot& PlanRunner::NextSlot(Lane& lane, const Range& range, Link* link, Fanout* fanout, int peer) {
  SendQueue::Slot& slot = lane.sends.Next();
  slot.link = link;
  slot.fanout = fanout;
  slot.peer = peer;
  SendOperation& operation = slot.operation;
  operation.data = range.data;
  operation.bytes = range.bytes;
  operation.signature = SignatureOf(range);
  operation.call = binding_.call;
  operation.moved = 0;
  operation.state = nullptr;
  return slot;
}

bool PlanRunner::PostTo(Lane& lane, const Range& range, Link* link, Fanout* fanout, int peer, bool* moved) {
  SendQueue::Slot& slot = NextSlot(lane, range, link, fanout, peer);
  if (!TrySlot(slot, moved)) return false;
  lane.sends.Keep(slot);
  return true;
}

void PlanRunner::PublishFirst() {
  Lane& lane = *lanes_.front();
  if (lane.cursor == lane.end || lane.cursor->kind != StepKind::kPublish) return;
  const Range range = memory_.At(lane.cursor->src);
  Fanout* fanout = nullptr;
  if (!FanoutOf(lane, &fanout) || fanout == nullptr || range.bytes > fanout->max_bytes()) return;
  SendQueue::Slot& slot = NextSlot(lane, range, nullptr, fanout, -1);
  bool moved = false;
  if (!Settle(slot, fanout->TryPublishQuietly(slot.operation), &moved)) return;
  lane.sends.Keep(slot);
  lane.sends.NextStep();
  ++lane.cursor;
  unwoken_ = fanout;
}

bool PlanRunner::Post(Lane& lane, const Step& step, bool* moved) {
  const Range range = memory_.At(step.src);
  if (step.kind == StepKind::kSend) {
    Link* link = LinkTo(lane, step.peer);
    if (link == nullptr || !PostTo(lane, range, link, nullptr, step.peer, moved)) return false;
  } else {
    Fanout* fanout = nullptr;
    if (!FanoutOf(lane, &fanout)) return false;
    if (fanout != nullptr && range.bytes <= fanout->max_bytes()) {
      if (!PostTo(lane, range, nullptr, fanout, -1, moved)) return false;
    } else {
      for (int i = 1 + std::exchange(lane.parts_sent, 0); i < size_; ++i) {
        const int peer = PublishedTo(rank_, size_, i);
        Link* link = LinkTo(lane, peer);
        if (link == nullptr || !PostTo(lane, range, link, nullptr, peer, moved)) return false;
      }
    }
  }
  lane.sends.NextStep();
  return true;
}

bool PlanRunner::Combine(std::byte* dst, const std::byte* a, const std::byte* b, size_t bytes) {
  const size_t count = bytes / binding_.element_bytes;
  if (binding_.user_op == nullptr) [[likely]] {
    binding_.kernel(dst, a, b, count);
    return true;
  }
  const UserReduceOp& op = *binding_.user_op;
  std::string what = "something that is no std::exception";
  try {
    op.function(dst, a, b, static_cast<int64_t>(count), binding_.dtype, op.context);
    return true;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  Fail(absl::InternalError("the function of the user op " + std::string(op.name) + " threw: " + what), -1);
  return false;
}

bool PlanRunner::CombineReceived(Lane& lane, const Step& step) {
  const Range dst = memory_.At(step.dst);
  const std::byte* own = memory_.At(step.src).data;
  const std::byte* incoming = lane.incoming.data();
  if (dst.bytes == 0) return true;
  return Combine(dst.data, step.incoming_first ? incoming : own, step.incoming_first ? own : incoming, dst.bytes);
}

void PlanRunner::FillReceive(Lane& lane, const Step& step, RecvOperation* operation) {
  const Range range = memory_.At(step.dst);
  operation->data = range.data;
  operation->bytes = range.bytes;
  operation->element_bytes = binding_.element_bytes;
  operation->signature = SignatureOf(range);
  operation->call = binding_.call;
  operation->moved = 0;
  operation->state = nullptr;
  operation->mismatch = false;
  operation->reduce = nullptr;
  operation->operand = nullptr;
  if (step.kind != StepKind::kRecvReduce) return;
  if (binding_.user_op != nullptr) [[unlikely]] {
    if (lane.incoming.size() < range.bytes) lane.incoming.resize(range.bytes);
    operation->data = lane.incoming.data();
  } else {
    operation->reduce = binding_.kernel;
    operation->operand = memory_.At(step.src).data;
    operation->incoming_first = step.incoming_first;
  }
}

Progress PlanRunner::Receive(Lane& lane, const Step& step) {
  if (lane.early != nullptr && !lane.early->empty() && lane.early->at(0).step == &step) {
    EarlyReceives::Entry& entry = lane.early->at(0);
    lane.receiving = true;
    Progress progress = Progress::kDone;
    if (!entry.done) {
      progress = Received(lane, step, entry.operation, lane.links[step.peer]->TryRecv(entry.operation));
    }
    if (progress == Progress::kDone) lane.early->RemoveFirst();
    return progress;
  }
  RecvOperation& operation = lane.receive;
  if (!lane.receiving) {
    FillReceive(lane, step, &operation);
    lane.receiving = true;
  }
  Fanout* fanout = nullptr;
  if (step.published && !FanoutOf(lane, &fanout)) return Progress::kFailed;
  if (fanout != nullptr && operation.bytes <= fanout->max_bytes()) {
    return Received(lane, step, operation, fanout->TryRecv(step.peer, operation));
  }
  Link* link = LinkTo(lane, step.peer);
  return link == nullptr ? Progress::kFailed : Received(lane, step, operation, link->TryRecv(operation));
}

Progress PlanRunner::Received(Lane& lane, const Step& step, RecvOperation& operation, Progress progress) {
  if (progress == Progress::kFailed) {
    failure_.mismatch = operation.mismatch;
    failure_.peer_signature = operation.peer_signature;
    failure_.peer_call = operation.peer_call;
    if (operation.mismatch && memory_.unequal()) {
      constexpr uint64_t kMostBytes = uint64_t{1} << 48;  // of what a signature of another call rarely looks like
      failure_.expected_bytes = operation.bytes;
      failure_.peer_bytes = runtime::LengthIn(operation.peer_signature, binding_.signature);
      failure_.other_length = failure_.peer_bytes < kMostBytes && failure_.peer_bytes % binding_.element_bytes == 0;
    }
    Fail(std::move(operation.error), step.peer);
  }
  if (progress == Progress::kDone && binding_.user_op != nullptr && step.kind == StepKind::kRecvReduce) [[unlikely]] {
    if (!CombineReceived(lane, step)) return Progress::kFailed;
  }
  return progress;
}

bool PlanRunner::BeginEarly(Lane& lane, const Step& step, Link& link, bool* moved) {
  if (lane.early == nullptr) lane.early = std::make_unique<EarlyReceives>();
  EarlyReceives::Entry& entry = lane.early->Add(&step);
  FillReceive(lane, step, &entry.operation);
  const Progress progress = Received(lane, step, entry.operation, link.TryRecv(entry.operation));
  entry.done = progress == Progress::kDone;
  *moved = *moved || progress == Progress::kMoved || entry.done;
  return progress != Progress::kFailed;
}

bool PlanRunner::ReceiveEarly(Lane& lane, bool* moved) {
  for (uint32_t i = 0; lane.early != nullptr && i < lane.early->size(); ++i) {
    EarlyReceives::Entry& entry = lane.early->at(i);
    if (entry.done || entry.step == lane.cursor) continue;
    const Progress progress =
        Received(lane, *entry.step, entry.operation, lane.links[entry.step->peer]->TryRecv(entry.operation));
    if (progress == Progress::kFailed) return false;
    entry.done = progress == Progress::kDone;
    *moved = *moved || progress != Progress::kBlocked;
  }
  if (lane.scanned == lane.end) return true;
  lane.scanned = std::max(lane.scanned, lane.receiving ? lane.cursor + 1 : lane.cursor);
  int32_t fence = 0;
  for (const Step* step = lane.cursor; step < lane.scanned; ++step) fence = std::max(fence, step->sends_before);
  for (; lane.scanned != lane.end; ++lane.scanned) {
    const Step& step = *lane.scanned;
    fence = std::max(fence, step.sends_before);
    if (step.kind != StepKind::kRecv && step.kind != StepKind::kRecvReduce) continue;
    // Receives of one link begin in their order, so the first that can't stops all.
    const bool combined = binding_.user_op != nullptr && step.kind == StepKind::kRecvReduce;
    if (combined || lane.scanned - lane.cursor > step.ahead || fence > lane.sends.completed()) break;
    Fanout* fanout = nullptr;
    if (step.published && !FanoutOf(lane, &fanout)) return false;
    if (fanout != nullptr) break;
    Link* link = LinkTo(lane, step.peer);
    if (link == nullptr) return false;
    if (!link->wants_early_receives()) continue;
    if (lane.early != nullptr && lane.early->full()) break;
    if (!BeginEarly(lane, step, *link, moved)) return false;
  }
  return true;
}

Progress PlanRunner::RunLocal(Lane& lane, const Step& step) {
  const Range dst = memory_.At(step.dst);
  const Range src = memory_.At(step.src);
  size_t bytes = dst.bytes - lane.local_moved;
  const size_t at = lane.local_moved;
  if (bytes > kLocalBytesAtOnce) bytes = kLocalBytesAtOnce / binding_.element_bytes * binding_.element_bytes;
  if (bytes > 0) {
    if (step.kind == StepKind::kReduce) {
      const Range src2 = memory_.At(step.src2);
      if (!Combine(dst.data + at, src.data + at, src2.data + at, bytes)) return Progress::kFailed;
    } else if (dst.data != src.data) {
      if (dst.bytes >= kLocalPastCacheFrom) {
        StreamCopy(dst.data + at, src.data + at, bytes);
      } else {
        std::memcpy(dst.data + at, src.data + at, bytes);
      }
    }
  }
  lane.local_moved += bytes;
  return lane.local_moved == dst.bytes ? Progress::kDone : Progress::kMoved;
}

bool PlanRunner::RunSteps(Lane& lane, bool* moved) {
  while (lane.cursor != lane.end) {
    const Step& step = *lane.cursor;
    if (step.sends_before > lane.sends.completed()) return true;
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
        progress = RunDirect(lane, step);
        break;
    }
    if (progress == Progress::kFailed) return false;
    if (progress != Progress::kDone) {
      *moved = *moved || progress == Progress::kMoved;
      return true;
    }
    *moved = true;
    lane.receiving = false;
    lane.local_moved = 0;
    ++lane.cursor;
    if (direct_.diverted()) lane.cursor = lane.end;
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
    if (lane.cursor != lane.end && lane.receiving) peers.push_back(lane.cursor->peer);
  }
  if (lanes_in_use_ > 0) direct_.AddWaitingFor(&peers);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

void PlanRunner::Reset() {
  lanes_.clear();
  lanes_in_use_ = 0;
  unwoken_ = nullptr;
  failed_ = false;
}

}  // namespace cohort::comm
