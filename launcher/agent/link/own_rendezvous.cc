#include "cohort/launcher/agent/link/own_rendezvous.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "cohort/launcher/control/launcher_messages.h"
#include "cohort/launcher/control/roster.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

constexpr ConnectionId kAgent = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<OwnRendezvous>> OwnRendezvous::Create(EventLoop* loop, v1::JobPlan plan, OnNews on_news,
                                                                     OnFinished on_finished) {
  COHORT_RETURN_IF_ERROR(CheckPlan(plan));
  if (plan.placements_size() != 1 || plan.spares_size() > 0) {
    return absl::InvalidArgumentError("the job's plan has other agents, and none may come without a certificate");
  }
  return std::unique_ptr<OwnRendezvous>(
      new OwnRendezvous(loop, std::move(plan), std::move(on_news), std::move(on_finished)));
}

OwnRendezvous::OwnRendezvous(EventLoop* loop, v1::JobPlan plan, OnNews on_news, OnFinished on_finished)
    : loop_(loop),
      on_news_(std::move(on_news)),
      on_finished_(std::move(on_finished)),
      machine_(std::move(plan), EventLoop::Clock::now()) {
  SetTimer();
}

OwnRendezvous::~OwnRendezvous() { loop_->Cancel(timer_); }

void OwnRendezvous::Join(v1::NodeOffer offer, Agent agent) {
  agent_ = std::move(agent);
  joined_ = true;
  v1::FromAgent join;
  *join.mutable_join() = std::move(offer);
  Send(join);
}

void OwnRendezvous::Send(const v1::FromAgent& message) {
  if (joined_) OnEvent(Received{kAgent, message});
}

void OwnRendezvous::OnEvent(Event event) {
  events_.push_back(std::move(event));
  if (events_.size() == 1) loop_->Post([this] { HandleEvents(); });
}

void OwnRendezvous::HandleEvents() {
  for (std::deque<Event> events = std::exchange(events_, {}); Event & event : events) {
    Carry(machine_.Handle(std::move(event), EventLoop::Clock::now()));
  }
  SetTimer();
}

// An agent that runs this is not silent.
void OwnRendezvous::LetTimePass() {
  timer_ = 0;
  const TimePoint now = EventLoop::Clock::now();
  if (joined_) {
    v1::FromAgent beat;
    beat.mutable_beat();
    Carry(machine_.Handle(Received{kAgent, std::move(beat)}, now));
  }
  Carry(machine_.Tick(now));
  SetTimer();
}

void OwnRendezvous::SetTimer() {
  loop_->Cancel(timer_);
  const auto left =
      std::max<std::chrono::nanoseconds>(machine_.NextTick() - EventLoop::Clock::now(), std::chrono::nanoseconds(0));
  timer_ = loop_->After(left, [this] { LetTimePass(); });
}

void OwnRendezvous::Carry(std::vector<Action> actions) {
  for (Action& action : actions) {
    if (const launcher::Send* const send = std::get_if<launcher::Send>(&action)) {
      Deliver(*send->message);
    } else if (std::holds_alternative<Close>(action)) {
      if (!std::exchange(joined_, false)) continue;
      events_.push_front(Disconnected{kAgent, "the rendezvous ended the connection"});
      if (events_.size() == 1) loop_->Post([this] { HandleEvents(); });
      agent_.on_lost(told_the_end_ ? absl::OkStatus() : absl::UnavailableError("the rendezvous ended the stream"));
    } else if (Finish* const finish = std::get_if<Finish>(&action)) {
      on_finished_(std::move(finish->report));
    } else {
      on_news_(NewsOf(std::move(action)));
    }
  }
}

void OwnRendezvous::Deliver(const v1::ToAgent& message) {
  if (!joined_) return;
  told_the_end_ |= message.has_report() || message.has_refused();
  if (message.has_beat()) return;
  if (message.has_nodes()) {
    nodes_ = message.nodes();
    return;
  }
  if (!message.has_assignment()) return agent_.on_message(message);
  v1::ToAgent whole = message;
  whole.mutable_assignment()->mutable_nodes()->Swap(nodes_.mutable_nodes());
  agent_.on_message(whole);
}

}  // namespace cohort::launcher
