#include "cohort/launcher/agent/supervisor.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/agent/watch/group_use.h"
#include "cohort/launcher/agent/watch/limit_mark.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/control/parts/program_of.h"
#include "cohort/launcher/machine/placement.h"

namespace cohort::launcher {
namespace {

void Begin(RankMemberSearch* search, const SupervisedRanks& ranks) {
  std::vector<RankMemberSearch::Leader> leaders;
  for (const SupervisedRank& rank : ranks) {
    const int fed = rank.handle().input_fd();
    leaders.push_back({.pid = rank.handle().pid(), .input = PipeOf(fed >= 0 ? fed : rank.command().input)});
  }
  const std::string mark = ranks.empty() ? "" : MarkIn(ranks[0].command().environment);
  const bool marked = !mark.empty() && LimitWithMark(LimitMark(mark, 0)).has_value();
  search->Begin(marked ? LimitMark(mark) : 0, std::move(leaders));
}

// Whether those of all ranks that do not stay are.
bool FirstProcessesGone(const SupervisedRanks& ranks) {
  return std::none_of(ranks.begin(), ranks.end(),
                      [](const SupervisedRank& rank) { return rank.has_process() && !rank.staying(); });
}

}  // namespace

Supervisor::Supervisor(EventLoop* loop, Sentinel* sentinel, const Cgroup* cgroup, LogWriter* logs, Handler handle,
                       std::chrono::milliseconds exec_limit)
    : loop_(loop),
      sentinel_(sentinel),
      cgroup_(cgroup),
      logs_(logs),
      handle_(std::move(handle)),
      memory_("/", cgroup->folder()),
      start_(loop, &ranks_, &streams_, exec_limit,
             [this](v1::RanksStarted started) { OnStartKnown(std::move(started)); }),
      left_behind_(&ranks_, &search_,
                   {.on_end = [this](size_t index) { Report(index, *ranks_[index].wait_status()); },
                    .on_notice = [this](const std::string& text) { TellUser(text); }}) {}

Supervisor::~Supervisor() { loop_->Cancel(look_timer_); }

void Supervisor::Start(const v1::Assignment& assignment, const std::vector<RankSurroundings>& surroundings,
                       std::vector<std::optional<Kept>> kept, int input_of_first_rank) {
  const v1::JobSpec& job = assignment.job();
  streams_.SetUp({.rank = 0,
                  .logs = logs_,
                  .log_directory = job.log_directory(),
                  .epoch = assignment.epoch(),
                  .log_rate = job.log_rate(),
                  .raw = job.raw_output(),
                  .on_line = [this](const v1::OutputLine& line) { handle_(Line{&line}); }},
                 [this](uint64_t bytes, bool closed) { handle_(InputWanted{bytes, closed}); });
  waits_for_stopped_ = job.waits_for_stopped();
  left_behind_.set_grace(std::chrono::milliseconds(job.grace_ms()));
  const auto size = static_cast<size_t>(assignment.placement().ranks_size());
  for (size_t i = size; i < kept.size(); ++i) {
    if (kept[i].has_value()) ::kill(-kept[i]->pid(), SIGKILL);  // there is no place for it any more
  }
  kept.resize(size);
  std::vector<absl::Status> forks(size);
  for (size_t i = 0; i < size; ++i) {
    const v1::RankPlacement& placement = assignment.placement().ranks(static_cast<int>(i));
    const bool first = placement.rank() == 0;
    std::vector<std::string> command = CommandOf(job.programs(), placement.rank());
    std::string path = command.empty() ? "" : command[0];
    SupervisedRank& rank =
        ranks_.emplace_back(loop_, &search_, placement.rank(),
                            RankCommand{.argv = std::move(command),
                                        .path = std::move(path),
                                        .environment = surroundings[i].environment,
                                        .working_directory = job.working_directory(),
                                        .cpus = ParseCpuList(placement.cpus()).value_or(std::vector<int>()),
                                        .reads_input = job.input_to_first_rank() && first,
                                        .input = first ? input_of_first_rank : -1,
                                        .inherited = surroundings[i].inherited,
                                        .local_rank = static_cast<int>(i),
                                        .cgroup = cgroup_->fd()});
    if (kept[i].has_value()) {
      rank.TakeOver(*std::move(kept[i]));
      continue;
    }
    forks[i] = rank.Fork();
    if (forks[i].ok()) sentinel_->AddGroup(rank.handle().pid());
  }
  Begin(&search_, ranks_);
  last_look_ = EventLoop::Clock::now();
  look_timer_ = loop_->After(kLookInterval, [this] { Look(); });
  start_.Begin(forks);
}

void Supervisor::OnStartKnown(v1::RanksStarted started) {
  handle_(Started{std::move(started)});
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].wait_status()) left_behind_.Begin(i, EventLoop::Clock::now());
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
    rank.stop().Forgive(stalled);
  }
  const auto unread = streams_.TakeUnread() ? passed - stalled : EventLoop::Clock::duration(0);
  if (looks_ % kLooksPerMemoryLook == 0) memory_.Look();
  const bool everyone = looks_++ % kLooksPerSmallLook == 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const SupervisedRank& rank = ranks_[i];
    const bool stopped = rank.stop().state() == StopWatch::State::kStopped;
    if (rank.watched() && (everyone || stopped || large_.contains(i))) LookAt(i, now);
  }
  if (left_behind_.Look(now, stalled, unread)) CheckAllGone();
}

void Supervisor::LookAt(size_t index, EventLoop::Clock::time_point now) {
  SupervisedRank& rank = ranks_[index];
  const auto state = ReadProcessState(rank.handle().pid());
  if (!state) return;
  if (state->resident_bytes > kLargeBytes) {
    large_.insert(index);
  } else {
    large_.erase(index);
  }
  if (state->exiting && state->state != 'Z' && state->exit_status != 0) {
    if (!rank.signals().asked() && !left_behind_.HasFilters(index)) Report(index, state->exit_status);
    return;
  }
  // A debugger that had stopped it keeps its end to itself, and may do so for hours.
  if (state->state == 'Z' && TracerOf(rank.handle().pid()) != 0) OnChildEnded(rank.handle().pid(), state->exit_status);
  if (state->exiting || state->state == 'Z') return;
  StopWatch& stop = rank.stop();
  stop.See(rank.handle().LookForStop(*state), now);
  if (stop.MustTell(now) && !rank.signals().told()) TellOfStop(rank);
  const bool waits = waits_for_stopped_ && !rank.signals().told();
  if (stop.state() != StopWatch::State::kStopped || waits || stop.lasts(now) < kFrozenAfter) return;
  rank.signals().KillFor("it stayed stopped (SIGSTOP)");
}

void Supervisor::TellOfStop(const SupervisedRank& rank) {
  const std::string named = rank.name() + " (pid " + std::to_string(rank.handle().program_pid()) + ")";
  switch (rank.stop().state()) {
    case StopWatch::State::kGoes:
      return TellUser(rank.name() + " goes on");
    case StopWatch::State::kStopped:
      return TellUser(named + " is stopped (SIGSTOP); " +
                      (waits_for_stopped_ ? "the job waits until it goes on (SIGCONT)"
                                          : "it is killed if it stays so for 2.5 s (--stopped wait lets it be)"));
    case StopWatch::State::kHeld:
      return TellUser(named + " is stopped by a debugger (" + rank.handle().HeldBy() +
                      "); it is let be, and calls of other ranks may time out");
  }
}

void Supervisor::Stop(std::chrono::milliseconds grace, bool restarting) {
  if (grace.count() > 0) {
    evidence_.HoldBack(&ranks_, std::min(kEvidenceWithin, grace / 4),
                       [this](const std::string& text) { TellUser(text); });
  }
  const auto now = EventLoop::Clock::now();
  left_behind_.Shorten(now + grace, now);
  for (SupervisedRank& rank : ranks_) rank.Stop(grace, now, restarting);
}

void Supervisor::PassOn(int signal) {
  if (signal != SIGUSR1 && signal != SIGUSR2) return;
  for (SupervisedRank& rank : ranks_) {
    if (rank.has_process() && !rank.signals().told()) rank.signals().PassOn(signal);
  }
}

void Supervisor::OnStays(int local_rank) {
  if (ranks_[local_rank].Stay()) CheckAllGone();
}

std::vector<std::optional<Supervisor::Kept>> Supervisor::TakeStaying() {
  std::vector<std::optional<Kept>> kept(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].has_process()) continue;
    kept[i] = ranks_[i].Keep();
    if (!kept[i].has_value()) sentinel_->LeaderEnded(ranks_[i].handle().pid());
  }
  return kept;
}

void Supervisor::OnChildStopped(pid_t pid) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    SupervisedRank& rank = ranks_[i];
    if (!rank.watched() || rank.handle().pid() != pid) continue;
    rank.stop().Restart();
    LookAt(i, EventLoop::Clock::now());
  }
}

bool Supervisor::OnChildEnded(pid_t pid, int wait_status) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    SupervisedRank& rank = ranks_[i];
    if (!rank.has_process() || rank.handle().pid() != pid) continue;
    const bool stayed = rank.staying();
    rank.MarkReaped();
    sentinel_->LeaderEnded(pid);
    if (stayed && told_all_gone_) {  // nothing more is said of this epoch
      ::kill(-pid, SIGKILL);
      if (!rank.signals().told()) {
        TellUser(rank.name() + ", which waited for the next epoch, has ended; it will be started again");
      }
      return true;
    }
    if (rank.handle().starting()) start_.Look(i);  // its end has told
    rank.MarkEnded(wait_status);
    if (start_.done()) left_behind_.Begin(i, EventLoop::Clock::now());
    CheckAllGone();
    return true;
  }
  return false;
}

void Supervisor::Report(size_t index, int wait_status) {
  SupervisedRank& rank = ranks_[index];
  if (rank.reported() || !start_.done()) return;
  rank.MarkReported();
  ended_badly_ |= wait_status != 0 || rank.signals().told();
  rank.handle().output()->Drain(false);
  v1::RankExit exit = rank.MakeExit(wait_status);
  if (LikelySignal(exit) == SIGKILL && !exit.killed_by_us()) exit.set_out_of_memory(memory_.Verdict());
  handle_(Ended{static_cast<int>(index), std::move(exit)});
}

bool Supervisor::all_gone() const {
  const auto reaped = [](const SupervisedRank& rank) { return rank.reaped(); };
  return start_.done() && FirstProcessesGone(ranks_) && !left_behind_.waits() &&
         std::none_of(ranks_.begin(), ranks_.end(), reaped);
}

void Supervisor::CheckAllGone() {
  if (told_all_gone_ || !start_.done() || !FirstProcessesGone(ranks_)) return;
  if (left_behind_.AwaitOutputs(EventLoop::Clock::now()) || !all_gone()) return;
  const auto tell = [this](const std::string& text) { TellUser(text); };
  const auto again = [this] { CheckAllGone(); };
  if (ended_badly_ && evidence_.LookBack(ranks_, kEvidenceWithin, tell, again)) return;
  told_all_gone_ = true;
  loop_->Cancel(look_timer_);
  handle_(AllGone{});
}

std::vector<v1::RankView> Supervisor::View() const {
  const std::unordered_map<pid_t, GroupUse> uses = LookAtGroups(pids());
  std::vector<v1::RankView> views(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const SupervisedRank& rank = ranks_[i];
    views[i].set_rank(rank.rank());
    const auto use = uses.find(rank.handle().pid());
    if (!rank.has_process() || use == uses.end()) continue;
    views[i].set_pid(rank.handle().program_pid());
    views[i].set_stopped(use->second.stopped || rank.stop().state() == StopWatch::State::kStopped);
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
    if (!named.empty() && std::find(named.begin(), named.end(), rank.rank()) == named.end()) continue;
    v1::RankStack stack;
    stack.set_number(wanted.number());
    stack.set_rank(rank.rank());
    if (!rank.has_process()) {
      stack.set_text("  has ended\n");
      add(std::move(stack));
      continue;
    }
    stack.set_pid(rank.handle().program_pid());
    stacks_.Gather(rank.handle().pid(), rank.handle().program_pid(), [stack, add](const std::string& text) mutable {
      stack.set_text(text);
      add(std::move(stack));
    });
  }
}

std::vector<pid_t> Supervisor::staying() const {
  std::vector<pid_t> pids;
  for (const SupervisedRank& rank : ranks_) {
    if (rank.staying()) pids.push_back(rank.handle().pid());
  }
  return pids;
}

std::vector<pid_t> Supervisor::pids() const {
  std::vector<pid_t> pids;
  for (const SupervisedRank& rank : ranks_) {
    if (rank.has_process()) pids.push_back(rank.handle().pid());
  }
  return pids;
}

}  // namespace cohort::launcher
