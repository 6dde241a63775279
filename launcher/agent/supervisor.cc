#include "cohort/launcher/agent/supervisor.h"

#include <sys/epoll.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/agent/rank/clone_child.h"
#include "cohort/launcher/agent/watch/group_use.h"
#include "cohort/launcher/agent/watch/limit_mark.h"
#include "cohort/launcher/base/unix_time.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/machine/placement.h"
#include "cohort/launcher/options/options.h"

namespace cohort::launcher {
namespace {

int ExitCodeOf(const absl::Status& status) {
  if (absl::IsNotFound(status)) return kExitNotFound;
  return absl::IsPermissionDenied(status) ? kExitNotExecutable : kExitLauncher;
}

void Begin(RankMemberSearch* search, const std::vector<SupervisedRank>& ranks) {
  std::vector<RankMemberSearch::Leader> leaders;
  for (const SupervisedRank& rank : ranks) {
    const int input = rank.process.input.valid() ? rank.process.input.get() : rank.command.input;
    leaders.push_back({.pid = rank.process.pid, .input = PipeOf(input)});
  }
  const std::string mark = ranks.empty() ? "" : MarkIn(ranks[0].command.environment);
  const bool marked = !mark.empty() && LimitWithMark(LimitMark(mark, 0)).has_value();
  search->Begin(marked ? LimitMark(mark) : 0, std::move(leaders));
}

// Whether those of all ranks that do not stay are.
bool FirstProcessesGone(const std::vector<SupervisedRank>& ranks) {
  return std::none_of(ranks.begin(), ranks.end(),
                      [](const SupervisedRank& rank) { return rank.running() && !rank.staying(); });
}

}  // namespace

Supervisor::Supervisor(EventLoop* loop, Sentinel* sentinel, const Cgroup* cgroup, LogWriter* logs, Callbacks callbacks,
                       std::chrono::milliseconds exec_limit)
    : loop_(loop),
      sentinel_(sentinel),
      cgroup_(cgroup),
      logs_(logs),
      callbacks_(std::move(callbacks)),
      exec_limit_(exec_limit),
      memory_("/", cgroup->folder()),
      left_behind_(&ranks_, &search_,
                   {.on_end = [this](size_t index) { Report(index, *ranks_[index].ended); },
                    .on_notice = callbacks_.on_notice}) {}

Supervisor::~Supervisor() {
  loop_->Cancel(look_timer_);
  loop_->Cancel(exec_timer_);
  for (SupervisedRank& rank : ranks_) {
    if (rank.starting()) loop_->Unwatch(rank.process.exec_error.get());
    loop_->Cancel(rank.kill_timer);
    loop_->Cancel(rank.vanished_timer);
  }
}

void Supervisor::Start(const v1::Assignment& assignment, const std::vector<std::vector<std::string>>& environments,
                       std::vector<std::optional<Kept>> kept, int input_of_first_rank) {
  const v1::JobSpec& job = assignment.job();
  output_options_ = {.rank = 0,
                     .logs = logs_,
                     .log_directory = job.log_directory(),
                     .epoch = assignment.epoch(),
                     .log_rate = job.log_rate(),
                     .raw = job.raw_output(),
                     .on_line = callbacks_.on_line};
  waits_for_stopped_ = job.waits_for_stopped();
  left_behind_.set_grace(std::chrono::milliseconds(job.grace_ms()));
  ranks_.resize(assignment.placement().ranks_size());
  for (size_t i = ranks_.size(); i < kept.size(); ++i) {
    if (kept[i].has_value()) ::kill(-kept[i]->process.pid, SIGKILL);  // there is no place for it any more
  }
  kept.resize(ranks_.size());
  std::vector<absl::Status> forks(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    SupervisedRank& rank = ranks_[i];
    rank.search = &search_;
    rank.placement = assignment.placement().ranks(static_cast<int>(i));
    rank.command = {.argv = {job.command().begin(), job.command().end()},
                    .path = job.command_size() > 0 ? job.command(0) : "",
                    .environment = environments[i],
                    .working_directory = job.working_directory(),
                    .cpus = ParseCpuList(rank.placement.cpus()).value_or(std::vector<int>()),
                    .reads_input = job.input_to_first_rank() && rank.placement.rank() == 0,
                    .input = rank.placement.rank() == 0 ? input_of_first_rank : -1,
                    .local_rank = static_cast<int>(i),
                    .cgroup = cgroup_->fd()};
    if (kept[i].has_value()) {
      rank.TakeOver(&*kept[i]);
      continue;
    }
    forks[i] = rank.Fork();
    if (!forks[i].ok()) continue;
    ++starting_;
    sentinel_->AddGroup(rank.process.pid);
  }
  Begin(&search_, ranks_);
  last_look_ = EventLoop::Clock::now();
  look_timer_ = loop_->After(kLookInterval, [this] { Look(); });
  exec_timer_ = loop_->After(exec_limit_, [this] { OnExecLate(); });
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].starting()) {
      loop_->Watch(ranks_[i].process.exec_error.get(), EPOLLIN, [this, i](uint32_t) { LookForExec(i); });
    } else {
      OnExec(i, forks[i], std::move(kept[i]));
    }
  }
  FinishStart();
}

void Supervisor::LookForExec(size_t index) {
  SupervisedRank& rank = ranks_[index];
  const std::optional<absl::Status> outcome = ExecOutcome(rank.process, rank.command);
  if (!outcome) return;
  rank.EndStarting(loop_);
  --starting_;
  OnExec(index, *outcome, std::nullopt);
  FinishStart();
}

// One that was kept runs anyway.
void Supervisor::OnExec(size_t index, const absl::Status& status, std::optional<Kept> kept) {
  SupervisedRank& rank = ranks_[index];
  if (!status.ok()) {
    rank.Kill();  // it may still be on its way
    rank.MarkReported();
    v1::RankExit& exit = *outcome_.add_failed();
    exit.set_rank(rank.placement.rank());
    exit.set_exit_code(ExitCodeOf(status));
    exit.set_started(false);
    exit.set_error(std::string(status.message()));
    exit.set_unix_time_ns(UnixTimeNs());
    return;
  }
  if (rank.life() == RankLife::kStarting) rank.MarkRunning();
  v1::RankPid& pid = *outcome_.add_pids();
  pid.set_rank(rank.placement.rank());
  pid.set_pid(rank.process.pid);
  rank.WatchOutput(loop_, output_options_, kept ? std::move(kept->output) : nullptr, output_paused_);
  rank.FeedInput(loop_, callbacks_.on_input_wanted, kept ? std::move(kept->input) : nullptr);
}

void Supervisor::OnExecLate() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    SupervisedRank& rank = ranks_[i];
    if (!rank.starting()) continue;
    rank.EndStarting(loop_);
    --starting_;
    OnExec(i, ExecIsLate(rank.command, exec_limit_), std::nullopt);
  }
  FinishStart();
}

void Supervisor::FinishStart() {
  if (starting_ > 0 || std::exchange(started_, true)) return;
  loop_->Cancel(exec_timer_);
  ReleaseExecuted();
  callbacks_.on_started(std::move(outcome_));
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].ended) left_behind_.Begin(i, EventLoop::Clock::now());
  }
  loop_->Post([this] { CheckAllGone(); });
}

void Supervisor::Look() {
  look_timer_ = loop_->After(kLookInterval, [this] { Look(); });
  const auto now = EventLoop::Clock::now();
  // Ranks may have gone on meanwhile, or have been stopped along with this process: the time does not count.
  const auto passed = now - std::exchange(last_look_, now);
  const auto stalled = passed > kSelfStall ? passed : EventLoop::Clock::duration(0);
  for (SupervisedRank& rank : ranks_) {
    rank.stop.Forgive(stalled);
  }
  const auto unread = std::exchange(output_unread_, output_paused_) ? passed - stalled : EventLoop::Clock::duration(0);
  if (looks_ % kLooksPerMemoryLook == 0) memory_.Look();
  const bool everyone = looks_++ % kLooksPerSmallLook == 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const SupervisedRank& rank = ranks_[i];
    const bool stopped = rank.stop.state() == StopWatch::State::kStopped;
    if (rank.watched() && (everyone || rank.large || stopped)) LookAt(i, now);
  }
  if (left_behind_.Look(now, stalled, unread)) CheckAllGone();
}

void Supervisor::LookAt(size_t index, EventLoop::Clock::time_point now) {
  SupervisedRank& rank = ranks_[index];
  const auto state = ReadProcessState(rank.process.pid);
  if (!state) return;
  rank.large = state->resident_bytes > kLargeBytes;
  if (state->exiting && state->state != 'Z' && state->exit_status != 0) {
    if (!rank.asked_to_end() && !left_behind_.HasFilters(index)) Report(index, state->exit_status);
    return;
  }
  // A debugger that had stopped it keeps its end to itself, and may do so for hours.
  if (state->state == 'Z' && TracerOf(rank.process.pid) != 0) OnChildEnded(rank.process.pid, state->exit_status);
  if (state->exiting || state->state == 'Z') return;
  rank.stop.See(rank.LookForStop(*state), now);
  if (rank.stop.MustTell(now) && !rank.told_to_end()) TellOfStop(rank);
  const bool waits = waits_for_stopped_ && !rank.told_to_end();
  if (rank.stop.state() != StopWatch::State::kStopped || waits || rank.stop.lasts(now) < kFrozenAfter) return;
  if (!rank.own_fault.empty()) return;
  if (!rank.told_to_end()) rank.own_fault = "it stayed stopped (SIGSTOP)";
  rank.Kill();
}

void Supervisor::TellOfStop(const SupervisedRank& rank) {
  const std::string name = "rank " + std::to_string(rank.placement.rank());
  const std::string named = name + " (pid " + std::to_string(rank.program_pid()) + ")";
  switch (rank.stop.state()) {
    case StopWatch::State::kGoes:
      return callbacks_.on_notice(name + " goes on");
    case StopWatch::State::kStopped:
      return callbacks_.on_notice(named + " is stopped (SIGSTOP); " +
                                  (waits_for_stopped_
                                       ? "the job waits until it goes on (SIGCONT)"
                                       : "it is killed if it stays so for 2.5 s (--stopped wait lets it be)"));
    case StopWatch::State::kHeld:
      return callbacks_.on_notice(named + " is stopped by a debugger (" + rank.HeldBy() +
                                  "); it is let be, and calls of other ranks may time out");
  }
}

void Supervisor::Stop(std::chrono::milliseconds grace, bool restarting) {
  if (grace.count() > 0) {
    evidence_.HoldBack(&ranks_, std::min(kEvidenceWithin, grace / 4), callbacks_.on_notice);
  }
  const auto now = EventLoop::Clock::now();
  const auto kill_at = now + grace;
  left_behind_.Shorten(kill_at, now);
  for (SupervisedRank& rank : ranks_) {
    if (!rank.running() || (restarting && rank.staying())) continue;
    const bool spared = restarting && rank.may_stay && !rank.told_to_end();
    if (grace.count() > 0 && rank.kill_at && *rank.kill_at <= kill_at) {
      rank.Ask(spared);
      continue;
    }
    loop_->Cancel(rank.kill_timer);
    if (grace.count() <= 0) {
      rank.Kill();
      continue;
    }
    rank.kill_at = kill_at;
    rank.Ask(spared);
    rank.kill_timer = loop_->After(grace, [this, &rank] { rank.Kill(); });
  }
}

void Supervisor::PassOn(int signal) {
  if (signal != SIGUSR1 && signal != SIGUSR2) return;
  for (SupervisedRank& rank : ranks_) {
    if (rank.running() && !rank.told_to_end()) rank.PassOn(signal);
  }
}

void Supervisor::OnProgramJoined(int local_rank, pid_t program, bool may_stay) {
  SupervisedRank& rank = ranks_[local_rank];
  rank.may_stay = may_stay;
  loop_->Cancel(rank.vanished_timer);  // of a process that has joined before, perhaps this one
  if (rank.process.pid != program) rank.program = program;
}

void Supervisor::OnStays(int local_rank) {
  SupervisedRank& rank = ranks_[local_rank];
  if (rank.life() != RankLife::kRunning || rank.told_to_end() || rank.to_be_asked()) return;
  rank.MarkStaying();
  loop_->Cancel(rank.kill_timer);
  loop_->Cancel(rank.vanished_timer);
  rank.kill_at.reset();
  CheckAllGone();
}

std::vector<std::optional<Supervisor::Kept>> Supervisor::TakeStaying() {
  std::vector<std::optional<Kept>> kept(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    SupervisedRank& rank = ranks_[i];
    if (!rank.running()) continue;
    if (!rank.staying() || rank.told_to_end() || rank.to_be_asked()) {
      rank.Kill();  // it does not heed that, and nobody else would watch it
      sentinel_->LeaderEnded(rank.process.pid);
      continue;
    }
    kept[i] = rank.Keep();
  }
  return kept;
}

void Supervisor::OnProgramVanished(int local_rank, pid_t program) {
  SupervisedRank& rank = ranks_[local_rank];
  rank.program = 0;
  if (!rank.running() || rank.told_to_end() || rank.process.pid == program) return;
  loop_->Cancel(rank.vanished_timer);
  rank.vanished_timer = loop_->After(std::chrono::seconds(1), [this, &rank, local_rank, program] {
    if (!rank.running() || rank.told_to_end()) return;
    const auto state = ReadProcessState(program);
    if (state && !state->exiting) {  // it does without its agent: look again
      OnProgramVanished(local_rank, program);
      return;
    }
    rank.own_fault = "its program (pid " + std::to_string(program) + ") had ended without goodbye, its wrapper had not";
    rank.Kill();
  });
}

void Supervisor::OnChildStopped(pid_t pid) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    SupervisedRank& rank = ranks_[i];
    if (!rank.watched() || rank.process.pid != pid) continue;
    rank.stop.Restart();
    LookAt(i, EventLoop::Clock::now());
  }
}

void Supervisor::KillAsAsked(int local_rank, const std::string& why) {
  SupervisedRank& rank = ranks_[local_rank];
  if (!rank.running() || !rank.own_fault.empty()) return;
  if (!rank.told_to_end()) rank.own_fault = why;
  rank.Kill();
}

bool Supervisor::OnChildEnded(pid_t pid, int wait_status) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    SupervisedRank& rank = ranks_[i];
    if (!rank.running() || rank.process.pid != pid) continue;
    const bool stayed = rank.staying();
    rank.MarkReaped();
    loop_->Cancel(rank.kill_timer);
    loop_->Cancel(rank.vanished_timer);
    sentinel_->LeaderEnded(pid);
    if (stayed && told_all_gone_) {  // nothing more is said of this epoch
      ::kill(-pid, SIGKILL);
      if (!rank.told_to_end()) {
        callbacks_.on_notice("rank " + std::to_string(rank.placement.rank()) +
                             ", which waited for the next epoch, has ended; it will be started again");
      }
      return true;
    }
    if (rank.starting()) LookForExec(i);  // its end has told
    rank.ended = wait_status;
    if (started_) left_behind_.Begin(i, EventLoop::Clock::now());
    CheckAllGone();
    return true;
  }
  return false;
}

void Supervisor::Report(size_t index, int wait_status) {
  SupervisedRank& rank = ranks_[index];
  if (rank.reported() || !started_) return;
  rank.MarkReported();
  ended_badly_ |= wait_status != 0 || rank.told_to_end();
  rank.output->Drain(false);
  v1::RankExit exit = rank.MakeExit(wait_status);
  if (LikelySignal(exit) == SIGKILL && !exit.killed_by_us()) exit.set_out_of_memory(memory_.Verdict());
  callbacks_.on_exit(static_cast<int>(index), std::move(exit));
}

bool Supervisor::all_gone() const {
  return started_ && FirstProcessesGone(ranks_) &&
         std::none_of(ranks_.begin(), ranks_.end(), [](const SupervisedRank& rank) {
           return rank.left.has_value() || rank.life() == RankLife::kReaped;
         });
}

void Supervisor::CheckAllGone() {
  if (told_all_gone_ || !started_ || !FirstProcessesGone(ranks_)) return;
  if (left_behind_.Remains(EventLoop::Clock::now()) || !all_gone()) return;
  const auto again = [this] { CheckAllGone(); };
  if (ended_badly_ && evidence_.LookBack(ranks_, kEvidenceWithin, callbacks_.on_notice, again)) return;
  told_all_gone_ = true;
  loop_->Cancel(look_timer_);
  callbacks_.on_all_gone();
}

void Supervisor::TakeInput(const v1::StandardInput& input) {
  for (SupervisedRank& rank : ranks_) {
    if (rank.input) rank.input->Take(input.bytes(), input.end());
  }
}

void Supervisor::PauseOutput() {
  output_paused_ = true;
  for (SupervisedRank& rank : ranks_) {
    if (rank.output) rank.output->Pause();
  }
}

void Supervisor::ResumeOutput() {
  output_paused_ = output_unread_ = false;
  for (SupervisedRank& rank : ranks_) {
    if (rank.output) rank.output->Resume();
  }
}

void Supervisor::DrainOutput() {
  for (SupervisedRank& rank : ranks_) {
    if (rank.output) rank.output->Drain(true);
  }
}

std::vector<v1::RankView> Supervisor::View() const {
  const std::unordered_map<pid_t, GroupUse> uses = LookAtGroups(pids());
  std::vector<v1::RankView> views(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const SupervisedRank& rank = ranks_[i];
    views[i].set_rank(rank.placement.rank());
    const auto use = uses.find(rank.process.pid);
    if (!rank.running() || use == uses.end()) continue;
    views[i].set_pid(rank.program_pid());
    views[i].set_stopped(use->second.stopped || rank.stop.state() == StopWatch::State::kStopped);
    views[i].set_processes(use->second.processes);
    views[i].set_cpu_ms(use->second.cpu_ms);
    views[i].set_resident_bytes(use->second.resident_bytes);
    views[i].set_age_ms(use->second.age_ms);
  }
  return views;
}

void Supervisor::GatherStacks(const v1::StacksWanted& wanted, const std::function<void(v1::RankStack)>& on_stack) {
  const auto add = evidence_.JoinTo(ranks_, wanted, kEvidenceWithin, on_stack);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const SupervisedRank& rank = ranks_[i];
    const auto& named = wanted.ranks();
    if (!named.empty() && std::find(named.begin(), named.end(), rank.placement.rank()) == named.end()) continue;
    v1::RankStack stack;
    stack.set_number(wanted.number());
    stack.set_rank(rank.placement.rank());
    if (!rank.running()) {
      stack.set_text("  has ended\n");
      add(std::move(stack));
      continue;
    }
    stack.set_pid(rank.program_pid());
    stacks_.Gather(rank.process.pid, rank.program_pid(), [stack, add](const std::string& text) mutable {
      stack.set_text(text);
      add(std::move(stack));
    });
  }
}

pid_t Supervisor::GroupOf(int local_rank) const {
  const SupervisedRank& rank = ranks_[local_rank];
  return rank.running() ? rank.process.pid : 0;
}

std::vector<pid_t> Supervisor::staying() const {
  std::vector<pid_t> pids;
  for (const SupervisedRank& rank : ranks_) {
    if (rank.staying()) pids.push_back(rank.process.pid);
  }
  return pids;
}

std::vector<pid_t> Supervisor::pids() const {
  std::vector<pid_t> pids;
  for (const SupervisedRank& rank : ranks_) {
    if (rank.running()) pids.push_back(rank.process.pid);
  }
  return pids;
}

}  // namespace cohort::launcher
