#include "cohort/launcher/agent/life/supervised_rank.h"

#include <sys/wait.h>

#include <chrono>
#include <utility>

#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/base/unix_time.h"
#include "cohort/launcher/control/parts/python_exception.h"

namespace cohort::launcher {
SupervisedRank::SupervisedRank(EventLoop* loop, RankMemberSearch* search, uint32_t rank, RankCommand command)
    : loop_(loop),
      rank_(rank),
      command_(std::move(command)),
      signals_(loop, &handle_, &life_, search, static_cast<size_t>(command_.local_rank)) {}

SupervisedRank::~SupervisedRank() {
  if (handle_.starting()) handle_.EndStarting(loop_);
  loop_->Cancel(vanished_timer_);
}

absl::Status SupervisedRank::Fork() {
  absl::Status forked = handle_.Fork(&command_);
  if (forked.ok()) life_.Enter(RankLife::kStarting);
  return forked;
}

void SupervisedRank::TakeOver(RankHandle handle) {
  handle_ = std::move(handle);
  may_stay_ = true;  // its hello of this epoch is on its way
  life_.Enter(RankLife::kRunning);
}

void SupervisedRank::Begin(RankOutput::Options options, bool paused, const RankInput::Want& want) {
  if (life_ == RankLife::kStarting) life_.Enter(RankLife::kRunning);
  options.rank = rank_;
  handle_.Begin(loop_, std::move(options), paused, command_.reads_input, want);
}

void SupervisedRank::MarkReaped() {
  life_.Enter(reported() ? RankLife::kGone : RankLife::kReaped);
  signals_.OnReaped();
  loop_->Cancel(vanished_timer_);
}

bool SupervisedRank::Stay() {
  if (life_ != RankLife::kRunning || !signals_.none()) return false;
  life_.Enter(RankLife::kStaying);
  signals_.OnStays();
  loop_->Cancel(vanished_timer_);
  return true;
}

// One that is to end does not heed that, and nobody else would watch it.
std::optional<RankHandle> SupervisedRank::Keep() {
  if (!staying() || !signals_.none()) {
    signals_.Kill();
    return std::nullopt;
  }
  life_.Enter(RankLife::kGone);
  return std::move(handle_);
}

void SupervisedRank::OnProgramJoined(pid_t program, bool may_stay) {
  may_stay_ = may_stay;
  loop_->Cancel(vanished_timer_);  // of a process that has joined before, perhaps this one
  handle_.set_program(program);
}

void SupervisedRank::OnProgramVanished(pid_t program) {
  handle_.set_program(0);
  if (!has_process() || signals_.told() || handle_.pid() == program) return;
  loop_->Cancel(vanished_timer_);
  vanished_timer_ = loop_->After(std::chrono::seconds(1), [this, program] {
    if (!has_process() || signals_.told()) return;
    const auto state = ReadProcessState(program);
    if (state && !state->exiting) return OnProgramVanished(program);  // it does without its agent: look again
    signals_.KillFor("its program (pid " + std::to_string(program) +
                     ") had ended without goodbye, its wrapper had not");
  });
}

void SupervisedRank::Stop(std::chrono::milliseconds grace, EventLoop::Clock::time_point now, bool restarting) {
  if (!has_process() || (restarting && staying())) return;
  signals_.Give(grace, now, /*spared=*/restarting && may_stay_ && !signals_.told());
}

v1::RankExit SupervisedRank::MakeExit(int wait_status) const {
  v1::RankExit exit;
  exit.set_rank(rank_);
  exit.set_pid(handle_.pid());
  exit.set_started(true);
  exit.set_unix_time_ns(UnixTimeNs());
  if (WIFSIGNALED(wait_status)) {
    exit.set_signal(WTERMSIG(wait_status));
  } else {
    exit.set_exit_code(WEXITSTATUS(wait_status));
  }
  signals_.Describe(&exit);
  const RankOutput& output = *handle_.output();
  for (const std::string& line : output.last_lines().Lines()) exit.add_last_lines(line);
  exit.set_last_words(output.last_lines().Words());
  // A program may have told it to the file alone.
  if (!FindPythonException({exit.last_lines().begin(), exit.last_lines().end()}).has_value()) {
    for (const std::string& line : handle_.error_file().Lines()) exit.add_last_lines(line);
  }
  exit.set_log_path(output.log_path());
  return exit;
}

}  // namespace cohort::launcher
