// Send and receive: plans of one step, first in, first out for each peer and direction, on links of their own.
#pragma once

#include <memory>
#include <vector>

#include "cohort/comm/provider/operation.h"
#include "cohort/comm/provider/prepared_call.h"
#include "cohort/comm/provider/provider.h"
#include "cohort/comm/provider/stall_watch.h"
#include "cohort/comm/run/bound_plan.h"
#include "cohort/comm/run/host_provider.h"
#include "cohort/comm/run/lane_runner.h"
#include "cohort/comm/run/plan_binding.h"

namespace cohort::comm {

class PointToPoint : public HostProvider {
 public:
  // Both outlive it.
  PointToPoint(const GroupContext* group, LinkSource* links);
  ~PointToPoint() override;

  std::string_view name() const override { return "point-to-point"; }
  absl::StatusOr<ServicePlan> Choose(const CollectiveRequest& request, const std::string& forced_algorithm) override;
  runtime::Work Launch(const AcceptedCall& call) override;
  void Start(PreparedCall& call, const void* in, void* out) override;
  bool Poll() override;
  bool Active() const override { return pending_ > 0; }
  void Fail(const absl::Status& status) override;
  const runtime::CallRecord* Pending() const override;
  std::string Explain(const CollectiveRequest& request) override;

 protected:
  void Prepare(PreparedCall& call) override;

 private:
  static constexpr uint32_t kCallsPerLook = 16;

  // The calls of one direction with one peer. They move in their order, each by a plan of one step.
  struct Channel {
    OperationQueue queue;
    std::shared_ptr<const Plan> plan;
    BoundPlan own;  // of calls that keep none
    LaneRunner runner{nullptr, 0};
    bool running = false;  // `runner` has begun the first of the queue
  };
  struct Peer {
    Channel sends;
    Channel receives;
    std::unique_ptr<Link> link;  // the first to go: it knows messages of the channels
    bool active = false;         // listed in active_
    uint32_t passed_by = 0;      // calls of a direction where nothing waited, while the other direction waited
    Channel& of(CollectiveKind kind) { return kind == CollectiveKind::kSend ? sends : receives; }
  };

  // Messages of the other direction and of other peers are not before it. A rank may make no calls other than these, so
  // one in kCallsPerLook goes as an operation while the other direction waits: operations move both directions.
  bool Idle(const CollectiveRequest& request) {
    Peer* const peer = peers_[request.peer].get();
    if (peer == nullptr || suspicion_.held()) return false;
    const bool sends = request.kind == CollectiveKind::kSend;
    if (!(sends ? peer->sends : peer->receives).queue.empty()) return false;
    return (sends ? peer->receives : peer->sends).queue.empty() || ++peer->passed_by % kCallsPerLook != 0;
  }
  std::unique_ptr<Peer> NewPeer(int rank) const;
  static PlanBinding BindingOf(const CollectiveRequest& request);
  // Begins the first of a channel that has one. False: the group has failed.
  bool Begin(int rank, Peer& peer, Channel& channel);
  // Returns what became of the first of a channel. On kFailed the group has failed, or a peer is under suspicion.
  Progress Advance(int rank, Peer& peer, Channel& channel);
  bool Drain(int rank);
  // Messages to the rank itself: a copy for each pair of a send and a receive.
  bool DrainSelf();
  bool Connect(int rank, Peer& peer);
  void Finish(Channel& channel);
  void Blocked();
  // The operation with the earliest deadline, and its peer.
  Operation* Earliest(int* rank) const;

  const GroupContext* const group_;
  LinkSource* const links_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by group rank; null: never used
  std::vector<int> active_;                   // peers with something pending
  int64_t pending_ = 0;
  const Operation* launched_ = nullptr;  // by the Launch that is under way
  bool draining_ = false;                // a callback may submit: it must not move what is being moved
  uint64_t earliest_deadline_ = 0;       // at most the earliest of the pending ones
  StallWatch watch_;
  Suspicion suspicion_;
  absl::Status failed_;
};

}  // namespace cohort::comm
