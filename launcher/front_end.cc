#include "launcher/front_end.h"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cohort/v1/rendezvous.pb.h"
#include "launcher/agent/cgroup.h"
#include "launcher/agent/sweep.h"
#include "launcher/agent_processes.h"
#include "launcher/base/event_loop.h"
#include "launcher/control/describe.h"
#include "launcher/credentials.h"
#include "launcher/diagnosis.h"
#include "launcher/held_output.h"
#include "launcher/job_plan.h"
#include "launcher/job_record.h"
#include "launcher/jobs/job_status.h"
#include "launcher/jobs/job_watch.h"
#include "launcher/output_printer.h"
#include "launcher/rendezvous_host.h"
#include "launcher/standard_input.h"
#include "runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kHandledSignals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
constexpr seconds kJoinTimeout{60};
constexpr seconds kAgentsEndAfterReport{5};  // then they are killed, and their sentinels sweep
constexpr seconds kStopSlack{10};            // beyond the grace, before everything is killed
constexpr seconds kHeadlineAfter{1};         // a failure is named by then, even if its report is not there yet
constexpr seconds kGivenUpEndsWithin{2};     // then it is killed
constexpr seconds kBlameAgentAfter{3};       // for the rendezvous to notice the loss of an agent by itself
constexpr seconds kTakeOverSlack{20};        // for that, where another host may have to take over before

class FrontEnd {
 public:
  explicit FrontEnd(const Job& job);
  int Run();

 private:
  absl::Status StartAgents();
  v1::NodeStart MakeStart(size_t index) const;
  void OnSignal();
  void OnUserSignal(int signal);
  void OnNotice(int signal);
  void StopForUser(const std::string& who, int exit_code, bool at_once);
  RunningJob Running() const;
  absl::Status StartMetrics();
  void OnMessage(size_t index, const v1::FromNode& message);
  void SendInput(std::string bytes, bool end);
  void OnOutput(const v1::OutputLine& line);
  void OnLost(const std::string& text);
  void OnReport(const v1::JobReport& report);
  void OnRestart(const v1::Restart& restart);
  void OnLostNode(const v1::LostNode& lost);
  void OnMembers(const v1::Membership& members);
  void OnAgentEnded(size_t index);
  void OnHostEnded(size_t index);
  void KeepRecord();
  void RequestStop(const std::string& reason, int exit_code, milliseconds grace, bool everyone);
  void KillAgents();
  void QuitWhenDone();
  void Say(const std::string& text) { printer_.Print(STDERR_FILENO, "dlaunch: " + text + "\n"); }

  const Job& job_;
  const std::string job_id_ = NewJobId();
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  std::string secret_;
  EventLoop loop_;
  OutputPrinter printer_;
  HeldOutput held_{&printer_};
  UniqueFd signals_;
  AgentProcesses agents_;
  RendezvousHost host_{&agents_, job_, [this](const std::string& text) { Say(text); }};
  StandardInput input_{&loop_, STDIN_FILENO, [this](std::string bytes, bool end) { SendInput(std::move(bytes), end); }};
  std::string rendezvous_address_;
  std::optional<v1::JobReport> report_;
  std::vector<v1::NodePlacement> members_;  // the epoch's nodes
  std::vector<size_t> agent_of_;            // by node
  std::set<size_t> given_up_;               // agents that the rendezvous has lost
  bool lost_node_ = false;                  // in this epoch
  std::vector<FailedEpoch> failed_epochs_;  // after which there was a restart
  std::optional<std::string> lost_;         // the epoch's first loss of ranks
  bool user_stop_ = false;
  bool killed_ = false;
  bool agent_died_ = false;
  JobWatch watch_{&loop_,
                  {.job = [this] { return Running(); },
                   .send = [this](size_t agent, const v1::ToNode& message) { agents_.Send(agent, message); },
                   .stop = [this](bool at_once) { StopForUser("dlaunch kill", 128 + SIGTERM, at_once); }}};
};

FrontEnd::FrontEnd(const Job& job)
    : job_(job),
      printer_({.on_drained = [this] { loop_.Post([this] { agents_.SetReading(true); }); },
                .on_closed =
                    [this](int fd, int error) {
                      loop_.Post([this, fd, error] {
                        // As a program dies of SIGPIPE: `dlaunch ... | head` must come to an end.
                        const int exit_code = error == EPIPE ? 128 + SIGPIPE : kExitLauncher;
                        if (!report_)
                          RequestStop(DescribeClosedStream(fd, error), exit_code, job_.options.grace, false);
                      });
                    }}),
      agents_(&loop_, job,
              {.on_message = [this](size_t index, const v1::FromNode& message) { OnMessage(index, message); },
               .on_ended = [this](size_t index) { OnAgentEnded(index); }}) {
  members_ = job.placement.nodes;
  for (size_t i = 0; i < members_.size(); ++i) agent_of_.push_back(i);
}

v1::NodeStart FrontEnd::MakeStart(size_t index) const {
  v1::NodeStart start = MakeNodeStart(job_, index, agents_.identity(index));
  if (index == 0) *start.mutable_plan() = MakeJobPlan(job_, job_id_, secret_, kJoinTimeout);
  start.set_rendezvous_address(rendezvous_address_);
  return start;
}

absl::Status FrontEnd::StartAgents() {
  COHORT_ASSIGN_OR_RETURN(secret_, NewJobSecret());
  if (const absl::Status status = agents_.Start(); !status.ok()) {
    return absl::Status(status.code(), "can't start the agents: " + std::string(status.message()));
  }
  const absl::Status asked = watch_.Listen(job_id_);
  if (!asked.ok()) Say("dlaunch status and dlaunch kill won't find this job: " + std::string(asked.message()));
  v1::ToNode message;
  *message.mutable_start() = MakeStart(0);
  agents_.Send(0, message);
  return absl::OkStatus();
}

int FrontEnd::Run() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // what a killed agent leaves behind comes to us
  const std::vector<pid_t> older_children = ListChildren();
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : kHandledSignals) {
    struct sigaction action{};
    ::sigaction(signal, nullptr, &action);
    const bool ignored = action.sa_handler == SIG_IGN && signal != SIGCHLD;  // nohup: stays so
    if (!ignored) ::sigaddset(&handled, signal);
  }
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  signals_.reset(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  loop_.Watch(signals_.get(), EPOLLIN, [this](uint32_t) { OnSignal(); });
  int exit_code = kExitLauncher;
  absl::Status started = StartMetrics();
  if (started.ok()) started = StartAgents();
  if (started.ok()) {
    loop_.Run();
    if (report_) exit_code = report_->exit_code();
  } else {
    Say(std::string(started.message()));
    report_.emplace().set_exit_code(exit_code);
    KillAgents();
  }
  held_.Release();
  KeepRecord();
  Sweep("COHORT_JOB_ID=" + job_id_, {older_children}, agent_died_ || killed_, seconds(2));
  if (agent_died_ || killed_) RemoveStaleCgroups(OwnCgroup().value_or(""));
  // Whoever reads us may take their time: from here on a signal ends us as it ends any program.
  ::sigprocmask(SIG_UNBLOCK, &handled, nullptr);
  const milliseconds print_limit = killed_ ? milliseconds(500) : std::chrono::hours(24);
  printer_.Finish(print_limit);
  // Ranks that had all ended by then could not be told to.
  if (const int error = printer_.error(STDOUT_FILENO); exit_code == 0 && error != 0 && error != EPIPE) {
    Say(DescribeClosedStream(STDOUT_FILENO, error) + "; what the ranks printed there is lost");
    printer_.Finish(print_limit);
    return kExitLauncher;
  }
  return exit_code;
}

void FrontEnd::KeepRecord() {
  if (job_.log_directory.empty() || !report_) return;
  JobRecord record{.job_id = job_id_,
                   .source = job_.nodes.source,
                   .command = job_.options.command,
                   .nodes = members_,
                   .started = started_,
                   .ended = std::chrono::system_clock::now(),
                   .failed_epochs = failed_epochs_,
                   .report = *report_};
  record.command[0] = job_.program.path;
  const absl::Status kept = WriteJobRecord(job_.log_directory, record);
  if (!kept.ok()) Say(std::string(kept.message()));
}

void FrontEnd::OnMessage(size_t index, const v1::FromNode& message) {
  if (!host_.IsNew(message)) return;
  switch (message.kind_case()) {
    case v1::FromNode::kListening:
      if (host_.OnListening(index, message.listening())) break;
      rendezvous_address_ = message.listening();
      for (size_t i = 1; i < agents_.size(); ++i) {
        v1::ToNode start;
        *start.mutable_start() = MakeStart(i);
        agents_.Send(i, start);
      }
      break;
    case v1::FromNode::kOutput:
      OnOutput(message.output());
      break;
    case v1::FromNode::kReport:
      OnReport(message.report());
      break;
    case v1::FromNode::kFailed:
      agents_.SetFailed(index, message.failed());
      break;
    case v1::FromNode::kNotice:
      Say(message.notice());
      break;
    case v1::FromNode::kLost:
      OnLost(message.lost());
      break;
    case v1::FromNode::kRestart:
      OnRestart(message.restart());
      break;
    case v1::FromNode::kLostNode:
      OnLostNode(message.lost_node());
      break;
    case v1::FromNode::kMembers:
      OnMembers(message.members());
      break;
    case v1::FromNode::kStandbys:
      host_.OnStandbys(index, message.standbys());
      break;
    case v1::FromNode::kHostSilent:
      if (!report_) host_.OnSilent(index, message.host_silent());
      break;
    case v1::FromNode::kView:
      watch_.OnView(index, message.view());
      break;
    case v1::FromNode::kInputWanted:
      if (index != agent_of_[0]) break;  // only rank 0, which is its, gets any
      input_.Want(message.input_wanted().bytes());
      if (message.input_wanted().closed()) input_.Close();
      break;
    case v1::FromNode::kDone:
    case v1::FromNode::KIND_NOT_SET:
      break;
  }
}

void FrontEnd::OnOutput(const v1::OutputLine& line) {
  std::string text = "[" + std::to_string(line.rank()) + "] " + line.text() + "\n";
  const int fd = line.standard_error() ? STDERR_FILENO : STDOUT_FILENO;
  const bool of_this_epoch = line.epoch() == failed_epochs_.size() + 1;  // nodes' last lines come when they come
  const bool hold = held_.holding() && !report_ && !user_stop_ && line.after_failure() && of_this_epoch &&
                    job_.options.on_failure != OnFailure::kContinue;
  if (hold) {
    held_.Keep(fd, text);
  } else {
    printer_.Print(fd, text);
  }
  if (printer_.full()) agents_.SetReading(false);
}

void FrontEnd::SendInput(std::string bytes, bool end) {
  v1::ToNode message;
  message.mutable_standard_input()->set_bytes(std::move(bytes));
  message.mutable_standard_input()->set_end(end);
  agents_.Send(agent_of_[0], message);  // the place of rank 0
}

void FrontEnd::OnLost(const std::string& text) {
  if (job_.options.on_failure == OnFailure::kContinue) {
    Say(text + "; the job goes on");
  } else if (!lost_ && !user_stop_) {
    loop_.After(kHeadlineAfter, [this, text, epoch = failed_epochs_.size()] {
      if (report_ || user_stop_ || failed_epochs_.size() != epoch) return;
      Say(text);
      Say("ending the other ranks");
      held_.Release();
    });
  }
  if (!lost_) lost_ = text;
}

void FrontEnd::OnReport(const v1::JobReport& report) {
  if (report_) return;
  report_ = report;
  DiagnosisOptions options;
  options.colour = ::isatty(STDERR_FILENO) == 1;
  printer_.Print(STDERR_FILENO, FormatReport(report, options));
  held_.Release();
  host_.OnReport();
  loop_.After(kAgentsEndAfterReport, [this] { KillAgents(); });
  QuitWhenDone();
}

void FrontEnd::OnRestart(const v1::Restart& restart) {
  if (report_) return;
  DiagnosisOptions options;
  options.colour = ::isatty(STDERR_FILENO) == 1;
  options.final = false;
  printer_.Print(STDERR_FILENO, FormatReport(restart.report(), options));
  held_.Release();
  held_.Rearm();
  lost_.reset();
  watch_.OnEpoch();
  failed_epochs_.push_back({restart.report(), members_});
  std::string when = "now";
  if (restart.delay_ms() > 0) when = "in " + std::to_string((restart.delay_ms() + 999) / 1000) + " s";
  if (std::exchange(lost_node_, false) && restart.delay_ms() > 0) {
    when += " at the latest, when nothing of the lost node can live any more";
  }
  if (restart.spares() > 0) when += ", and when a spare node has joined that is not there yet";
  Say("restart " + std::to_string(restart.number()) + " of " + std::to_string(restart.max_restarts()) +
      " of all ranks, " + when);
}

// Should the agent live, it must not go on: another may take its place.
void FrontEnd::OnLostNode(const v1::LostNode& lost) {
  const size_t agent = lost.agent();
  if (report_ || agent >= agents_.size() || !given_up_.insert(agent).second) return;
  lost_node_ = true;
  if (std::find(agent_of_.begin(), agent_of_.end(), agent) == agent_of_.end()) Say(lost.text());
  if (agent == host_.index() || !NodesAreReplaceable(job_)) return;
  agents_.CloseInput(agent);
  loop_.After(kGivenUpEndsWithin, [this, agent] { agents_.Kill(agent); });
}

void FrontEnd::OnMembers(const v1::Membership& members) {
  members_ = {members.placements().begin(), members.placements().end()};
  agent_of_ = {members.agents().begin(), members.agents().end()};
  for (const std::string& change : members.changes()) Say(change);
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
  if (report_ || user_stop_) return;
  Say(SignalName(signal) + ": telling all ranks");
  v1::ToNode message;
  message.set_notice_signal(signal);
  host_.Tell(std::move(message));
}

void FrontEnd::OnUserSignal(int signal) {
  if (signal == SIGUSR1 || signal == SIGUSR2) return OnNotice(signal);
  StopForUser(SignalName(signal), 128 + signal, user_stop_);
}

void FrontEnd::StopForUser(const std::string& who, int exit_code, bool at_once) {
  const bool first = !std::exchange(user_stop_, true);
  if (!at_once) {
    if (!first || report_) return;  // it ends already
    Say(who + ": the job is told to end; a second time ends it at once");
    held_.Release();
    RequestStop("stopped by " + who, exit_code, job_.options.grace, false);
    loop_.After(job_.options.grace + kStopSlack, [this] { KillAgents(); });
    return;
  }
  Say(who + ": ending the job at once");
  held_.Release();
  RequestStop("stopped by " + who, exit_code, milliseconds(0), true);
  if (!report_) {
    v1::JobReport report;
    report.set_exit_code(exit_code);
    report.set_culprit_rank(-1);
    report_ = report;
  }
  loop_.After(seconds(1), [this] { KillAgents(); });
}

RunningJob FrontEnd::Running() const {
  return {.job = &job_,
          .id = job_id_,
          .started = started_,
          .ending = report_.has_value() || user_stop_,
          .restarts = failed_epochs_.size(),
          .members = {&members_, &agent_of_},
          .agent_pid = [this](size_t agent) { return agents_.pid(agent); }};
}

absl::Status FrontEnd::StartMetrics() {
  if (job_.options.metrics.empty()) return absl::OkStatus();
  COHORT_ASSIGN_OR_RETURN(const std::string url, watch_.ServeMetrics(job_.options.metrics));
  Say("metrics at " + url);
  return absl::OkStatus();
}

void FrontEnd::RequestStop(const std::string& reason, int exit_code, milliseconds grace, bool everyone) {
  v1::ToNode message;
  message.mutable_stop()->set_reason(reason);
  message.mutable_stop()->set_exit_code(exit_code);
  message.mutable_stop()->set_grace_ms(static_cast<uint32_t>(grace.count()));
  const bool preempts = user_stop_ && exit_code == 128 + SIGTERM && !everyone;  // it may be a scheduler's
  if (preempts) message.mutable_stop()->set_signal(SIGTERM);
  host_.Tell(message);
  for (size_t i = 0; i < agents_.size() && everyone; ++i) {
    if (i != host_.index()) agents_.Send(i, message);
  }
}

void FrontEnd::OnAgentEnded(size_t index) {
  const bool in_order = agents_.EndedInOrder(index);
  if (!in_order) agent_died_ = true;
  if (!host_.OnAgentEnded(index, /*over=*/report_.has_value())) {
    OnHostEnded(index);
  } else if (!in_order && !report_) {
    if (agents_.EndedSilently(index)) {
      lost_ = agents_.DescribeEnd(index);  // better than what the rendezvous can know
      Say(*lost_);
    }
    // An agent that never joined is nothing that the rendezvous could miss.
    const seconds slack = job_.options.standbys > 0 ? kTakeOverSlack : seconds(0);
    loop_.After(kBlameAgentAfter + slack, [this, index, text = agents_.DescribeEnd(index)] {
      const bool idle = std::find(agent_of_.begin(), agent_of_.end(), index) == agent_of_.end();
      if (!report_ && !idle && !given_up_.contains(index)) RequestStop(text, kExitLauncher, job_.options.grace, false);
    });
  }
  QuitWhenDone();
}

void FrontEnd::OnHostEnded(size_t index) {
  if (!report_) {
    v1::JobReport report;
    report.set_headline(agents_.DescribeEnd(index) + "; it hosted the rendezvous, without which the job can't go on");
    report.set_culprit_rank(-1);
    report.set_exit_code(kExitLauncher);
    OnReport(report);
  }
  RequestStop("the rendezvous is gone", kExitLauncher, milliseconds(0), true);
  host_.Abandon();
}

void FrontEnd::KillAgents() {
  killed_ = true;
  agents_.Kill();
  if (!report_) {
    v1::JobReport report;
    report.set_exit_code(kExitLauncher);
    report.set_headline("the agents did not end in time and were killed");
    report.set_culprit_rank(-1);
    OnReport(report);
  }
  agents_.SetReading(true);
}

void FrontEnd::QuitWhenDone() {
  const size_t host = host_.index();
  bool others_ended = true;
  for (size_t i = 0; i < agents_.size(); ++i) others_ended = others_ended && (i == host || agents_.ended(i));
  if (others_ended && report_) agents_.CloseInput(host);  // lets the host of the rendezvous go
  if (others_ended && agents_.ended(host)) loop_.Quit();
}

}  // namespace

int RunJob(const Job& job) {
  // Before any thread exists, so that every thread has it.
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : kHandledSignals) ::sigaddset(&handled, signal);
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);
  std::unique_ptr<FrontEnd> front_end;
  try {
    front_end = std::make_unique<FrontEnd>(job);
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "dlaunch: no thread to print from: %s; raise ulimit -u or ulimit -v\n",
                 error.code().message().c_str());
    return kExitLauncher;
  }
  return front_end->Run();
}

}  // namespace cohort::launcher
