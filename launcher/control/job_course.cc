#include "cohort/launcher/control/job_course.h"

#include <algorithm>
#include <utility>

#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/control/describe.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

// Between the first failure and the order to stop: deaths that caused it are still seen as such, and ranks that are
// told of the loss have a moment to end in their own words.
constexpr milliseconds kSettle{100};
// The order waits this long for the answers from which a call's timeout is explained: it ends the calls they describe.
constexpr milliseconds kEvidenceWithin{3500};
// How long agents may take beyond the grace they were given.
constexpr milliseconds kStopSlack{5000};

}  // namespace

JobCourse::JobCourse(const Parts& parts, const JobTime& time)
    : parts_(parts), time_(time), restarts_(parts.roster->plan().job().max_restarts()) {}

void JobCourse::Enter(Phase phase) {
  phase_.Enter(phase);
  later_ = {};
}

void JobCourse::AssignAll(bool same_nodes) {
  Enter(Phase::kRunning);
  epoch_began_ = time_.now();
  if (!same_nodes) {
    v1::ToAgent table;
    *table.mutable_nodes() = parts_.roster->MakeNodeTable();
    parts_.outbox->Broadcast(std::move(table));
  }
  for (uint32_t node = 0; node < parts_.roster->node_count(); ++node) {
    v1::ToAgent message;
    *message.mutable_assignment() = parts_.roster->MakeAssignment(node, epoch());
    message.mutable_assignment()->set_same_nodes(same_nodes);
    parts_.outbox->SendTo(*parts_.members->ConnectionOf(node), std::move(message));
  }
}

void JobCourse::OnStopRequested(const StopRequested& request) {
  if (stop_.has_value() || finished()) return;
  if (phase_ == Phase::kGathering || phase_ == Phase::kPausing) {
    return FinishUnstarted(request.reason, request.exit_code);
  }
  if (parts_.preemption->DelaysStop(request, phase_)) return;
  stop_ = ReportedStop{request.reason, request.exit_code, time_.now()};
  if (phase_ == Phase::kRunning) StopAll(request.reason, request.exit_code, parts_.preemption->GraceLeft());
}

void JobCourse::RecordExit(const v1::RankExit& exit, TimePoint gone_at) {
  Roster::Rank& rank = parts_.roster->rank(exit.rank());
  rank.exit = exit;
  if (!IsFailure(exit)) rank.exit->clear_last_lines();  // of no interest, and large
  if (exit.pid() != 0) rank.pid = exit.pid();
  rank.exit->set_pid(rank.pid);
  rank.gone_at = gone_at;
  const std::optional<TimePoint>& told = parts_.roster->node_of(exit.rank()).latest_told;
  rank.told = told.has_value() && *told < gone_at && gone_at - *told < kConsequenceTime;
}

void JobCourse::MarkAllTold() {
  for (uint32_t node = 0; node < parts_.roster->node_count(); ++node) {
    parts_.roster->node(node).latest_told = time_.now();
  }
}

void JobCourse::AnnounceLoss(const std::vector<uint32_t>& ranks, const std::string& text) {
  if (phase_ != Phase::kRunning) return;  // everybody has been told to stop
  if (stop_due_.has_value()) {
    if (!later_.due.has_value()) {
      later_.due = time_.now() + kSettle;
      later_.first = text;
    }
    later_.ranks.insert(later_.ranks.end(), ranks.begin(), ranks.end());
    return;
  }
  TellNodes(ranks, text);
  if (parts_.roster->plan().job().on_failure() == "continue") return parts_.outbox->Add(RanksLost{text});
  stop_due_ = time_.now() + kSettle;
  first_loss_ = text;
}

void JobCourse::TellNodes(const std::vector<uint32_t>& ranks, const std::string& text) {
  v1::ToAgent message;
  message.mutable_ranks_lost()->mutable_ranks()->Assign(ranks.begin(), ranks.end());
  message.mutable_ranks_lost()->set_text(text);
  parts_.outbox->Broadcast(std::move(message));
  MarkAllTold();
}

void JobCourse::TellLaterLosses() {
  LaterLosses losses = std::exchange(later_, {});
  std::sort(losses.ranks.begin(), losses.ranks.end());
  const bool one = losses.ranks.size() == 1;
  TellNodes(losses.ranks, one ? losses.first : RankNames(losses.ranks) + " are lost, at first: " + losses.first);
}

void JobCourse::LoseRanksOf(uint32_t index, const std::string& text, TimePoint gone_at) {
  const Roster::Node& node = parts_.roster->node(index);
  std::vector<uint32_t> lost;
  for (uint32_t rank = node.first_rank; rank < node.first_rank + node.rank_count; ++rank) {
    if (parts_.roster->rank(rank).exit.has_value()) continue;
    v1::RankExit exit;
    exit.set_rank(rank);
    exit.set_started(true);
    exit.set_lost(true);
    exit.set_error(text);
    RecordExit(exit, gone_at);
    lost.push_back(rank);
  }
  if (!lost.empty()) AnnounceLoss(lost, RankNames(lost) + " (" + node.name + ") lost: " + text);
}

void JobCourse::StopAll(const std::string& reason, int exit_code, milliseconds grace, bool restarting) {
  Enter(Phase::kStopping);
  stop_due_.reset();
  end_deadline_ = time_.now() + grace + kStopSlack;
  v1::ToAgent message;
  message.mutable_stop()->set_reason(reason);
  message.mutable_stop()->set_exit_code(exit_code);
  message.mutable_stop()->set_grace_ms(static_cast<uint32_t>(grace.count()));
  message.mutable_stop()->set_restarting(restarting);
  parts_.outbox->Broadcast(std::move(message));
  MarkAllTold();
}

void JobCourse::LetTimePass() {
  if (phase_ == Phase::kGathering && time_.now() >= parts_.members->join_deadline()) {
    FinishUnstarted("not every node has joined in time; missing: " + parts_.members->MissingNodes(), kExitLauncher);
  }
  const std::optional<ReportedStop> ordered = parts_.preemption->TakeDueStop();
  if (ordered.has_value() && phase_ == Phase::kRunning) {
    stop_ = ordered;
    StopAll(stop_->reason, stop_->exit_code, milliseconds(0));
  }
  if (later_.due.has_value() && time_.now() >= *later_.due) TellLaterLosses();
  if (const auto due = OrderDue(); phase_ == Phase::kRunning && due.has_value() && time_.now() >= *due) {
    const v1::JobReport so_far = FindRootCause(*parts_.roster, parts_.failed_groups->failures(), stop_);
    const bool restarting =
        !stop_.has_value() && !parts_.preemption->ordered() && restarts_.MayRestart(so_far, parts_.members->Lacking());
    const bool known = so_far.culprit_rank() >= 0 || !parts_.failed_groups->failures().empty();
    parts_.outbox->Add(RanksLost{known ? so_far.headline() : first_loss_});
    StopAll(so_far.headline(), so_far.exit_code(), parts_.preemption->GraceLeft(), restarting);
  }
}

std::optional<TimePoint> JobCourse::OrderDue() const {
  if (!stop_due_.has_value() || !parts_.stalls->explains()) return stop_due_;
  return *stop_due_ + kEvidenceWithin;
}

std::optional<TimePoint> JobCourse::NextDue() const {
  std::optional<TimePoint> due;
  const auto at = [&due](TimePoint other) { due = due.has_value() ? std::min(*due, other) : other; };
  if (phase_ == Phase::kGathering) at(parts_.members->join_deadline());
  if (restart_due_.has_value()) at(parts_.members->RestartDue(*restart_due_));
  for (const std::optional<TimePoint>& other : {OrderDue(), later_.due, end_deadline_, parts_.preemption->stop_due()}) {
    if (other.has_value()) at(*other);
  }
  return due;
}

void JobCourse::BeginNextEpochIfDue() {
  if (phase_ != Phase::kPausing || time_.now() < parts_.members->RestartDue(*restart_due_)) return;
  if (!FinishIfLacking("not every spare node has joined in time")) BeginNextEpoch();
}

void JobCourse::FinishIfDone() {
  if (phase_ != Phase::kRunning && phase_ != Phase::kStopping) return;
  for (uint32_t node = 0; node < parts_.roster->node_count(); ++node) {
    if (!parts_.roster->node(node).done) return;
  }
  v1::JobReport report = FindRootCause(*parts_.roster, parts_.failed_groups->failures(), stop_);
  parts_.preemption->AddTo(&report);
  if (!stop_.has_value() && !parts_.preemption->ordered() && report.preempted_by() == 0) {
    const RestartPolicy::Decision decision =
        restarts_.Decide(report, time_.now() - epoch_began_, parts_.members->Lacking());
    if (decision.restart) return Pause(std::move(report), decision);
    report.set_not_restarted(decision.why_not);
  } else if (!stop_.has_value() && report.exit_code() != 0 && parts_.roster->plan().job().max_restarts() > 0 &&
             report.preempted_by() == 0) {
    report.set_not_restarted("the job had been told to end");
  }
  Finish(std::move(report));
}

void JobCourse::Pause(v1::JobReport report, const RestartPolicy::Decision& decision) {
  Enter(Phase::kPausing);
  stop_due_.reset();
  end_deadline_.reset();
  restart_due_ = time_.now() + decision.delay;
  v1::Restart restart;
  *restart.mutable_report() = std::move(report);
  restart.set_number(restarts_.restarts());
  restart.set_max_restarts(parts_.roster->plan().job().max_restarts());
  const auto fenced_for = std::chrono::ceil<milliseconds>(parts_.members->FencedUntil() - time_.now());
  restart.set_delay_ms(static_cast<uint32_t>(std::max(decision.delay, fenced_for).count()));
  if (!parts_.members->LackingNow().empty()) restart.set_spares(parts_.members->SparesToCome());
  parts_.outbox->Add(launcher::Restart{std::move(restart)});
}

void JobCourse::BeginNextEpoch() {
  restart_due_.reset();
  std::optional<v1::Membership> changed = parts_.members->Reseat();
  const bool same_nodes = !changed.has_value() && parts_.roster->host_loss().agents_keep_table;
  if (changed.has_value()) parts_.outbox->Add(MembersChanged{*std::move(changed)});
  parts_.store->Clear();
  parts_.stalls->Clear();
  parts_.deadlocks->Clear();
  parts_.failed_groups->Clear();
  parts_.preemption->BeginEpoch();
  AssignAll(same_nodes);
}

bool JobCourse::FinishIfLacking(const std::string& text) {
  if (phase_ != Phase::kPausing) return false;
  const std::string lacking = parts_.members->Lacking();
  if (lacking.empty()) return false;
  FinishUnstarted(text + ", before the job was started again; " + lacking, kExitLauncher);
  return true;
}

void JobCourse::FinishUnstarted(const std::string& headline, int exit_code) {
  v1::JobReport report;
  report.set_exit_code(exit_code);
  report.set_headline(headline);
  report.set_culprit_rank(-1);
  Finish(std::move(report));
}

void JobCourse::Finish(v1::JobReport report) {
  Enter(Phase::kFinished);
  stop_due_.reset();
  end_deadline_.reset();
  restart_due_.reset();
  parts_.preemption->Finish();
  // Nobody asks or waits any more, and nothing of it may be due again and again.
  parts_.stalls->Clear();
  parts_.deadlocks->Clear();
  parts_.store->Clear();
  v1::ToAgent message;
  message.mutable_report()->set_exit_code(report.exit_code());
  message.mutable_report()->set_headline(report.headline());
  message.mutable_report()->set_culprit_rank(report.culprit_rank());
  parts_.outbox->BroadcastToAll(std::move(message));
  parts_.outbox->CloseAll();
  parts_.outbox->Add(launcher::Finish{std::move(report)});
}

}  // namespace cohort::launcher
