// The receiving half of PlanRunner.
#include <algorithm>
#include <memory>
#include <utility>

#include "cohort/comm/run/runner.h"

namespace cohort::comm {

void PlanRunner::FillReceive(LaneState& lane, const Step& step, RecvOperation* operation) {
  const Range range = Bind(step.dst);
  operation->data = range.data;
  operation->bytes = range.bytes;
  operation->element_bytes = binding_.element_bytes;
  operation->signature = binding_.signature;
  if (pieces_ == 0) [[unlikely]]
    operation->signature = runtime::SignatureWithLength(binding_.signature, range.bytes);
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
    operation->operand = Bind(step.src).data;
    operation->incoming_first = step.incoming_first;
  }
}

Progress PlanRunner::Receive(LaneState& lane, const Step& step) {
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

Progress PlanRunner::Received(LaneState& lane, const Step& step, RecvOperation& operation, Progress progress) {
  if (progress == Progress::kFailed) {
    NoteMismatch(operation);
    Fail(std::move(operation.error), step.peer);
  }
  if (progress == Progress::kDone && binding_.user_op != nullptr && step.kind == StepKind::kRecvReduce) [[unlikely]] {
    if (!CombineReceived(lane, step)) return Progress::kFailed;
  }
  return progress;
}

bool PlanRunner::BeginEarly(LaneState& lane, const Step& step, Link& link, bool* moved) {
  if (lane.early == nullptr) lane.early = std::make_unique<EarlyReceives>();
  EarlyReceives::Entry& entry = lane.early->Add(&step);
  FillReceive(lane, step, &entry.operation);
  const Progress progress = Received(lane, step, entry.operation, link.TryRecv(entry.operation));
  entry.done = progress == Progress::kDone;
  *moved = *moved || progress == Progress::kMoved || entry.done;
  return progress != Progress::kFailed;
}

bool PlanRunner::ReceiveEarly(LaneState& lane, bool* moved) {
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
    if (combined || lane.scanned - lane.cursor > step.ahead || fence > CompletedSends(lane)) break;
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

}  // namespace cohort::comm
