#include "cohort/launcher/front_end/job_end.h"

#include "cohort/launcher/base/exit_status.h"

namespace cohort::launcher {
namespace {

v1::JobReport OwnReport(const std::string& headline, int exit_code) {
  v1::JobReport report;
  report.set_headline(headline);
  report.set_culprit_rank(-1);
  report.set_exit_code(exit_code);
  return report;
}

}  // namespace

bool JobEnd::Stop(const std::string& who, int exit_code, bool at_once) {
  const StopWish wish = at_once ? StopWish::kAtOnce : StopWish::kInOrder;
  if (MayFollow(wish_, wish)) {
    wish_.Enter(wish);
  } else if (!at_once) {
    return false;
  }
  stopped_by_ = who;
  stop_code_ = exit_code;
  return true;
}

bool JobEnd::Finish(const v1::JobReport& report) {
  if (over()) return false;
  if (stage_ == JobStage::kRunning) stage_.Enter(JobStage::kOver);
  report_ = report;
  return true;
}

bool JobEnd::Kill() {
  if (killed()) return false;
  stage_.Enter(JobStage::kKilled);
  return true;
}

void JobEnd::MarkIncomplete(const std::string& text) {
  if (report_->exit_code() == 0) report_->set_headline(text);
  report_->set_exit_code(kExitLauncher);
}

v1::JobReport JobEnd::ReportOf(const std::string& cause, const std::string& after_stop) const {
  if (!stopped_by_user()) return OwnReport(cause, kExitLauncher);
  return OwnReport("stopped by " + stopped_by_ + "; " + after_stop, stop_code_);
}

v1::JobReport JobEnd::ReportOfStop(const std::string& failure) const {
  return OwnReport((failure.empty() ? "" : failure + "; then ") + "stopped by " + stopped_by_ + ", at once",
                   stop_code_);
}

}  // namespace cohort::launcher
