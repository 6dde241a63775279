#include "cohort/comm/run/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "cohort/comm/run/mismatch.h"

namespace cohort::comm {
namespace {

constexpr uint64_t kWithoutDeadline = std::numeric_limits<uint64_t>::max();
// Then it is the next peer's turn, however many messages of this one are ready.
constexpr int kMessagesPerTurn = 32;

}  // namespace

PointToPoint::PointToPoint(const GroupContext* group, LinkSource* links)
    : HostProvider(group), group_(group), links_(links), peers_(group->size), earliest_deadline_(kWithoutDeadline) {}

PointToPoint::~PointToPoint() { Fail(absl::CancelledError("the communicator was destroyed")); }

absl::StatusOr<ServicePlan> PointToPoint::Choose(const CollectiveRequest& request,
                                                 const std::string& forced_algorithm) {
  if (request.memory != MemoryKind::kHost) {
    return absl::UnimplementedError("send and receive of CUDA memory need the NCCL provider: copy to the host first");
  }
  if (!forced_algorithm.empty()) {
    return absl::InvalidArgumentError("send and receive have no algorithms; clear CallOptions::algorithm (\"" +
                                      forced_algorithm + "\")");
  }
  return ServicePlan();
}

std::string PointToPoint::Explain(const CollectiveRequest&) { return "one message over a link of its own"; }

void PointToPoint::Start(PreparedCall& call, const void* in, void* out) {
  StartCall(call, in, out, Idle(call.request));
}

std::unique_ptr<PointToPoint::Peer> PointToPoint::NewPeer(int rank) const {
  const auto plan_of = [&](CollectiveKind kind) {
    const bool sends = kind == CollectiveKind::kSend;
    Step step{.kind = sends ? StepKind::kSend : StepKind::kRecv, .peer = rank};
    (sends ? step.src : step.dst) = {sends ? BufferId::kIn : BufferId::kOut, 0, 1};
    Plan plan;
    plan.kind = kind;
    plan.size = group_->size;
    plan.rank = group_->rank;
    plan.lanes.push_back({{step}});
    return std::make_shared<const Plan>(std::move(plan));
  };
  auto peer = std::make_unique<Peer>();
  peer->sends.plan = plan_of(CollectiveKind::kSend);
  peer->receives.plan = plan_of(CollectiveKind::kRecv);
  return peer;
}

PlanBinding PointToPoint::BindingOf(const CollectiveRequest& request) {
  PlanBinding binding;
  binding.in = request.in;
  binding.out = request.out;
  binding.count = static_cast<size_t>(request.count);
  binding.element_bytes = SizeOf(request.dtype);
  return binding;
}

void PointToPoint::Prepare(PreparedCall& call) {
  Peer* const peer = peers_[call.request.peer].get();
  if (peer == nullptr || peer->link == nullptr) return;
  auto bound = std::make_shared<BoundPlan>();
  Fanout* const no_fanout = nullptr;
  if (!bound->Bind(peer->of(call.request.kind).plan, BindingOf(call.request), {&no_fanout, 1}).ok()) return;
  call.inline_run = InlineRun::Of(bound.get(), 1, [peer](int) { return peer->link.get(); });
  if (call.inline_run != nullptr) call.plan = std::move(bound);
}

runtime::Work PointToPoint::Launch(const AcceptedCall& call) {
  const int rank = call.request.peer;
  if (peers_[rank] == nullptr) peers_[rank] = NewPeer(rank);
  Peer& peer = *peers_[rank];
  Operation* const operation = TakeNext();
  operation->signature = call.record.wire_signature;
  operation->deadline_ns = DeadlineAfter(CoarseNow(), call.timeout);
  earliest_deadline_ = std::min(earliest_deadline_, operation->deadline_ns);
  runtime::Work work = runtime::Work::Adopt(operation);
  if (!peer.active) active_.push_back(rank);
  peer.active = true;
  peer.of(call.request.kind).queue.push(operation);
  ++pending_;
  // A receive that was begun inline has just looked; another look would take the line from the peer that writes it.
  if (draining_ || (call.begun && call.request.kind == CollectiveKind::kRecv)) return work;
  launched_ = operation;
  Drain(rank);
  launched_ = nullptr;
  return work;
}

bool PointToPoint::Connect(int rank, Peer& peer) {
  if (peer.link != nullptr) return true;
  absl::StatusOr<std::unique_ptr<Link>> link = links_->MakeLink(rank, kPointToPointLane);
  if (!link.ok()) {
    group_->fail(link.status(), -1);
    return false;
  }
  peer.link = *std::move(link);
  return true;
}

bool PointToPoint::Begin(int rank, Peer& peer, Channel& channel) {
  if (!Connect(rank, peer)) return false;
  const Operation& first = *channel.queue.front();
  BoundPlan* plan = TakeUp(first.call);
  if (plan == nullptr) {
    plan = &channel.own;
    PlanBinding binding = BindingOf(first.call.request);
    binding.signature = first.signature;
    binding.call = &first.call.record;
    Fanout* const no_fanout = nullptr;
    if (plan->Fits(channel.plan.get(), binding)) {
      plan->Begin(binding);
    } else if (const absl::Status bound = plan->Bind(channel.plan, binding, {&no_fanout, 1}); !bound.ok()) {
      group_->fail(bound, -1);
      return false;
    }
    plan->lane(0).steps.front().link = peer.link.get();
  }
  channel.runner.Start(*plan, 0, nullptr);
  channel.running = true;
  return true;
}

Progress PointToPoint::Advance(int rank, Peer& peer, Channel& channel) {
  if (channel.queue.empty()) return Progress::kBlocked;
  if (!channel.running && !Begin(rank, peer, channel)) return Progress::kFailed;
  const Progress progress = channel.runner.Advance();
  if (progress == Progress::kDone) channel.running = false;
  if (progress == Progress::kFailed) {
    const RunnerFailure& failure = channel.runner.failure();
    if (failure.cause != RunnerFailure::Cause::kStatus) {
      group_->fail(ExplainMismatch(*group_, channel.queue.front()->call.record, failure).error, -1);
    } else if (!suspicion_.Hold(failure.status, rank)) {
      group_->fail(failure.status, rank);
    }
  }
  return progress;
}

void PointToPoint::Finish(Channel& channel) {
  --pending_;
  if (pending_ == 0) earliest_deadline_ = kWithoutDeadline;
  watch_.Clear();
  Operation* const operation = channel.queue.pop();
  const bool at_once = operation == launched_ && BytesOf(operation->call.request) <= kMostBytesAtOnce;
  operation->Finish(group_->runtime->segment().black_box(), absl::OkStatus(), at_once);
}

bool PointToPoint::DrainSelf() {
  Peer& self = *peers_[group_->rank];
  bool moved = false;
  draining_ = true;
  while (failed_.ok() && !self.sends.queue.empty() && !self.receives.queue.empty()) {
    const AcceptedCall& send = self.sends.queue.front()->call;
    const AcceptedCall& receive = self.receives.queue.front()->call;
    moved = true;
    if (self.sends.queue.front()->signature != self.receives.queue.front()->signature) {
      RunnerFailure failure;
      failure.peer = group_->rank;
      failure.peer_call = send.record;
      group_->fail(ExplainMismatch(*group_, receive.record, failure).error, -1);
      break;
    }
    const size_t bytes = static_cast<size_t>(send.request.count) * SizeOf(send.request.dtype);
    if (bytes > 0) std::memmove(receive.request.out, send.request.in, bytes);
    Finish(self.sends);
    if (failed_.ok()) Finish(self.receives);
  }
  draining_ = false;
  return moved;
}

// True when anything moved.
bool PointToPoint::Drain(int rank) {
  if (rank == group_->rank) return DrainSelf();
  bool moved = false;
  bool again = true;
  draining_ = true;
  for (int turn = 0; turn < kMessagesPerTurn && again && failed_.ok() && !suspicion_.held(); ++turn) {
    again = false;
    Peer& peer = *peers_[rank];
    const Progress sent = Advance(rank, peer, peer.sends);
    const Progress received = sent == Progress::kFailed ? sent : Advance(rank, peer, peer.receives);
    if (received == Progress::kFailed) break;
    moved = moved || sent != Progress::kBlocked || received != Progress::kBlocked;
    // Callbacks may submit new operations, so the queues are looked at again.
    if (sent == Progress::kDone) {
      Finish(peer.sends);
      again = true;
    }
    if (received == Progress::kDone && failed_.ok()) {
      Finish(peer.receives);
      again = true;
    }
  }
  draining_ = false;
  return moved || !failed_.ok();
}

bool PointToPoint::Poll() {
  if (pending_ == 0) return false;
  if (suspicion_.held()) {
    if (suspicion_.Due()) group_->fail(suspicion_.complaint(), suspicion_.peer());
    return false;
  }
  bool moved = false;
  for (size_t i = 0; i < active_.size() && failed_.ok();) {
    const int rank = active_[i];
    moved = Drain(rank) || moved;
    if (!failed_.ok() || suspicion_.held()) return true;
    if (peers_[rank]->sends.queue.empty() && peers_[rank]->receives.queue.empty()) {
      peers_[rank]->active = false;
      active_[i] = active_.back();
      active_.pop_back();
    } else {
      ++i;
    }
  }
  if (moved) {
    watch_.Moved();
  } else if (pending_ > 0 && watch_.Waited()) {
    Blocked();
  }
  return moved;
}

Operation* PointToPoint::Earliest(int* rank) const {
  Operation* earliest = nullptr;
  for (const int i : active_) {
    for (Operation* head : {peers_[i]->sends.queue.front(), peers_[i]->receives.queue.front()}) {
      for (Operation* operation = head; operation != nullptr; operation = operation->next) {
        if (earliest != nullptr && operation->deadline_ns >= earliest->deadline_ns) continue;
        earliest = operation;
        *rank = i;
      }
    }
  }
  return earliest;
}

// Single messages are not compared: the peer may have nothing to say for as long as it likes. But ranks may wait for
// each other.
void PointToPoint::Blocked() {
  const StallWatch::Event event = watch_.Blocked(earliest_deadline_);
  if (event == StallWatch::Event::kStalled) {
    runtime::RankSet members;
    members.ranks = group_->members;
    group_->runtime->ReportWait(group_->id, members);
    return;
  }
  if (event != StallWatch::Event::kOverdue && event != StallWatch::Event::kExpired) return;
  int rank = -1;
  const Operation* late = Earliest(&rank);
  if (late == nullptr) return;
  earliest_deadline_ = late->deadline_ns;
  if (CoarseNow() < late->deadline_ns) {  // whatever was due has been completed
    watch_.Clear();
    return;
  }
  group_->fail(TimeoutError(*group_, late->call.record, late->call.timeout, {rank}), -1);
}

void PointToPoint::Fail(const absl::Status& status) {
  if (!failed_.ok()) return;
  failed_ = status;
  std::vector<OperationQueue> queues;
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    peer->link.reset();
    queues.push_back(std::exchange(peer->sends.queue, OperationQueue()));
    queues.push_back(std::exchange(peer->receives.queue, OperationQueue()));
  }
  active_.clear();
  pending_ = 0;
  for (OperationQueue& queue : queues) {
    while (!queue.empty()) queue.pop()->Finish(group_->runtime->segment().black_box(), status);
  }
}

const runtime::CallRecord* PointToPoint::Pending() const {
  int rank = -1;
  const Operation* earliest = Earliest(&rank);
  return earliest == nullptr ? nullptr : &earliest->call.record;
}

}  // namespace cohort::comm
