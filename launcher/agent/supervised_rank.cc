#include "cohort/launcher/agent/supervised_rank.h"

#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/watch/signal_targets.h"
#include "cohort/launcher/base/unix_time.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/control/parts/python_exception.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::milliseconds kFreshMembers{5};  // one look serves ranks that are told together
constexpr std::chrono::milliseconds kTellAgain{100};

bool IsHeld(const ProcessState& state, pid_t pid) {
  return (state.state == 't' || state.state == 'T') && TracerOf(pid) != 0;
}

}  // namespace

bool SupervisedRank::running() const {
  return life_ == RankLife::kStarting || life_ == RankLife::kRunning || life_ == RankLife::kStaying ||
         life_ == RankLife::kReported;
}

absl::Status SupervisedRank::Fork() {
  const auto names_one = [](const std::string& variable) {
    return variable.starts_with(std::string(kErrorFileVariable) + "=");
  };
  if (std::none_of(command.environment.begin(), command.environment.end(), names_one)) {  // unless a user asked for one
    error_file = ErrorFile::Make();
    if (error_file.valid()) command.environment.push_back(std::string(kErrorFileVariable) + "=" + error_file.path());
  }
  auto started = StartRank(command);
  if (!started.ok()) return started.status();
  process = *std::move(started);
  life_.Enter(RankLife::kStarting);
  return absl::OkStatus();
}

void SupervisedRank::TakeOver(Kept* kept) {
  process = std::move(kept->process);
  program = kept->program;
  error_file = std::move(kept->error_file);
  may_stay = true;  // its hello of this epoch is on its way
  life_.Enter(RankLife::kRunning);
}

void SupervisedRank::EndStarting(EventLoop* loop) {
  loop->Unwatch(process.exec_error.get());
  process.exec_error.Close();
}

void SupervisedRank::WatchOutput(EventLoop* loop, RankOutput::Options options, std::unique_ptr<RankOutput> kept,
                                 bool paused) {
  options.rank = placement.rank();
  output = std::move(kept);
  if (output != nullptr) {
    output->GoOn(std::move(options));
  } else {
    output =
        std::make_unique<RankOutput>(loop, std::move(options), std::move(process.output), std::move(process.error));
  }
  if (paused) {
    output->Pause();
  } else {
    output->Resume();
  }
}

void SupervisedRank::FeedInput(EventLoop* loop, const RankInput::Want& want, std::unique_ptr<RankInput> kept) {
  if (kept != nullptr) {
    if (!command.reads_input) return;  // another is the first now
    kept->GoOn(want);
    input = std::move(kept);
  } else if (process.input.valid()) {
    input = std::make_unique<RankInput>(loop, std::move(process.input), want);
  }
}

SupervisedRank::Kept SupervisedRank::Keep() {
  life_.Enter(RankLife::kGone);
  return {std::move(process), program, std::move(error_file), std::move(output), std::move(input)};
}

// Its end may not have been read yet, on a machine that has other things to do. A stop for a snapshot of its threads is
// told too, and is no end.
bool SupervisedRank::HasEndedByItself() const {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
      info.si_code != CLD_TRAPPED && info.si_code != CLD_STOPPED) {
    return true;
  }
  const auto state = ReadProcessState(process.pid);
  return state && state->exiting && state->exit_status != 0;
}

void SupervisedRank::Ask(bool spared) {
  to_be_asked_ |= !spared;
  if (!place_ && life_ == RankLife::kRunning) place_ = FindPlace(process.pid, program_pid());
  if (to_be_asked_) AskNow();
}

void SupervisedRank::AskNow() {
  if (held_back || !running() || told_to_end() || HasEndedByItself()) return;
  ending_ = Ending::kAsked;
  asked_at_ = EventLoop::Clock::now();
  TellFamily(asked_at_, false);
  const RankMembers& members = search->Of(static_cast<size_t>(command.local_rank), kFreshMembers);
  const auto is_first = [this](const RankMember& member) { return member.pid == process.pid; };
  // Nobody else tells it if /proc does not show it.
  if (std::none_of(members.begin(), members.end(), is_first)) ::kill(process.pid, SIGTERM);
}

void SupervisedRank::TellFamily(EventLoop::Clock::time_point now, bool again) {
  if (again && (!next_telling_ || now < *next_telling_)) return;
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now - asked_at_);
  next_telling_ = now + std::clamp(since / 4, kTellAgain, std::chrono::milliseconds(1000));
  const bool late = asked_to_end() && kill_at && now - asked_at_ >= (*kill_at - asked_at_) / 2;
  family_.TellToEnd(search->Of(static_cast<size_t>(command.local_rank), kFreshMembers), program, late, now);
}

void SupervisedRank::Kill() {
  if (!running()) return;
  if (!told_to_end() && !HasEndedByItself()) ending_ = Ending::kKilled;
  const auto state = ReadProcessState(process.pid);
  if (state && !state->exiting && LookForStop(*state) == StopWatch::State::kStopped) was_stopped_ = true;
  ::kill(-process.pid, SIGKILL);
  ::kill(process.pid, SIGKILL);  // it may have made a group of its own
}

void SupervisedRank::PassOn(int signal) {
  passed_on_ = signal;
  const RankMembers& members = search->Of(static_cast<size_t>(command.local_rank), kFreshMembers);
  std::vector<const RankMember*> takers;
  if (program == 0) takers = WhoTakesNotice(members, signal);
  for (const RankMember* taker : takers) SignalMember(*taker, signal);
  if (takers.empty()) ::kill(program_pid(), signal);
}

StopWatch::State SupervisedRank::LookForStop(const ProcessState& state) const {
  if (IsHeld(state, process.pid)) return StopWatch::State::kHeld;
  if (state.state == 'T') return StopWatch::State::kStopped;
  const pid_t pid = program != 0 ? program : WrappedProgram(process.pid);
  if (pid == 0) return StopWatch::State::kGoes;
  const auto wrapped = ReadProcessState(pid);
  if (!wrapped || wrapped->group != state.group) return StopWatch::State::kGoes;
  if (IsHeld(*wrapped, pid)) return StopWatch::State::kHeld;
  return wrapped->state == 'T' ? StopWatch::State::kStopped : StopWatch::State::kGoes;
}

std::string SupervisedRank::HeldBy() const {
  if (!running()) return "";
  for (const pid_t pid : {process.pid, program_pid()}) {
    const auto state = ReadProcessState(pid);
    const pid_t tracer = state && (state->state == 't' || state->state == 'T') ? TracerOf(pid) : 0;
    if (tracer == 0) continue;
    const auto debugger = ReadProcessState(tracer);
    return (debugger ? debugger->name + ", " : "") + "pid " + std::to_string(tracer);
  }
  return "";
}

v1::RankExit SupervisedRank::MakeExit(int wait_status) const {
  v1::RankExit exit;
  exit.set_rank(placement.rank());
  exit.set_pid(process.pid);
  exit.set_started(true);
  exit.set_unix_time_ns(UnixTimeNs());
  if (WIFSIGNALED(wait_status)) {
    exit.set_signal(WTERMSIG(wait_status));
  } else {
    exit.set_exit_code(WEXITSTATUS(wait_status));
  }
  // After our signal any end is our doing, except by a signal that we never send.
  const bool our_signal = exit.signal() == 0 || exit.signal() == SIGTERM || exit.signal() == SIGKILL;
  exit.set_killed_by_us(told_to_end() && our_signal);
  exit.set_asked_to_end(asked_to_end());
  exit.set_was_stopped(was_stopped_);
  if (exit.killed_by_us()) {
    const RankPlace place = place_.value_or(RankPlace());
    exit.mutable_frames()->Assign(place.frames.begin(), place.frames.end());
    exit.set_state(place.state);
  }
  if (exit.killed_by_us()) exit.set_error(own_fault);
  exit.set_passed_on(passed_on_ != 0 && LikelySignal(exit) == passed_on_);
  for (const std::string& line : output->last_lines().Lines()) exit.add_last_lines(line);
  exit.set_last_words(output->last_lines().Words());
  // A program may have told it to the file alone.
  if (!FindPythonException({exit.last_lines().begin(), exit.last_lines().end()}).has_value()) {
    for (const std::string& line : error_file.Lines()) exit.add_last_lines(line);
  }
  exit.set_log_path(output->log_path());
  return exit;
}

}  // namespace cohort::launcher
