// The rendezvous of a job that has one agent: the state machine in that agent's event loop, with no port, certificates
// or threads. Starting those took most of the time of a job of one short rank.
//
//   agent ── Send ──► events ── the loop, soon ──► machine ── actions ──► on_message, on_news, on_finished
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/control/hosted_rendezvous.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// All of it is called on the loop's thread, and calls back there, never from within a call. The loop outlives it, and
// does not run when it is destroyed.
class OwnRendezvous : public HostedRendezvous {
 public:
  struct Agent {
    std::function<void(const v1::ToAgent&)> on_message;
    // Once at the most: the rendezvous says nothing more. OK after a report or a refusal.
    std::function<void(const absl::Status&)> on_lost;
  };

  // kInvalidArgument: the plan is malformed, or has more agents than one.
  static absl::StatusOr<std::unique_ptr<OwnRendezvous>> Create(EventLoop* loop, v1::JobPlan plan, OnNews on_news,
                                                               OnFinished on_finished);
  ~OwnRendezvous() override;
  OwnRendezvous(const OwnRendezvous&) = delete;
  OwnRendezvous& operator=(const OwnRendezvous&) = delete;

  // Once.
  void Join(v1::NodeOffer offer, Agent agent);
  void Send(const v1::FromAgent& message);

  void OnEvent(Event event) override;

 private:
  OwnRendezvous(EventLoop* loop, v1::JobPlan plan, OnNews on_news, OnFinished on_finished);
  void HandleEvents();
  void LetTimePass();
  void SetTimer();
  void Carry(std::vector<Action> actions);
  void Deliver(const v1::ToAgent& message);

  EventLoop* const loop_;
  const OnNews on_news_;
  const OnFinished on_finished_;
  Rendezvous machine_;
  Agent agent_;
  std::deque<Event> events_;
  EventLoop::TimerId timer_ = 0;
  v1::NodeTable nodes_;  // comes before the assignment that it belongs to
  bool joined_ = false;
  bool told_the_end_ = false;
};

}  // namespace cohort::launcher
