#include "cohort/launcher/agent/life/rank_handle.h"

#include <sys/epoll.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/watch/rank_members.h"

namespace cohort::launcher {
namespace {

bool IsHeld(const ProcessState& state, pid_t pid) {
  return (state.state == 't' || state.state == 'T') && TracerOf(pid) != 0;
}

}  // namespace

absl::Status RankHandle::Fork(RankCommand* command) {
  const auto names_one = [](const std::string& variable) {
    return variable.starts_with(std::string(kErrorFileVariable) + "=");
  };
  std::vector<std::string>& environment = command->environment;
  if (std::none_of(environment.begin(), environment.end(), names_one)) {  // unless a user asked for one
    error_file_ = ErrorFile::Make();
    if (error_file_.valid()) environment.push_back(std::string(kErrorFileVariable) + "=" + error_file_.path());
  }
  auto started = StartRank(*command);
  if (!started.ok()) return started.status();
  process_ = *std::move(started);
  return absl::OkStatus();
}

void RankHandle::AwaitExec(EventLoop* loop, std::function<void()> look) const {
  loop->Watch(process_.exec_error.get(), EPOLLIN, [look = std::move(look)](uint32_t) { look(); });
}

void RankHandle::EndStarting(EventLoop* loop) {
  loop->Unwatch(process_.exec_error.get());
  process_.exec_error.Close();
}

void RankHandle::Begin(EventLoop* loop, RankOutput::Options options, bool paused, bool reads_input,
                       const RankInput::Want& want) {
  if (output_ != nullptr) {
    output_->GoOn(std::move(options));
  } else {
    output_ =
        std::make_unique<RankOutput>(loop, std::move(options), std::move(process_.output), std::move(process_.error));
  }
  if (paused) {
    output_->Pause();
  } else {
    output_->Resume();
  }
  if (process_.input.valid()) {
    input_ = std::make_unique<RankInput>(loop, std::move(process_.input), want);
  } else if (input_ != nullptr && reads_input) {
    input_->GoOn(want);
  } else {
    input_.reset();  // another is the first now
  }
}

// A stop for a snapshot of its threads is told too, and is no end.
bool RankHandle::HasEndedByItself() const {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
      info.si_code != CLD_TRAPPED && info.si_code != CLD_STOPPED) {
    return true;
  }
  const auto state = ReadProcessState(pid());
  return state && state->exiting && state->exit_status != 0;
}

StopWatch::State RankHandle::LookForStop(const ProcessState& state) const {
  if (IsHeld(state, pid())) return StopWatch::State::kHeld;
  if (state.state == 'T') return StopWatch::State::kStopped;
  if (program_ == 0 && state.threads != 1) return StopWatch::State::kGoes;  // no wrapper: its state is not read again
  const pid_t wrapped_pid = program_ != 0 ? program_ : WrappedProgram(pid());
  if (wrapped_pid == 0) return StopWatch::State::kGoes;
  const auto wrapped = ReadProcessState(wrapped_pid);
  if (!wrapped || wrapped->group != state.group) return StopWatch::State::kGoes;
  if (IsHeld(*wrapped, wrapped_pid)) return StopWatch::State::kHeld;
  return wrapped->state == 'T' ? StopWatch::State::kStopped : StopWatch::State::kGoes;
}

std::string RankHandle::HeldBy() const {
  for (const pid_t pid : {process_.pid, program_pid()}) {
    const auto state = ReadProcessState(pid);
    const pid_t tracer = state && (state->state == 't' || state->state == 'T') ? TracerOf(pid) : 0;
    if (tracer == 0) continue;
    const auto debugger = ReadProcessState(tracer);
    return (debugger ? debugger->name + ", " : "") + "pid " + std::to_string(tracer);
  }
  return "";
}

void RankHandle::Kill() const {
  ::kill(-pid(), SIGKILL);
  ::kill(pid(), SIGKILL);  // it may have made a group of its own
}

}  // namespace cohort::launcher
