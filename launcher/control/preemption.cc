// The part of the rendezvous that passes notices of a preemption on and lets the ranks agree on the step at which they
// stop (step_agreement.h).
//
//   signal at dlaunch or an agent ─► no rank has ever asked for notices: ToAgent.pass_on_signal, the programs get it
//                                 └► else ToAgent.preemption ─► FromAgent.preemption_step of each node ─► stop_step
//                                      ─► FromAgent.preempted, the ranks end in order ─► report: preempted, status 75
//
// SIGTERM at dlaunch or an agent ends the job, whatever the ranks do, when its grace is over.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <utility>

#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/control/rendezvous_machine.h"

namespace cohort::launcher {

void Rendezvous::Machine::On(const NoticeGiven& event) { OnNotice(event.signal, std::nullopt); }

void Rendezvous::Machine::OnNotice(int signal, std::optional<ConnectionId> only) {
  // Programs that have asked once will ask in the next epoch too.
  if (phase_ != Phase::kRunning) {
    if (wishes_) notice_ = signal;
    return;
  }
  if (wishes_) return BeginPreemption(signal);
  v1::ToAgent message;
  message.set_pass_on_signal(signal);
  if (only.has_value()) return SendTo(*only, std::move(message));
  Broadcast(std::move(message));
}

void Rendezvous::Machine::OnPreemptionWish() {
  wishes_ = true;
  if (notice_ != 0 && phase_ == Phase::kRunning) BeginPreemption(notice_);
}

// Agents keep the notice for ranks that have yet to ask.
void Rendezvous::Machine::BeginPreemption(int signal) {
  if (agreement_.has_value()) return;
  notice_ = signal;
  agreement_.emplace(roster_.node_count());
  v1::ToAgent message;
  message.mutable_preemption()->set_signal(signal);
  Broadcast(std::move(message));
  for (uint32_t node = 0; node < roster_.node_count(); ++node) {
    if (roster_.node(node).done) AnswerFor(node);
  }
  ConcludePreemption();
}

void Rendezvous::Machine::AnswerFor(uint32_t node) {
  const Roster::Node& entry = roster_.node(node);
  v1::NodeStep step;
  for (uint32_t rank = entry.first_rank; rank < entry.first_rank + entry.rank_count; ++rank) {
    const auto& exit = roster_.rank(rank).exit;
    step.set_left(step.left() || (exit.has_value() && !IsFailure(*exit)));
  }
  agreement_->Answer(node, step);
}

bool Rendezvous::Machine::PreemptBeforeStopping(const StopRequested& request) {
  if (request.signal == 0 || phase_ != Phase::kRunning || !wishes_) return false;
  if (preempted_stop_.has_value()) return true;  // schedulers tell dlaunch and every agent
  preemption_due_ = now_ + GraceLeft();
  preempted_stop_ = ReportedStop{request.reason + ", and the ranks had not stopped by themselves within the grace",
                                 request.exit_code, now_};
  BeginPreemption(request.signal);
  return true;
}

void Rendezvous::Machine::OnPreemptionStep(uint32_t node, const v1::NodeStep& step) {
  if (!agreement_.has_value() || step.epoch() != epoch()) return;
  agreement_->Answer(node, step);
  ConcludePreemption();
}

void Rendezvous::Machine::OnPreempted(const v1::RankPreempted& preempted) {
  if (agreement_.has_value() && preempted.epoch() == epoch()) preempted_at_ = preempted.step();
}

void Rendezvous::Machine::ConcludePreemption() {
  if (!agreement_.has_value()) return;
  const std::optional<v1::StopStep> step = agreement_->Take();
  if (!step.has_value()) return;
  v1::ToAgent message;
  *message.mutable_stop_step() = *step;
  Broadcast(std::move(message));
}

// A grace that has begun with a notice is not begun anew by what comes meanwhile: the scheduler's own runs on.
std::chrono::milliseconds Rendezvous::Machine::GraceLeft() const {
  const std::chrono::milliseconds grace(roster_.plan().job().grace_ms());
  if (!preempted_stop_.has_value()) return grace;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(preempted_stop_->at + grace - now_);
  return std::max(left, std::chrono::milliseconds(0));
}

void Rendezvous::Machine::EndPreemptionIfDue() {
  if (!preemption_due_.has_value() || now_ < *preemption_due_) return;
  preemption_due_.reset();
  if (phase_ != Phase::kRunning) return;
  stop_ = preempted_stop_;
  stop_->at = now_;
  StopAll(stop_->reason, stop_->exit_code, std::chrono::milliseconds(0));
}

void Rendezvous::Machine::TellIfPreempted(v1::JobReport* report) const {
  if (!preempted_at_.has_value() || report->exit_code() != 0) return;
  report->set_exit_code(kExitPreempted);
  report->set_preempted_by(notice_);
  report->set_stop_step(*preempted_at_);
  report->set_headline("preempted (" + SignalName(notice_) + "): all ranks stopped before step " +
                       std::to_string(*preempted_at_) + ", as agreed");
}

}  // namespace cohort::launcher
