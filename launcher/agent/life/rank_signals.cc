#include "cohort/launcher/agent/life/rank_signals.h"

#include <algorithm>
#include <csignal>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/watch/process_state.h"
#include "cohort/launcher/agent/watch/signal_targets.h"
#include "cohort/launcher/control/describe.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::milliseconds kFreshMembers{5};  // one look serves ranks that are told together
constexpr std::chrono::milliseconds kTellAgain{100};

}  // namespace

void RankSignals::EndHoldBack() {
  if (std::exchange(held_back_, false)) Ask(/*spared=*/true);
}

void RankSignals::Give(std::chrono::milliseconds grace, TimePoint now, bool spared) {
  const TimePoint kill_at = now + grace;
  if (grace.count() > 0 && kill_at_ && *kill_at_ <= kill_at) return Ask(spared);
  loop_->Cancel(kill_timer_);
  if (grace.count() <= 0) return Kill();
  kill_at_ = kill_at;
  Ask(spared);
  kill_timer_ = loop_->After(grace, [this] { Kill(); });
}

void RankSignals::Ask(bool spared) {
  if (!spared && none()) ending_.Enter(RankEnding::kDecided);
  if (!place_ && *life_ == RankLife::kRunning) place_ = FindPlace(handle_->pid(), handle_->program_pid());
  if (ending_ == RankEnding::kDecided) AskNow();
}

void RankSignals::AskNow() {
  if (held_back_ || !HasProcess(*life_) || handle_->HasEndedByItself()) return;
  ending_.Enter(RankEnding::kAsked);
  asked_at_ = EventLoop::Clock::now();
  TellFamily(asked_at_, false);
  const pid_t pid = handle_->pid();
  const RankMembers& members = search_->Of(local_rank_, kFreshMembers);
  const auto is_first = [pid](const RankMember& member) { return member.pid == pid; };
  // Nobody else tells it if /proc does not show it.
  if (std::none_of(members.begin(), members.end(), is_first)) ::kill(pid, SIGTERM);
}

void RankSignals::TellFamily(TimePoint now, bool again) {
  if (again && (!next_telling_ || now < *next_telling_)) return;
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now - asked_at_);
  next_telling_ = now + std::clamp(since / 4, kTellAgain, std::chrono::milliseconds(1000));
  const bool late = asked() && kill_at_ && now - asked_at_ >= (*kill_at_ - asked_at_) / 2;
  family_.TellToEnd(search_->Of(local_rank_, kFreshMembers), handle_->wrapped_program(), late, now);
}

void RankSignals::Kill() {
  if (!HasProcess(*life_)) return;
  if (!told() && !handle_->HasEndedByItself()) ending_.Enter(RankEnding::kKilled);
  const auto state = ReadProcessState(handle_->pid());
  if (state && !state->exiting && handle_->LookForStop(*state) == StopWatch::State::kStopped) was_stopped_ = true;
  handle_->Kill();
}

void RankSignals::KillFor(const std::string& own_fault) {
  if (!HasProcess(*life_) || !own_fault_.empty()) return;
  if (!told()) own_fault_ = own_fault;
  Kill();
}

void RankSignals::EndAs(int exit_code) {
  if (!HasProcess(*life_) || told()) return;
  ends_as_ = std::clamp(exit_code & 0xff, 1, 255);
  ::kill(-handle_->pid(), SIGKILL);
}

void RankSignals::OnStays() {
  loop_->Cancel(kill_timer_);
  kill_at_.reset();
}

void RankSignals::PassOn(int signal) {
  passed_on_ = signal;
  const RankMembers& members = search_->Of(local_rank_, kFreshMembers);
  std::vector<const RankMember*> takers;
  if (handle_->wrapped_program() == 0) takers = WhoTakesNotice(members, signal);
  for (const RankMember* taker : takers) SignalMember(*taker, signal);
  if (takers.empty()) ::kill(handle_->program_pid(), signal);
}

void RankSignals::Describe(v1::RankExit* exit) const {
  if (ends_as_ && !told()) {
    exit->clear_signal();
    exit->set_exit_code(*ends_as_);
  }
  // After our signal any end is our doing, except by a signal that we never send.
  const bool our_signal = exit->signal() == 0 || exit->signal() == SIGTERM || exit->signal() == SIGKILL;
  exit->set_killed_by_us(told() && our_signal);
  exit->set_asked_to_end(asked());
  exit->set_was_stopped(was_stopped_);
  exit->set_passed_on(passed_on_ != 0 && LikelySignal(*exit) == passed_on_);
  if (!exit->killed_by_us()) return;
  const RankPlace place = place_.value_or(RankPlace());
  exit->mutable_frames()->Assign(place.frames.begin(), place.frames.end());
  exit->set_state(place.state);
  exit->set_error(own_fault_);
}

}  // namespace cohort::launcher
