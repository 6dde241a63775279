#include "cohort/launcher/front_end/failure_news.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <utility>

#include "cohort/launcher/control/root_cause.h"
#include "cohort/launcher/front_end/job_snapshot.h"
#include "cohort/launcher/report/diagnosis.h"

namespace cohort::launcher {
namespace {

// A failure that is known is named by then, even if its report is not there yet. No line is held for longer.
constexpr std::chrono::seconds kHeadlineAfter{1};
constexpr size_t kMostRemarks = 1024;  // that wait

DiagnosisOptions HowToTell() {
  rlimit cpu_time{};
  DiagnosisOptions options;
  options.colour = ::isatty(STDERR_FILENO) == 1;
  options.cpu_time_limited = ::getrlimit(RLIMIT_CPU, &cpu_time) == 0 && cpu_time.rlim_max != RLIM_INFINITY;
  return options;
}

}  // namespace

bool FailureNews::MustHold(const v1::OutputLine& line) const {
  const bool of_this_epoch = line.epoch() == failed_epochs_.size() + 1;  // nodes' last lines come when they come
  return held_.holding() && !end_.ending() && line.after_failure() && of_this_epoch &&
         job_.options.on_failure != OnFailure::kContinue;
}

void FailureNews::OnOutput(const v1::OutputLine& line) {
  RankLine own{line.standard_error() ? STDERR_FILENO : STDOUT_FILENO, line.rank(), std::string(line.text()),
               line.goes_on()};
  if (MustHold(line)) {
    if (held_.empty()) TellWithinASecond();
    held_.Keep(std::move(own));
  } else {
    turns_->Print(std::move(own));
  }
}

void FailureNews::OnLost(const std::string& text) {
  if (job_.options.on_failure == OnFailure::kContinue) {
    turns_->Announce(text + "; the job goes on");
    TellRemarks();
  } else if (!lost_ && !end_.ending()) {
    TellWithinASecond();
  }
  if (!lost_) lost_ = text;
}

void FailureNews::TellWithinASecond() {
  loop_->After(kHeadlineAfter, [this, epoch = failed_epochs_.size()] {
    if (end_.ending() || failed_epochs_.size() != epoch) return;
    if (lost_ && !std::exchange(loss_told_, true)) {
      turns_->Announce(*lost_);
      told_ = lost_;
      turns_->Announce("ending the other ranks");
    }
    ReleaseOutput();
  });
}

void FailureNews::ReleaseOutput() {
  TellRemarks();
  held_.Release();
}

void FailureNews::OnRemark(const std::string& text) {
  if (remarks_.size() >= kMostRemarks) return turns_->Announce(text);
  remarks_.push_back(text);
  loop_->After(kHeadlineAfter, [this] {
    const bool comes_yet = lost_ && !loss_told_ && job_.options.on_failure != OnFailure::kContinue;
    if (!comes_yet) TellRemarks();
  });
}

void FailureNews::TellRemarks() {
  for (const std::string& text : std::exchange(remarks_, {})) turns_->Announce(text);
}

void FailureNews::OnKnownLoss(const std::string& text) {
  lost_ = text;
  loss_told_ = true;
  turns_->Announce(text);
  ReleaseOutput();
}

std::string FailureNews::cause() const {
  if (lost_) return *lost_;
  return failed_epochs_.empty() ? "" : failed_epochs_.back().report().headline();
}

void FailureNews::Tell(const v1::JobReport& report) {
  if (report.culprit_rank() >= 0) held_.ReleaseOf(static_cast<uint32_t>(report.culprit_rank()));
  turns_->Flush();
  DiagnosisOptions options = HowToTell();
  options.told = std::exchange(told_, std::nullopt) == report.headline();
  options.lines_stand_above =
      turns_->screen().Show(report.culprit_rank(), {report.last_lines().begin(), report.last_lines().end()});
  turns_->Say(FormatReport(report, options));
  ReleaseOutput();
}

void FailureNews::TellEpoch(const v1::JobReport& report, const std::vector<v1::NodePlacement>& nodes) {
  Tell(report);
  held_.Rearm();
  turns_->screen().Clear();
  lost_.reset();
  loss_told_ = false;
  v1::FailedEpoch& failed = failed_epochs_.emplace_back();
  *failed.mutable_report() = report;
  for (const v1::NodePlacement& node : nodes) *failed.add_nodes() = DescribeNode(node);
  if (failed_epochs_.size() <= kWholeReports) return;
  v1::FailedEpoch& old = failed_epochs_[failed_epochs_.size() - kWholeReports - 1];
  KeepCauseAlone(old.mutable_report());
  old.clear_nodes();
}

}  // namespace cohort::launcher
