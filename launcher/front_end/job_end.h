// The end of a job as dlaunch knows it: whether the report is there, whether agents had to be killed, and what the user
// wants.
#pragma once

#include <optional>
#include <string>

#include "cohort/runtime/base/checked_state.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

enum class JobStage {
  kRunning,
  kOver,    // the report is there, and the agents end by themselves
  kKilled,  // agents did not end in time, and were killed
};
// running -> over, killed (the report follows at once)
// over    -> killed
constexpr bool MayFollow(JobStage from, JobStage to) { return from < to; }

enum class StopWish {
  kNone,
  kInOrder,  // the user has stopped the job
  kAtOnce,   // and does not want to wait
};
// none     -> in order, at once
// in order -> at once
constexpr bool MayFollow(StopWish from, StopWish to) { return from < to; }

class JobEnd {
 public:
  bool over() const { return report_.has_value(); }
  bool killed() const { return stage_ == JobStage::kKilled; }
  bool stopped_by_user() const { return wish_ != StopWish::kNone; }
  bool at_once() const { return wish_ == StopWish::kAtOnce; }
  // The job has its report, or the user has stopped it.
  bool ending() const { return over() || stopped_by_user(); }
  // The user does not wait for what is not printed or written yet.
  bool in_a_hurry() const { return at_once() || (stopped_by_user() && killed()); }
  // Once over.
  const v1::JobReport& report() const { return *report_; }

  // The user wants the job to end. False: it was told to before, and this says nothing new. `who`: "SIGINT";
  // `exit_code`: of a job that ends by it.
  bool Stop(const std::string& who, int exit_code, bool at_once);
  // The report. False: there was one.
  bool Finish(const v1::JobReport& report);
  // The agents are about to be killed. False: they were.
  bool Kill();
  // The job ended well, and yet something of it is missing, as `text` says.
  void MarkIncomplete(const std::string& text);

  // Reports that come from no rendezvous. A user's stop is the cause: "stopped by SIGINT; " and `after_stop`.
  v1::JobReport ReportOf(const std::string& cause, const std::string& after_stop) const;
  // The same of a stop that waits for nobody's report. `failure`: what was lost before it, or empty.
  v1::JobReport ReportOfStop(const std::string& failure) const;

 private:
  runtime::CheckedState<JobStage> stage_{JobStage::kRunning};
  runtime::CheckedState<StopWish> wish_{StopWish::kNone};
  std::string stopped_by_;  // by the first stop, or the latest that ends the job at once
  int stop_code_ = 0;
  std::optional<v1::JobReport> report_;
};

}  // namespace cohort::launcher
