// News of failures, as dlaunch prints them: the cause first, each thing once, and what ranks print around it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/front_end/job_end.h"
#include "cohort/launcher/front_end/job_plan.h"
#include "cohort/launcher/front_end/printing/held_output.h"
#include "cohort/launcher/front_end/printing/line_turns.h"
#include "cohort/v1/job.pb.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class FailureNews {
 public:
  // All must outlive this.
  FailureNews(const Job& job, const JobEnd& end, EventLoop* loop, LineTurns* turns)
      : job_(job), end_(end), loop_(loop), turns_(turns) {}

  // Prints a line of a rank, or a part of one, or holds it where it follows a failure whose cause is not told yet: for
  // a second at most.
  void OnOutput(const v1::OutputLine& line);
  // Prints what is held; until the next epoch nothing more is.
  void ReleaseOutput();

  // Ranks were lost, says the rendezvous. The loss is told after a second where no report has come by then.
  void OnLost(const std::string& text);
  // A line about a failure: it comes behind the failure's own, or after a second where none has come by then.
  void OnRemark(const std::string& text);
  // Ranks were lost, as this process knows better than the rendezvous can. Told at once.
  void OnKnownLoss(const std::string& text);
  // Why the epoch fails, or the one before has failed; empty: nothing has.
  std::string cause() const;
  // The epoch's first loss.
  const std::optional<std::string>& lost() const { return lost_; }

  // The user has been told `headline` already: a report that has it need not begin with it.
  void MarkTold(const std::string& headline) { told_ = headline; }
  // Prints the report and what was held.
  void Tell(const v1::JobReport& report);
  // Tells an epoch's report, and begins the next one. `nodes`: the failed epoch's.
  void TellEpoch(const v1::JobReport& report, const std::vector<v1::NodePlacement>& nodes);

  // The epochs that failed and were followed by another; only their causes where there are many.
  const std::vector<v1::FailedEpoch>& failed_epochs() const { return failed_epochs_; }

 private:
  bool MustHold(const v1::OutputLine& line) const;
  // Says which ranks were lost, if that is known, and prints what is held, when a second has passed.
  void TellWithinASecond();
  void TellRemarks();

  const Job& job_;
  const JobEnd& end_;
  EventLoop* const loop_;
  LineTurns* const turns_;
  HeldOutput held_{[this](const RankLine& line) { turns_->Print(line); }};
  std::vector<v1::FailedEpoch> failed_epochs_;
  std::optional<std::string> lost_;   // the epoch's first loss of ranks
  bool loss_told_ = false;            // to the user
  std::vector<std::string> remarks_;  // that wait for the failure
  std::optional<std::string> told_;   // what was said of it before its report was there
};

}  // namespace cohort::launcher
