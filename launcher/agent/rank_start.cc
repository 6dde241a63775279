#include "cohort/launcher/agent/rank_start.h"

#include <optional>
#include <string>

#include "cohort/launcher/agent/rank/clone_child.h"
#include "cohort/launcher/agent/rank/rank_process.h"
#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/base/unix_time.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

int ExitCodeOf(const absl::Status& status) {
  if (absl::IsNotFound(status)) return kExitNotFound;
  return absl::IsPermissionDenied(status) ? kExitNotExecutable : kExitLauncher;
}

}  // namespace

void RankStart::Begin(const std::vector<absl::Status>& forks) {
  timer_ = loop_->After(limit_, [this] { OnLate(); });
  for (size_t i = 0; i < ranks_->size(); ++i) {
    if ((*ranks_)[i].handle().starting()) {
      ++starting_;
      (*ranks_)[i].handle().AwaitExec(loop_, [this, i] { Look(i); });
    } else {
      Note(i, forks[i]);
    }
  }
  FinishIfKnown();
}

void RankStart::Look(size_t index) {
  SupervisedRank& rank = (*ranks_)[index];
  const std::optional<absl::Status> outcome = rank.handle().Outcome(rank.command());
  if (!outcome) return;
  rank.handle().EndStarting(loop_);
  --starting_;
  Note(index, *outcome);
  FinishIfKnown();
}

void RankStart::Note(size_t index, const absl::Status& status) {
  SupervisedRank& rank = (*ranks_)[index];
  if (!status.ok()) {
    rank.signals().Kill();  // it may still be on its way
    rank.MarkReported();
    v1::RankExit& exit = *outcome_.add_failed();
    exit.set_rank(rank.rank());
    exit.set_exit_code(ExitCodeOf(status));
    exit.set_started(false);
    exit.set_error(TextOf(status));
    exit.set_unix_time_ns(UnixTimeNs());
    return;
  }
  v1::RankPid& pid = *outcome_.add_pids();
  pid.set_rank(rank.rank());
  pid.set_pid(rank.handle().pid());
  streams_->Begin(&rank);
}

void RankStart::OnLate() {
  for (size_t i = 0; i < ranks_->size(); ++i) {
    SupervisedRank& rank = (*ranks_)[i];
    if (!rank.handle().starting()) continue;
    rank.handle().EndStarting(loop_);
    --starting_;
    Note(i, ExecIsLate(rank.command(), limit_));
  }
  FinishIfKnown();
}

void RankStart::FinishIfKnown() {
  if (starting_ > 0 || done_) return;
  done_ = true;
  loop_->Cancel(timer_);
  ReleaseExecuted();
  on_done_(std::move(outcome_));
}

}  // namespace cohort::launcher
