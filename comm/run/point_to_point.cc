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
    : HostProvider(group),
      group_(group),
      links_(links),
      pool_(&group->runtime->engine(), group->source),
      peers_(group->size),
      earliest_deadline_(kWithoutDeadline) {}

PointToPoint::~PointToPoint() {
  Fail(absl::CancelledError("the communicator was destroyed"));
  if (next_ != nullptr) pool_.Discard(next_);
}

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

AcceptedCall& PointToPoint::NextCall() {
  if (next_ == nullptr) next_ = pool_.Take();
  return next_->call;
}

void PointToPoint::Prepare(PreparedCall& call) {
  const CollectiveRequest& request = call.request;
  const Peer* const peer = peers_[request.peer].get();
  if (peer == nullptr || peer->link == nullptr) return;
  const bool sends = request.kind == CollectiveKind::kSend;
  Step step{.kind = sends ? StepKind::kSend : StepKind::kRecv, .peer = request.peer};
  (sends ? step.src : step.dst) = {sends ? BufferId::kIn : BufferId::kOut, 0, 1};
  Plan plan;
  plan.kind = request.kind;
  plan.size = group_->size;
  plan.rank = group_->rank;
  plan.lanes.push_back({{step}});
  PlanBinding binding;
  binding.count = static_cast<size_t>(request.count);
  binding.element_bytes = SizeOf(request.dtype);
  auto bound = std::make_shared<BoundPlan>();
  Fanout* const no_fanout = nullptr;
  if (!bound->Bind(std::make_shared<const Plan>(std::move(plan)), binding, {&no_fanout, 1}).ok()) return;
  call.inline_run = InlineRun::Of(bound.get(), 1, [peer](int) { return peer->link.get(); });
  if (call.inline_run != nullptr) call.plan = std::move(bound);
}

runtime::Work PointToPoint::Launch(const AcceptedCall& call) {
  const int rank = call.request.peer;
  if (peers_[rank] == nullptr) peers_[rank] = std::make_unique<Peer>();
  Peer& peer = *peers_[rank];
  Operation* operation = std::exchange(next_, nullptr);
  operation->signature = call.record.wire_signature;
  operation->deadline_ns = DeadlineAfter(CoarseNow(), call.timeout);
  earliest_deadline_ = std::min(earliest_deadline_, operation->deadline_ns);
  runtime::Work work = runtime::Work::Adopt(operation);
  if (!peer.active) active_.push_back(rank);
  peer.active = true;
  (call.request.kind == CollectiveKind::kSend ? peer.sends : peer.receives).push(operation);
  ++pending_;
  if (draining_) return work;
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

BoundPlan::BegunMessage* PointToPoint::BegunOf(const AcceptedCall& call) {
  if (!call.begun || !call.plan->begun().under_way) return nullptr;
  call.plan->SetRecord(&call.record);
  return &call.plan->begun();
}

Progress PointToPoint::TrySend(int rank, Peer& peer) {
  if (peer.sends.empty()) return Progress::kBlocked;
  if (!Connect(rank, peer)) return Progress::kFailed;
  const Operation& head = *peer.sends.front();
  if (!peer.sending) {
    BoundPlan::BegunMessage* const begun = BegunOf(head.call);
    peer.send = begun != nullptr ? &begun->send : &peer.own_send;
    peer.send_failed = begun != nullptr && begun->failed;
    if (begun == nullptr) {
      peer.own_send = SendOperation();
      peer.send->data = static_cast<const std::byte*>(head.call.request.in);
      peer.send->bytes = static_cast<size_t>(head.call.request.count) * SizeOf(head.call.request.dtype);
      peer.send->signature = head.signature;
      peer.send->call = &head.call.record;
    }
    peer.sending = true;
  }
  const Progress progress = peer.send_failed ? Progress::kFailed : peer.link->TrySend(*peer.send);
  if (progress == Progress::kDone) peer.sending = false;
  if (progress == Progress::kFailed && !suspicion_.Hold(peer.send->error, rank)) group_->fail(peer.send->error, rank);
  return progress;
}

Progress PointToPoint::TryReceive(int rank, Peer& peer) {
  if (peer.receives.empty()) return Progress::kBlocked;
  if (!Connect(rank, peer)) return Progress::kFailed;
  const Operation& head = *peer.receives.front();
  if (!peer.receiving) {
    BoundPlan::BegunMessage* const begun = BegunOf(head.call);
    peer.receive = begun != nullptr ? &begun->receive : &peer.own_receive;
    peer.receive_failed = begun != nullptr && begun->failed;
    if (begun == nullptr) {
      peer.own_receive = RecvOperation();
      peer.receive->data = static_cast<std::byte*>(head.call.request.out);
      peer.receive->bytes = static_cast<size_t>(head.call.request.count) * SizeOf(head.call.request.dtype);
      peer.receive->signature = head.signature;
      peer.receive->call = &head.call.record;
    }
    peer.receiving = true;
  }
  const Progress progress = peer.receive_failed ? Progress::kFailed : peer.link->TryRecv(*peer.receive);
  if (progress == Progress::kDone) peer.receiving = false;
  if (progress == Progress::kFailed) {
    if (peer.receive->mismatch) {
      RunnerFailure failure;
      failure.peer = rank;
      failure.mismatch = true;
      failure.peer_call = peer.receive->peer_call;
      group_->fail(ExplainMismatch(*group_, head.call.record, failure).error, -1);
    } else if (!suspicion_.Hold(peer.receive->error, rank)) {
      group_->fail(peer.receive->error, rank);
    }
  }
  return progress;
}

void PointToPoint::Finish(OperationQueue& queue) {
  --pending_;
  if (pending_ == 0) earliest_deadline_ = kWithoutDeadline;
  watch_.Clear();
  Operation* const operation = queue.pop();
  const bool at_once = operation == launched_ && BytesOf(operation->call.request) <= kMostBytesAtOnce;
  operation->Finish(group_->runtime->segment().black_box(), absl::OkStatus(), at_once);
}

bool PointToPoint::DrainSelf() {
  Peer& self = *peers_[group_->rank];
  bool moved = false;
  draining_ = true;
  while (failed_.ok() && !self.sends.empty() && !self.receives.empty()) {
    const AcceptedCall& send = self.sends.front()->call;
    const AcceptedCall& receive = self.receives.front()->call;
    moved = true;
    if (self.sends.front()->signature != self.receives.front()->signature) {
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
    const Progress sent = TrySend(rank, peer);
    const Progress received = sent == Progress::kFailed ? sent : TryReceive(rank, peer);
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
    if (peers_[rank]->sends.empty() && peers_[rank]->receives.empty()) {
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
    for (Operation* head : {peers_[i]->sends.front(), peers_[i]->receives.front()}) {
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
    queues.push_back(std::exchange(peer->sends, OperationQueue()));
    queues.push_back(std::exchange(peer->receives, OperationQueue()));
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
