#include "cohort/launcher/front_end/front_end.h"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/launcher/agent/watch/sweep.h"
#include "cohort/launcher/base/credentials.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/base/unix_time.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/front_end/front_end_inside.h"
#include "cohort/launcher/front_end/job_plan.h"
#include "cohort/launcher/front_end/job_snapshot.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/launcher/report/job_record.h"
#include "cohort/launcher/spawn/local_spawner.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kHandledSignals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
constexpr seconds kJoinTimeout{60};
// `timeout` and others that start programs send a signal to the process and to its group.
constexpr milliseconds kOneOrder{50};
constexpr seconds kStopSlack{10};             // beyond the grace, before everything is killed
constexpr milliseconds kRecordLimit{5000};    // for a file system to take report.json
constexpr int kSilentSecondsAfterReport = 5;  // then agents are killed, and their sentinels sweep
constexpr seconds kAfterKill{5};              // for what the killed have written, and for their sentinels to sweep
constexpr seconds kBlameAgentAfter{3};        // for the rendezvous to notice the loss of an agent by itself

sigset_t HandledSignals() {
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : kHandledSignals) {
    struct sigaction action{};
    ::sigaction(signal, nullptr, &action);
    const bool ignored = action.sa_handler == SIG_IGN;  // nohup: stays so
    if (!ignored) ::sigaddset(&handled, signal);
  }
  return handled;
}

std::vector<std::string> NamesOf(const Job& job) {
  std::vector<std::string> names;
  for (const auto& node : job.nodes.nodes) names.push_back(node.name);
  return names;
}

void TellOfTrace(AgentProcesses* agents, size_t agent, const v1::TraceOrder& order) {
  v1::ToNode message;
  *message.mutable_trace() = order;
  agents->Send(agent, message);
}

// The message that comes before it is enough for users.
v1::JobReport ReportOfNoStart() {
  v1::JobReport report;
  report.set_exit_code(kExitLauncher);
  return report;
}

}  // namespace

FrontEnd::FrontEnd(const Job& job, std::optional<AgentProcess> forked)
    : job_(job),
      started_(std::chrono::system_clock::now()),
      printer_(
          {.on_drained = [this] { loop_.Post([this] { agents_.SetReading(true); }); },
           .on_closed = [this](int fd, int error) { loop_.Post([this, fd, error] { OnClosedStream(fd, error); }); }}),
      turns_(&loop_, &printer_, LineTurns::Surroundings::Find(job.options.prefix)),
      failures_(job, end_, &loop_, &turns_),
      agents_(&loop_, job, std::move(forked),
              [this](const AgentProcesses::Event& event) { std::visit([this](const auto& it) { On(it); }, event); }),
      host_(RendezvousHost::Of(job, &loop_, &agents_, &turns_)),
      input_(&loop_, &turns_, STDIN_FILENO, [this](std::string bytes, bool end) { SendInput(std::move(bytes), end); }),
      trace_(&loop_,
             {.names = NamesOf(job),
              .tell = [this](size_t agent, const v1::TraceOrder& order) { TellOfTrace(&agents_, agent, order); },
              .say = [this](const std::string& text) { turns_.Announce(text); }}),
      watch_(&loop_, &agents_,
             {.job = [this] { return Running(); },
              .stop = [this](bool at_once) { StopForUser("dlaunch kill", 128 + SIGTERM, at_once); },
              .trace = [this](const v1::TraceRequest& request) { return trace_.Answer(request); }}),
      news_(job, end_,
            {.loop = &loop_,
             .agents = &agents_,
             .host = host_.get(),
             .failures = &failures_,
             .watch = &watch_,
             .trace = &trace_,
             .input = &input_,
             .turns = &turns_}) {}

void FrontEnd::StartAgent(size_t index) {
  v1::ToNode message;
  v1::NodeStart& start = *message.mutable_start();
  start = MakeNodeStart(job_, index, agents_.identity(index));
  if (index == 0) *start.mutable_plan() = MakeJobPlan(job_, secret_, kJoinTimeout);
  start.set_rendezvous_address(rendezvous_address_);
  agents_.Send(index, message);
  trace_.OnAgentStarted(index);
}

absl::Status FrontEnd::StartAgents() {
  COHORT_ASSIGN_OR_RETURN(secret_, NewJobSecret());
  const absl::Status status = agents_.Start(signals_.get(), [this] { return IsToldToEnd(); });
  if (absl::IsCancelled(status)) return status;
  if (!status.ok()) {
    return Prefixed("can't start the agents: ", status);
  }
  if (!agents_.IsHere(0)) TellOfUnreadInput(job_, &loop_, &turns_);  // else its agent has the descriptor
  agents_.Reap();  // the ways to machines that joined are older than the block of SIGCHLD: one may have ended before
  const absl::Status asked = watch_.Listen(job_.id);
  if (!asked.ok()) {
    turns_.Announce("dlaunch status and dlaunch kill won't find this job: " + TextOf(asked));
  }
  StartAgent(0);
  loop_.After(kJoinTimeout, [this] {
    loop_.Post([this] { GiveUpUnlessListening(); });  // after all that had come by then: we may have been stopped
  });
  return absl::OkStatus();
}

// All other times are kept by the rendezvous, which its host has not begun: its ssh or srun hangs, or its shell.
void FrontEnd::GiveUpUnlessListening() {
  if (!rendezvous_address_.empty() || end_.ending()) return;
  const std::string text = "the agent of " + job_.nodes.nodes[0].name + " has not answered within " +
                           std::to_string(std::chrono::duration_cast<seconds>(kJoinTimeout).count()) +
                           " s; does its machine start programs in that time?";
  OnReport(end_.ReportOf(text, text));
  KillAgents();
}

void FrontEnd::On(const AgentProcesses::Message& event) {
  const v1::FromNode& message = *event.message;
  if (!host_->IsNew(message)) return;
  if (message.has_report()) return OnReport(message.report());
  if (!message.has_listening()) {
    news_.OnMessage(event.index, message);
    if (message.has_output() || message.has_trace()) silent_seconds_ = 0;
    if (message.has_output()) PauseIfFull();
    return;
  }
  if (host_->OnListening(event.index, message.listening())) return;
  rendezvous_address_ = message.listening();
  for (size_t i = 1; i < agents_.size(); ++i) StartAgent(i);
}

void FrontEnd::On(const AgentProcesses::Words& event) {
  if (!event.words.empty()) turns_.Announce(job_.nodes.nodes[event.index].name + ": " + event.words);
  PauseIfFull();
}

void FrontEnd::PauseIfFull() {
  if (!end_.killed() && printer_.full()) agents_.SetReading(false);
}

// As a program dies of SIGPIPE: `dlaunch ... | head` must come to an end.
void FrontEnd::OnClosedStream(int fd, int error) {
  if (end_.over()) return;
  const int exit_code = error == EPIPE ? 128 + SIGPIPE : kExitLauncher;
  RequestStop(DescribeClosedStream(fd, error), exit_code, job_.options.grace, false);
}

void FrontEnd::OnReport(const v1::JobReport& report) {
  if (!end_.Finish(report)) return;
  news_.TellOfStopped();
  failures_.Tell(report);
  if (!report.headline().empty()) trace_.OnEvent("the job fails", report.headline());
  host_->OnReport();
  AwaitAgentsEnds();
  QuitWhenDone();
}

// They end when all that they have to say is read. Counted in seconds, since this process may itself be stopped.
void FrontEnd::AwaitAgentsEnds() {
  loop_.After(seconds(1), [this] {
    if (!printer_.full() && ++silent_seconds_ >= kSilentSecondsAfterReport) return KillAgents();
    AwaitAgentsEnds();
  });
}

int FrontEnd::Run() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // what a killed agent leaves behind comes to us
  std::vector<pid_t> older_children = ListChildren();
  std::erase(older_children, agents_.forked());
  const sigset_t handled = HandledSignals();
  ::signal(SIGPIPE, SIG_IGN);
  signals_ = runtime::FileDescriptor(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  loop_.Watch(signals_.get(), EPOLLIN, [this](uint32_t) { OnSignal(); });
  absl::Status started = StartObservers();
  if (started.ok()) started = StartAgents();
  if (started.ok()) {
    loop_.Run();
    if (end_.over()) TellOfLostOutput();
  } else {
    if (!absl::IsCancelled(started)) {
      turns_.Announce(TextOf(started));
      end_.Finish(ReportOfNoStart());
    }
    KillAgents();
  }
  int exit_code = end_.over() ? end_.report().exit_code() : kExitLauncher;
  failures_.ReleaseOutput();
  const std::string longest = exit_code == 0 || end_.stopped_by_user() ? watch_.LongestWait() : "";
  if (!longest.empty()) turns_.Announce(longest + "; dlaunch why tells why, of a running job or of a --trace FILE");
  trace_.Finish(runtime::Deadline::After(end_.in_a_hurry() ? milliseconds(500) : kRecordLimit));
  turns_.Flush();
  BeginRecord();
  const bool left_something = end_.killed() || SomeAgentDied();
  Sweep("COHORT_JOB_ID=" + job_.id, {older_children}, left_something, seconds(2));
  if (left_something) RemoveStaleCgroups(OwnCgroup().value_or(""));
  // Our reader may take its time, unless a user has had enough: from here on a signal ends us as it ends any
  // program. A notice finds nobody to tell.
  sigset_t ending = handled;
  ::sigdelset(&ending, SIGUSR1);
  ::sigdelset(&ending, SIGUSR2);
  ::sigprocmask(SIG_UNBLOCK, &ending, nullptr);
  const milliseconds print_limit = end_.in_a_hurry() ? milliseconds(500) : std::chrono::hours(24);
  AwaitRecord(end_.in_a_hurry() ? milliseconds(500) : kRecordLimit);
  printer_.Finish(print_limit);
  // Ranks that had all ended by then could not be told to.
  if (const int error = printer_.error(STDOUT_FILENO); exit_code == 0 && error != 0 && error != EPIPE) {
    turns_.Announce(DescribeClosedStream(STDOUT_FILENO, error) + "; what the ranks printed there is lost");
    exit_code = kExitLauncher;
  }
  if (exit_code != 0 || !end_.report().headline().empty()) {
    turns_.Announce("exit status " + std::to_string(exit_code));
    printer_.Finish(print_limit);
  }
  return exit_code;
}

// On a thread of its own: a file server that is gone must not keep dlaunch from its end, nor from signals.
void FrontEnd::BeginRecord() {
  if (job_.log_directory.empty() || !end_.over()) return;
  const RunningJob running = Running();
  v1::JobSnapshot job = TakeSnapshot(running);
  AddNodes(running, 0, running.members.nodes->size(), &job);
  job.set_ended_unix_ns(static_cast<int64_t>(UnixTimeNs()));
  *job.mutable_report() = end_.report();
  *job.mutable_failed_epochs() = {failures_.failed_epochs().begin(), failures_.failed_epochs().end()};
  record_.emplace([folder = job_.log_directory, job = std::move(job)] { return WriteJobRecord(folder, job); });
}

void FrontEnd::AwaitRecord(milliseconds limit) {
  if (!record_) return;
  const std::optional<absl::Status> kept = record_->Await(runtime::Deadline::After(limit));
  if (!kept) turns_.Announce(job_.log_directory + "/report.json is missing: its file system does not take it");
  if (kept && !kept->ok()) turns_.Announce(TextOf(*kept));
}

void FrontEnd::SendInput(std::string bytes, bool end) {
  if (bytes.ends_with('\n') && ::isatty(STDIN_FILENO) == 1) turns_.OnEcho();
  v1::ToNode message;
  message.mutable_standard_input()->set_bytes(std::move(bytes));
  message.mutable_standard_input()->set_end(end);
  agents_.Send(news_.agent_of()[0], message);  // the place of rank 0
}

void FrontEnd::OnSignal() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) {
      agents_.Reap();
    } else {
      OnUserSignal(static_cast<int>(info.ssi_signo));
    }
  }
}

// A scheduler's notice of a preemption, most often: the ranks know what to do. The rendezvous knows which of them ask
// for notices, and which get the signal.
void FrontEnd::OnNotice(int signal) {
  if (end_.ending()) return;
  turns_.Announce(SignalName(signal) + ": telling all ranks");
  v1::ToNode message;
  message.set_notice_signal(signal);
  host_->Tell(std::move(message));
}

// Before the first rank has started, when nobody has to be told.
bool FrontEnd::IsToldToEnd() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;  // the agents are looked after when all are started
    if (signal == SIGUSR1 || signal == SIGUSR2) {
      turns_.Announce(SignalName(signal) + " came before the job had started, and there was nobody to tell");
      continue;
    }
    turns_.Announce(SignalName(signal) + ": ending the job at once");
    end_.Stop(SignalName(signal), 128 + signal, /*at_once=*/true);
    end_.Finish(end_.ReportOfStop(""));
    return true;
  }
  return false;
}

void FrontEnd::OnUserSignal(int signal) {
  if (signal == SIGUSR1 || signal == SIGUSR2) return OnNotice(signal);
  const auto now = EventLoop::Clock::now();
  if (now - last_stop_signal_ < kOneOrder) return;
  last_stop_signal_ = now;
  StopForUser(SignalName(signal), 128 + signal, end_.stopped_by_user());
}

void FrontEnd::StopForUser(const std::string& who, int exit_code, bool at_once) {
  const bool nothing_runs = rendezvous_address_.empty();  // whose host starts ranks when it has told it
  at_once = at_once || nothing_runs;
  if (!end_.Stop(who, exit_code, at_once)) return;
  if (!at_once) {
    loop_.After(job_.options.grace + kStopSlack, [this] { KillAgents(); });
    if (end_.over()) return;  // it ends already, when what it has printed is read
    turns_.Announce(who + ": the job is told to end; a second signal, or dlaunch kill --now, ends it at once");
    failures_.ReleaseOutput();
    RequestStop("stopped by " + who, exit_code, job_.options.grace, false);
    return;
  }
  turns_.Announce(who + ": ending the job at once");
  failures_.ReleaseOutput();
  RequestStop("stopped by " + who, exit_code, milliseconds(0), true);
  const v1::JobReport report = end_.ReportOfStop(failures_.lost().value_or(""));
  failures_.MarkTold(report.headline());
  OnReport(report);
  loop_.After(seconds(1), [this] { KillAgents(); });
}

RunningJob FrontEnd::Running() const {
  std::vector<std::string> spares;
  for (size_t i = 0; i < agents_.size(); ++i) {
    if (!news_.HasRanks(i) && !agents_.ended(i) && !news_.GaveUp(i)) spares.push_back(job_.nodes.nodes[i].name);
  }
  return {.job = &job_,
          .id = job_.id,
          .started = started_,
          .ending = end_.ending(),
          .cause = end_.over() ? end_.report().headline() : failures_.cause(),
          .restarts = failures_.failed_epochs().size(),
          .members = {&news_.members(), &news_.agent_of()},
          .spares = std::move(spares),
          .agents = &agents_};
}

absl::Status FrontEnd::StartObservers() {
  if (!job_.options.trace.empty())
    COHORT_RETURN_IF_ERROR(trace_.Start({.path = job_.options.trace, .keep = job_.options.trace_last}));
  watch_.WatchWaits();
  if (job_.options.metrics.empty()) return absl::OkStatus();
  COHORT_ASSIGN_OR_RETURN(const std::string url, watch_.ServeMetrics(job_.options.metrics));
  turns_.Announce("metrics at " + url);
  return absl::OkStatus();
}

void FrontEnd::RequestStop(const std::string& reason, int exit_code, milliseconds grace, bool everyone) {
  v1::ToNode message;
  message.mutable_stop()->set_reason(reason);
  message.mutable_stop()->set_exit_code(exit_code);
  message.mutable_stop()->set_grace_ms(static_cast<uint32_t>(grace.count()));
  // It may be a scheduler's.
  const bool preempts = end_.stopped_by_user() && exit_code == 128 + SIGTERM && !everyone;
  if (preempts) message.mutable_stop()->set_signal(SIGTERM);
  host_->Tell(message);
  for (size_t i = 0; i < agents_.size() && everyone; ++i) {
    if (i != host_->index()) agents_.Send(i, message);
  }
}

void FrontEnd::On(const AgentProcesses::End& event) {
  const size_t index = event.index;
  if (!host_->OnAgentEnded(index, end_.over())) {
    OnHostEnded(index);
  } else if (!agents_.EndedInOrder(index) && !end_.over()) {
    if (agents_.EndedSilently(index)) failures_.OnKnownLoss(agents_.DescribeEnd(index));
    // An agent that never joined is nothing that the rendezvous could miss.
    loop_.After(kBlameAgentAfter + host_->take_over_slack(), [this, index, text = agents_.DescribeEnd(index)] {
      const bool missed = news_.HasRanks(index) && !news_.GaveUp(index);
      if (!end_.over() && missed) RequestStop(text, kExitLauncher, job_.options.grace, false);
    });
  }
  QuitWhenDone();
}

bool FrontEnd::SomeAgentDied() const {
  for (size_t i = 0; i < agents_.size(); ++i) {
    if (agents_.ended(i) && !agents_.EndedInOrder(i)) return true;
  }
  return false;
}

// All ranks have ended well, and nobody would look for what is missing. An agent says when nothing is; how its process
// ended, or the ssh or srun that led to it, says nothing of that.
void FrontEnd::TellOfLostOutput() {
  if (end_.report().exit_code() != 0 || end_.at_once()) return;
  for (size_t i = 0; i < agents_.size(); ++i) {
    if (!news_.HasRanks(i) || news_.AllSaid(i)) continue;
    const std::string& name = job_.nodes.nodes[i].name;
    const std::string how = overdue_.contains(i) ? "its agent, or the way to it, did not end in time and was killed"
                                                 : agents_.DescribeEnd(i);
    const std::string text = "the last output of " + name + " did not come, and is lost: " + how;
    turns_.Announce(text);
    end_.MarkIncomplete(text);
  }
}

// The rendezvous' host has ended. After a user's stop that ends the job and is no failure of its own.
void FrontEnd::OnHostEnded(size_t index) {
  const std::string lost = agents_.DescribeEnd(index) + "; it hosted the rendezvous";
  OnReport(end_.ReportOf(lost + ", without which the job can't go on", "then " + lost));
  RequestStop("the rendezvous is gone", kExitLauncher, milliseconds(0), true);
  host_->Abandon();
}

void FrontEnd::KillAgents() {
  if (!end_.Kill()) return;
  for (size_t i = 0; i < agents_.size(); ++i) {
    if (agents_.pid(i) != 0) overdue_.insert(i);
  }
  agents_.Kill();
  // A process that holds their pipes then, as a stopped sentinel, has nothing to say.
  loop_.After(kAfterKill, [this] { loop_.Quit(); });
  const std::string killed = "the agents did not end in time and were killed";
  OnReport(end_.ReportOf(killed, killed));
  agents_.SetReading(true);
}

void FrontEnd::QuitWhenDone() {
  const size_t host = host_->index();
  bool others_ended = true;
  for (size_t i = 0; i < agents_.size(); ++i) others_ended = others_ended && (i == host || agents_.ended(i));
  if (others_ended && end_.over()) agents_.CloseInput(host);  // lets the host of the rendezvous go
  if (others_ended && agents_.ended(host)) loop_.Quit();
}

int RunJob(const Job& job) {
  // Before any thread exists, so that every thread has it.
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : kHandledSignals) ::sigaddset(&handled, signal);
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);
  // Before any thread as well.
  const bool alone = job.nodes.nodes.size() == 1 && !job.nodes.across_hosts && job.nodes.spawner == SpawnerKind::kLocal;
  std::optional<AgentProcess> forked;
  if (alone) forked = ForkOnlyAgent(job.options);
  std::unique_ptr<FrontEnd> front_end;
  try {
    front_end = std::make_unique<FrontEnd>(job, std::move(forked));
  } catch (const std::system_error& error) {
    return Refuse(WithRemedy(Remedy::kProcessLimit,
                             "no thread to print from: " + error.code().message() + "; raise ulimit -u or ulimit -v"),
                  kExitLauncher);
  }
  return front_end->Run();
}

}  // namespace cohort::launcher
