#include "cohort/launcher/control/preemption.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/control/describe.h"

namespace cohort::launcher {

void Preemption::OnNotice(int signal, std::optional<ConnectionId> only, Phase phase) {
  // Programs that have asked once will ask in the next epoch too.
  if (phase != Phase::kRunning) {
    if (wished_) notice_ = signal;
    return;
  }
  if (wished_) return Begin(signal);
  v1::ToAgent message;
  message.set_pass_on_signal(signal);
  if (only.has_value()) return outbox_->SendTo(*only, std::move(message));
  outbox_->Broadcast(std::move(message));
}

void Preemption::OnWish(Phase phase) {
  wished_ = true;
  if (notice_ != 0 && phase == Phase::kRunning) Begin(notice_);
}

// Agents keep the notice for ranks that have yet to ask.
void Preemption::Begin(int signal) {
  if (agreement_.has_value()) return;
  notice_ = signal;
  agreement_.emplace(roster_.node_count());
  v1::ToAgent message;
  message.mutable_preemption()->set_signal(signal);
  outbox_->Broadcast(std::move(message));
  for (uint32_t node = 0; node < roster_.node_count(); ++node) {
    if (roster_.node(node).done) AnswerFor(node);
  }
  Conclude();
}

void Preemption::AnswerFor(uint32_t node) {
  const Roster::Node& entry = roster_.node(node);
  v1::NodeStep step;
  for (uint32_t rank = entry.first_rank; rank < entry.first_rank + entry.rank_count; ++rank) {
    const auto& exit = roster_.rank(rank).exit;
    step.set_left(step.left() || (exit.has_value() && !IsFailure(*exit)));
  }
  agreement_->Answer(node, step);
}

void Preemption::OnStep(uint32_t node, const v1::NodeStep& step) {
  if (!agreement_.has_value()) return;
  agreement_->Answer(node, step);
  Conclude();
}

void Preemption::OnNodeDone(uint32_t node) {
  if (!agreement_.has_value()) return;
  AnswerFor(node);
  Conclude();
}

void Preemption::OnNodeLost(uint32_t node) {
  if (!agreement_.has_value()) return;
  agreement_->DoWithout(node);
  Conclude();
}

void Preemption::Conclude() {
  const std::optional<v1::StopStep> step = agreement_->Take();
  if (!step.has_value()) return;
  v1::ToAgent message;
  *message.mutable_stop_step() = *step;
  outbox_->Broadcast(std::move(message));
}

bool Preemption::DelaysStop(const StopRequested& request, Phase phase) {
  if (request.signal == 0 || phase != Phase::kRunning || !wished_) return false;
  if (stop_.has_value()) return true;  // schedulers tell dlaunch and every agent
  stop_due_ = time_.now() + GraceLeft();
  stop_ = ReportedStop{request.reason + ", and the ranks had not stopped by themselves within the grace",
                       request.exit_code, time_.now()};
  Begin(request.signal);
  return true;
}

std::optional<ReportedStop> Preemption::TakeDueStop() {
  if (!stop_due_.has_value() || time_.now() < *stop_due_) return std::nullopt;
  stop_due_.reset();
  ReportedStop stop = *stop_;
  stop.at = time_.now();
  return stop;
}

std::chrono::milliseconds Preemption::GraceLeft() const {
  const std::chrono::milliseconds grace(roster_.plan().job().grace_ms());
  if (!stop_.has_value()) return grace;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(stop_->at + grace - time_.now());
  return std::max(left, std::chrono::milliseconds(0));
}

void Preemption::AddTo(v1::JobReport* report) const {
  if (!preempted_at_.has_value() || report->exit_code() != 0) return;
  report->set_exit_code(kExitPreempted);
  report->set_preempted_by(notice_);
  report->set_stop_step(*preempted_at_);
  report->set_headline("preempted (" + SignalName(notice_) + "): all ranks stopped before step " +
                       std::to_string(*preempted_at_) + ", as agreed");
}

void Preemption::BeginEpoch() {
  agreement_.reset();
  preempted_at_.reset();
}

}  // namespace cohort::launcher
