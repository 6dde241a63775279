#include "cohort/launcher/agent/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/launcher/agent/agent_inside.h"
#include "cohort/launcher/agent/watch/sweep.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/options/options.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::seconds kSweepLimit{2};
// How long the host of the rendezvous stays for the others when dlaunch has taken all that it has to say of the job's
// end, unless dlaunch lets it go before.
constexpr std::chrono::seconds kHostLinger{5};
constexpr std::chrono::seconds kFlushLimit{2};  // for a dlaunch that has ended our input before the job's end
constexpr int kMaxSentinelRestarts = 10;

std::string InPortRange(const v1::NodeStart& start) {
  if (start.first_port() == 0) return "; too many are in use";
  return " in --port-range " + std::to_string(start.first_port()) + ":" + std::to_string(start.last_port()) +
         "; give a wider one";
}

}  // namespace

Agent::Agent(bool exit_with_job)
    : exit_with_job_(exit_with_job),
      exit_status_(exit_with_job ? kExitLauncher : 0),  // the job's is not known before its report
      sentinel_("COHORT_AGENT=" + address_, &cgroup_),
      output_(&loop_, runtime::FileDescriptor(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3))) {}

int Agent::Run() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : {SIGCHLD, SIGTERM, SIGUSR1, SIGUSR2, LauncherGoneSignal()}) ::sigaddset(&handled, signal);
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);  // before any thread exists
  for (const int signal : {SIGPIPE, SIGINT, SIGHUP}) ::signal(signal, SIG_IGN);
  sentinel_.Start();
  // Nothing that a library prints may get into the messages.
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  signals_ = runtime::FileDescriptor(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  loop_.Watch(signals_.get(), EPOLLIN, [this](uint32_t) { OnSignal(); });
  const bool hears = loop_.Watch(STDIN_FILENO, EPOLLIN, [this](uint32_t) { OnInput(); });
  output_.set_on_drained([this] {
    if (ranks_ && !output_.full()) ranks_->ResumeOutput();
    EndWhenDone();
  });
  if (hears) {
    loop_.Run();
  } else {  // a file, whose end no loop would tell
    constexpr char kNoPipe[] = "my standard input is no pipe, terminal or socket; agents are started by dlaunch itself";
    Say(kNoPipe);
    GiveUp(kNoPipe);
  }
  link_.Close();
  cgroup_.Kill(kSweepLimit);
  Sweep("COHORT_AGENT=" + address_, {{sentinel_.pid()}}, true, kSweepLimit);
  cgroup_.Remove(kSweepLimit);
  ranks_.reset();                         // closes its files, which then say what is missing at their end
  logs_.Finish(std::chrono::seconds(1));  // nearly all was written before the ranks counted as gone
  output_.Flush(kFlushLimit);
  return exit_status_;
}

void Agent::OnInput() {
  char buffer[64u << 10];
  const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) return OnInputEnded();
  input_.Append(buffer, static_cast<size_t>(n));
  for (v1::ToNode message;;) {
    const absl::StatusOr<bool> next = input_.Next(&message);
    if (!next.ok()) return GiveUp("dlaunch sent " + std::string(next.status().message()));
    if (!*next) return;
    OnToNode(message);
  }
}

void Agent::OnInputEnded() {
  if (std::exchange(input_ended_, true)) return;
  loop_.Unwatch(STDIN_FILENO);
  const bool lost = ranks_ && !ranks_done_ && !told_to_stop_ && !report_seen_;
  StopRanks(std::chrono::milliseconds(0));  // nothing to stop after an orderly end
  // dlaunch is gone, or the process by which it reaches us. To the others this node is then as lost as if we had been
  // killed; of ranks that end for no reason of their own they would think worse.
  if (lost && !link_.hosting()) link_.Abandon();
  EndWhenDone();
}

void Agent::OnSignal() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) ReapChildren();
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == LauncherGoneSignal()) OnInputEnded();
    if (signal == SIGUSR1 || signal == SIGUSR2) OnSchedulersNotice(signal);
    if (signal == SIGTERM) OnTerminate();
  }
}

// A scheduler tells every process of the job.
void Agent::OnSchedulersNotice(int signal) {
  if (!ranks_) return;
  v1::FromAgent notice;
  notice.set_notice_signal(signal);
  link_.Send(notice);
}

// If ranks ask for notices, all ranks of the job have the grace to stop by themselves. The rendezvous keeps the time,
// and then ends the job: a restart would come to a node that is being taken away.
void Agent::OnTerminate() {
  if (ranks_ && !ranks_done_ && AskForNotices() && !std::exchange(noticed_, true)) {
    Notice("the agent of " + start_.name() + " got SIGTERM: its ranks are told that they are preempted");
    v1::FromAgent message;
    message.mutable_stop()->set_reason("the agent of " + start_.name() + " got SIGTERM");
    message.mutable_stop()->set_exit_code(128 + SIGTERM);
    message.mutable_stop()->set_signal(SIGTERM);
    link_.Send(message);
    return;
  }
  told_to_stop_ = true;
  const std::string why = start_.name() + " was told to end by SIGTERM";
  Notice(why + ", and its agent ends its ranks");
  link_.RequestStop(why, 128 + SIGTERM);
  if (ranks_ && !link_.hosting()) TellWhyRanksEnd(why);  // between two epochs as well
  StopRanks(ranks_ ? ranks_->grace() : std::chrono::milliseconds(0));
  if (!ranks_) GiveUp("got SIGTERM before its ranks had started");
}

// Before they do: the rendezvous then knows the cause of what follows.
void Agent::TellWhyRanksEnd(const std::string& why) {
  if (ranks_->others_go_on()) return ranks_->set_reason_to_end(why);
  v1::FromAgent message;
  message.mutable_stop()->set_reason(why);
  message.mutable_stop()->set_exit_code(128 + SIGTERM);
  link_.Send(message);
}

bool Agent::AskForNotices() {
  asked_ = asked_ || (ranks_ && ranks_->asks_for_notices());
  return asked_;
}

void Agent::ReapChildren() {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;) {
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
      if (ranks_) ranks_->OnChildStopped(pid);
      continue;
    }
    if (ranks_ && ranks_->OnChildEnded(pid, status)) continue;
    if (pid == sentinel_.pid()) OnSentinelEnded(status);
    // Anything else was an orphan that came to us.
  }
  sentinel_.ForgetEmptyGroups();
}

// It does not end by itself while we live: it was killed, or can't be executed, as from a file that has lost its
// permission.
void Agent::OnSentinelEnded(int status) {
  if (sentinel_restarts_ > kMaxSentinelRestarts) return;  // the number of one of old, which is somebody else's now
  const bool too_often = sentinel_restarts_++ >= kMaxSentinelRestarts;
  if (!too_often && sentinel_.Start()) return;
  sentinel_restarts_ = kMaxSentinelRestarts + 1;
  const std::string how = WIFSIGNALED(status) ? "was killed by " + SignalName(WTERMSIG(status))
                                              : "ended with status " + std::to_string(WEXITSTATUS(status));
  Notice("the sentinel of " + (start_.name().empty() ? "an agent" : start_.name()) + " " + how +
         (too_often ? " again and is not started any more" : ", and no other can be started") +
         "; the job goes on, but should its agent be killed, nobody ends what its "
         "ranks leave behind");
}

void Agent::OnToNode(const v1::ToNode& message) {
  if (message.has_start()) OnStart(message.start());
  const uint64_t number = message.number();
  if (message.has_agent_ended()) {
    link_.TellAgentEnded(message.agent_ended().agent(), message.agent_ended().text(), number);
  }
  if (message.has_notice_signal()) link_.GiveNotice(message.notice_signal(), number);
  if (message.has_take_over()) OnTakeOver(message.take_over());
  if (message.has_new_host()) link_.MoveTo(message.new_host());
  if (message.has_standbys()) link_.NoteStandbys(message.standbys());
  if (message.has_look()) OnLook(message.look());
  if (message.has_standard_input() && ranks_) ranks_->TakeInput(message.standard_input());
  if (!message.has_stop()) return;
  const v1::Stop& stop = message.stop();
  told_to_stop_ = true;
  link_.RequestStop(stop.reason(), stop.exit_code(), stop.signal(), number);
  if (stop.exit_code() != 0 && stop.signal() == 0) MarkFailure();  // ranks may yet stop in order, and else are told
  if (!link_.hosting() || stop.grace_ms() == 0) StopRanks(std::chrono::milliseconds(stop.grace_ms()));
  if (!ranks_ && !link_.hosting()) GiveUp("told to stop before its ranks had started");
}

// The watcher asks again. The view need not be kept for a dlaunch that does not read.
void Agent::OnLook(uint64_t number) {
  if (output_.full()) return;
  v1::FromNode message;
  if (ranks_) *message.mutable_view() = ranks_->View();
  message.mutable_view()->set_look(number);
  output_.Write(message);
}

void Agent::OnStart(const v1::NodeStart& start) {
  start_ = start;
  std::string address = start.rendezvous_address();
  if (start.host_rendezvous()) {
    const absl::Status hosted = HostRendezvous(&address);
    if (!hosted.ok()) return GiveUp("can't host the rendezvous: " + std::string(hosted.message()));
    // Whatever the program makes of 0, it would not find its peers.
    if (link_.MasterPort() == 0) return GiveUp("no port is free for MASTER_PORT" + InPortRange(start));
  }
  const absl::Status joined = Join(address);
  if (!joined.ok() && !input_ended_)
    GiveUp("can't join the rendezvous at " + address + ": " + std::string(joined.message()));
}

// From the rendezvous' thread to dlaunch.
void Agent::PassOn(v1::FromNode message) {
  loop_.Post([this, message = std::move(message)] { output_.Write(message); });
}

RendezvousServer::OnFinished Agent::FinishCallback() {
  return [this](v1::JobReport report) {
    loop_.Post([this, report = std::move(report)] {
      v1::FromNode message;
      *message.mutable_report() = report;
      output_.Write(message);
      OnReport(report);
    });
  };
}

// dlaunch tells all agents, this one too, where to go.
void Agent::OnTakeOver(const v1::TakeOver& order) {
  if (input_ended_) return;
  const absl::StatusOr<std::string> addresses =
      link_.TakeOver(order, [this](v1::FromNode news) { PassOn(std::move(news)); }, FinishCallback());
  if (!addresses.ok())
    return GiveUp("can't take over as the rendezvous' host: " + std::string(addresses.status().message()));
  v1::FromNode listening;
  listening.set_listening(*addresses);
  output_.Write(listening);
}

absl::Status Agent::HostRendezvous(std::string* address) {
  COHORT_ASSIGN_OR_RETURN(const std::string addresses,
                          link_.Host(start_, [this](v1::FromNode news) { PassOn(std::move(news)); }, FinishCallback()));
  v1::FromNode listening;
  listening.set_listening(addresses);
  output_.Write(listening);
  // Its host takes its own first address, not loopback: its data interface is the one of that route.
  *address = addresses.substr(0, addresses.find(','));
  return absl::OkStatus();
}

absl::Status Agent::Join(const std::string& addresses) {
  RendezvousLink::Callbacks callbacks;
  callbacks.on_message = [this](const v1::ToAgent& message) { OnMessage(message); };
  callbacks.on_lost = [this](const absl::Status& why) { OnRendezvousLost(why); };
  callbacks.on_host_silent = [this](uint64_t term) {
    v1::FromNode message;
    message.set_host_silent(term);
    output_.Write(message);
  };
  return link_.Join(start_, addresses, std::move(callbacks), [this] { return IsToldToEnd(); });
}

// Reads what has come while the loop does not run.
bool Agent::IsToldToEnd() {
  pollfd ready{STDIN_FILENO, POLLIN, 0};
  if (!input_ended_ && ::poll(&ready, 1, 0) > 0) OnInput();
  OnSignal();
  return input_ended_;
}

void Agent::OnMessage(const v1::ToAgent& message) {
  switch (message.kind_case()) {
    case v1::ToAgent::kAssignment:
      OnAssignment(message.assignment());
      break;
    case v1::ToAgent::kRefused:
      if (link_.hosting()) {  // the others still need it
        StopRanks(std::chrono::milliseconds(0));
        break;
      }
      GiveUp("the rendezvous refused it: " + message.refused());
      break;
    case v1::ToAgent::kRanksLost:
      if (link_.hosting()) {
        v1::FromNode lost;
        lost.set_lost(message.ranks_lost().text());
        output_.Write(lost);
      }
      break;
    case v1::ToAgent::kStop:
      told_to_stop_ = !message.stop().restarting();
      MarkFailure();
      StopRanks(std::chrono::milliseconds(message.stop().grace_ms()), message.stop().restarting());
      break;
    case v1::ToAgent::kReport:
      if (!link_.hosting()) OnReport(message.report());
      break;
    default:  // of concern to the ranks alone, or handled by RendezvousClient
      break;
  }
  if (ranks_) ranks_->OnMessage(message);
}

void Agent::OnAssignment(const v1::Assignment& assignment) {
  if (input_ended_) return;
  if (ranks_ && !ranks_done_) return GiveUp("the rendezvous began an epoch before the end of the one before");
  std::vector<std::optional<Supervisor::Kept>> kept;
  if (ranks_) kept = ranks_->TakeStaying();
  AskForNotices();
  ranks_.reset();  // the next ones have the same address
  ranks_done_ = false;
  epoch_ = assignment.epoch();
  MakeCgroup(assignment);
  ranks_ = std::make_unique<NodeRanks>(
      &loop_, &sentinel_,
      NodeRanks::Owner{assignment.placement().node(), address_, &cgroup_, &logs_, link_.data_interface_ip()},
      assignment,
      NodeRanks::Callbacks{.to_rendezvous = [this](const v1::FromAgent& message) { link_.Send(message); },
                           .on_line = [this](const v1::OutputLine& line) { OnOutputLine(line); },
                           .on_notice = [this](const std::string& text) { Notice(text); },
                           .on_input_wanted = [this](uint64_t bytes, bool closed) { WantInput(bytes, closed); },
                           .on_all_gone = [this] { OnAllGone(); }});
  const absl::Status started = ranks_->Start(std::move(kept));
  if (!started.ok()) GiveUp(std::string(started.message()));
}

// If no cgroup can be made, the ranks do without.
void Agent::MakeCgroup(const v1::Assignment& assignment) {
  const bool first_here = !assignment.job().nodes_share_host() || link_.hosting();
  if (first_here && assignment.epoch() == 1) {
    RemoveStaleCgroups(std::filesystem::path(cgroup_.folder()).parent_path().string());
  }
  (void)cgroup_.Make();
}

void Agent::OnOutputLine(const v1::OutputLine& line) {
  v1::FromNode message;
  *message.mutable_output() = line;
  output_.Write(message);
  if (output_.full()) ranks_->PauseOutput();
}

void Agent::WantInput(uint64_t bytes, bool closed) {
  v1::FromNode message;
  message.mutable_input_wanted()->set_bytes(bytes);
  message.mutable_input_wanted()->set_closed(closed);
  output_.Write(message);
}

void Agent::OnAllGone() {
  ranks_done_ = true;
  v1::FromAgent done;
  done.mutable_done()->set_node(start_.node());
  done.mutable_done()->set_master_port(link_.MasterPort());
  link_.Send(done);
  EndWhenDone();
}

void Agent::MarkFailure() {
  if (ranks_) ranks_->MarkFailure();
}

void Agent::OnRendezvousLost(const absl::Status& why) {
  if (report_seen_) return;
  report_seen_ = true;  // none will come
  MarkFailure();
  if (!why.ok()) {
    exit_status_ = kExitLauncher;
    v1::FromNode failed;
    failed.set_failed("lost the rendezvous: " + std::string(why.message()));
    output_.Write(failed);
  }
  // Our lease is over: others may take our place, or have been told that our ranks are lost.
  const bool counted_as_lost = start_.standbys() > 0 || (ranks_ && ranks_->replaceable());
  StopRanks(ranks_ && !counted_as_lost ? ranks_->grace() : std::chrono::milliseconds(0));
  if (!ranks_) ranks_done_ = true;
  EndWhenDone();
}

void Agent::OnReport(const v1::JobReport& report) {
  if (exit_with_job_) exit_status_ = report.exit_code();
  report_seen_ = true;
  StopRanks(std::chrono::milliseconds(0));  // whoever the rendezvous has given up on
  if (!ranks_) ranks_done_ = true;
  EndWhenDone();
}

// The host stays for the others, and those who may take over until dlaunch has the report.
bool Agent::IsNeededForReport() { return link_.hosting() || link_.standing_by(); }

void Agent::StopRanks(std::chrono::milliseconds grace, bool restarting) {
  if (ranks_) {
    ranks_->Stop(grace, restarting);
  } else {
    ranks_done_ = ranks_done_ || input_ended_;
  }
}

void Agent::GiveUp(const std::string& why) {
  exit_status_ = kExitLauncher;
  v1::FromNode failed;
  failed.set_failed(why);
  output_.Write(failed);
  report_seen_ = input_ended_ = true;
  loop_.Unwatch(STDIN_FILENO);
  StopRanks(std::chrono::milliseconds(0));
  if (!ranks_ || ranks_->pids().empty()) {
    if (ranks_ && !ranks_done_) said_epoch_ = epoch_;  // what those had printed may not have come whole
    ranks_done_ = true;
  }
  EndWhenDone();
}

// By this dlaunch knows that of our ranks nothing is missing, however we end, and the way to us.
void Agent::SayThatAllIsSaid() {
  if (!ranks_done_ || std::exchange(said_epoch_, epoch_) == epoch_) return;
  v1::FromNode message;
  message.set_all_said(epoch_);
  output_.Write(message);
}

// Not before dlaunch has taken all that we have to say, for however long nobody takes what it prints, or it is stopped.
// If dlaunch is gone, the output counts as empty.
void Agent::EndWhenDone() {
  SayThatAllIsSaid();
  if (!ranks_done_ || (!output_.empty() && report_seen_)) return;
  if (input_ended_ || (report_seen_ && !IsNeededForReport())) return loop_.Quit();
  // dlaunch closes our input when the other agents have gone.
  if (report_seen_ && !std::exchange(lingering_, true)) loop_.After(kHostLinger, [this] { OnInputEnded(); });
}

void Agent::Notice(const std::string& text) {
  v1::FromNode message;
  message.set_notice(text);
  output_.Write(message);
}

int RunAgent(int argc, char** argv) {
  bool exit_with_job = false;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], kExitWithJobArgument) == 0) exit_with_job = true;
    if (std::strcmp(argv[i], kAgentPreambleArgument) != 0) continue;
    // A pipe takes that much at once; if nobody reads it, the messages won't be read either.
    (void)!::write(STDOUT_FILENO, kAgentPreamble, sizeof kAgentPreamble - 1);
  }
  HideVariables("GRPC_");
  Sentinel::RememberArguments(argc, argv);
  Agent agent(exit_with_job);
  return agent.Run();
}

}  // namespace cohort::launcher
