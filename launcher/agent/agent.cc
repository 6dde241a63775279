#include "cohort/launcher/agent/agent.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/launcher/agent/agent_life.h"
#include "cohort/launcher/agent/launcher_news.h"
#include "cohort/launcher/agent/launcher_orders.h"
#include "cohort/launcher/agent/link/rendezvous_link.h"
#include "cohort/launcher/agent/mpi/pmix/pmix_endpoint.h"
#include "cohort/launcher/agent/node_ranks.h"
#include "cohort/launcher/agent/rank/log_writer.h"
#include "cohort/launcher/agent/rank/rank_input_file.h"
#include "cohort/launcher/agent/rank/rank_socket.h"
#include "cohort/launcher/agent/watch/cgroup.h"
#include "cohort/launcher/agent/watch/sentinel.h"
#include "cohort/launcher/agent/watch/sweep.h"
#include "cohort/launcher/base/event_loop.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/base/say.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/control/launcher_messages.h"
#include "cohort/launcher/options/options.h"
#include "cohort/launcher/remedies/remedies.h"
#include "cohort/runtime/base/checked_state.h"
#include "cohort/runtime/base/file_descriptor.h"
#include "cohort/runtime/base/status_macros.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::seconds kSweepLimit{2};
// The rendezvous' host stays this long for the others, unless dlaunch lets it go before.
constexpr std::chrono::seconds kHostLinger{5};
constexpr std::chrono::seconds kFlushLimit{2};  // for a dlaunch that has ended our input before the job's end

// `dlaunch join` passes on that it was told to end as a SIGTERM that carries the number of the signal.
std::string WhoEnds(const signalfd_siginfo& info) {
  if (info.ssi_code == SI_QUEUE && info.ssi_int == SIGINT) return "an interrupt (SIGINT)";
  return info.ssi_code == SI_QUEUE && info.ssi_int == SIGHUP ? "SIGHUP" : "SIGTERM";
}

// If no cgroup can be made, the ranks do without. `hosts_rendezvous`: this agent does.
void MakeCgroup(const v1::Assignment& assignment, bool hosts_rendezvous, Cgroup* cgroup, Sentinel* sentinel) {
  const bool first_here = !assignment.job().nodes_share_host() || hosts_rendezvous;
  if (first_here && assignment.epoch() == 1) {
    RemoveStaleCgroups(std::filesystem::path(cgroup->folder()).parent_path().string());
  }
  if (cgroup->Make().ok() && cgroup->fd() >= 0) sentinel->OnCgroupMade();
}

// All that an agent knows, and what it does on each event.
class Agent {
 public:
  Agent(bool exit_with_job, RankInputFile rank_input);
  int Run();

 private:
  // Notices of a preemption: kUnwanted -> kWanted -> kPassedOn.
  enum class Notices {
    kUnwanted,
    kWanted,    // ranks ask for them, of this epoch or of an earlier one
    kPassedOn,  // a SIGTERM was passed on as one
  };

  void On(const LauncherOrders::Order& event);
  void On(const LauncherOrders::Broken& event) { GiveUp("dlaunch sent " + event.why); }
  void On(const LauncherOrders::Ended& event);
  void On(const RendezvousLink::Message& event);
  void On(const RendezvousLink::Lost& event);
  void On(const RendezvousLink::HostSilent& event) { news_.HostSilent(event.term); }
  void On(const RendezvousLink::News& event) { news_.Write(event.news); }
  void On(const RendezvousLink::Finished& event);
  void OnSignal();
  void OnSchedulersNotice(int signal);
  void OnTerminate(const std::string& who);
  // Whether the ranks ask for notices of a preemption, or will, as those of an earlier epoch did.
  bool WantNotices();
  void OnStart(const v1::NodeStart& start);
  void OnStop(const v1::Stop& stop);
  void OnLook(uint64_t number);
  void OnTrace(const v1::TraceOrder& order);
  absl::Status HostRendezvous(std::string* address);
  void OnTakeOver(const v1::TakeOver& order);
  bool IsToldToEnd();
  void OnAssignment(const v1::Assignment& assignment);
  void OnReport(const v1::JobReport& report);
  void OnAllGone();
  void StopRanks(std::chrono::milliseconds grace, bool restarting = false);
  void GiveUp(const std::string& why);
  // These change nothing where it is so already.
  void SetStopping(bool stopping);
  void SetOver();
  void SetNodeDone();
  void EndWhenDone();
  void ReapChildren();
  template <typename Event>
  std::function<void(const Event&)> Handler() {
    return [this](const Event& event) { std::visit([this](const auto& it) { On(it); }, event); };
  }

  const bool exit_with_job_;
  const RankInputFile rank_input_;
  int exit_status_;
  const std::string address_ = NewSocketAddress();
  Cgroup cgroup_{OwnCgroup().value_or("")};
  Sentinel sentinel_;
  EventLoop loop_;
  LauncherOrders orders_{&loop_, Handler<LauncherOrders::Event>()};
  LauncherNews news_{&loop_};
  LogWriter logs_{&loop_, [this](const std::string& problem) { news_.Notice(problem); }};
  runtime::FileDescriptor signals_;

  bool started_ = false;  // start_ has come
  v1::NodeStart start_;
  std::unique_ptr<NodeRanks> ranks_;  // since the assignment
  runtime::CheckedState<NodeLife> node_{NodeLife::kIdle};
  runtime::CheckedState<JobLife> job_{JobLife::kGoesOn};
  Notices notices_ = Notices::kUnwanted;
  v1::TraceOrder trace_;                                           // the latest
  uint64_t epoch_ = 0;                                             // of the assignment; 0: there was none
  RendezvousLink link_{&loop_, Handler<RendezvousLink::Event>()};  // last, so that its threads end first
};

}  // namespace

Agent::Agent(bool exit_with_job, RankInputFile rank_input)
    : exit_with_job_(exit_with_job),
      rank_input_(std::move(rank_input)),
      exit_status_(exit_with_job ? kExitLauncher : 0),  // the job's is not known before its report
      sentinel_("COHORT_AGENT=" + address_, &cgroup_) {}

int Agent::Run() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : {SIGCHLD, SIGTERM, SIGUSR1, SIGUSR2, LauncherGoneSignal()}) ::sigaddset(&handled, signal);
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);  // before any thread exists
  for (const int signal : {SIGPIPE, SIGINT, SIGHUP}) ::signal(signal, SIG_IGN);
  PreparePmixEnvironment();
  sentinel_.Start();
  // Nothing that a library prints may get into the messages.
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  signals_ = runtime::FileDescriptor(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  loop_.Watch(signals_.get(), EPOLLIN, [this](uint32_t) { OnSignal(); });
  const bool hears = orders_.Watch();
  news_.output().set_on_drained([this] {
    if (ranks_ && !news_.output().full()) ranks_->Resume();
    EndWhenDone();
  });
  if (hears) {
    loop_.Run();
  } else {
    constexpr char kNoPipe[] = "my standard input is no pipe, terminal or socket; agents are started by dlaunch itself";
    Say(kNoPipe);
    GiveUp(kNoPipe);
  }
  link_.Close();
  cgroup_.Kill(kSweepLimit);
  // All processes were searched when the last rank had ended, and the sentinel does so once more.
  const bool swept = ranks_ && ranks_->swept() && sentinel_.watches();
  Sweep(swept ? "" : "COHORT_AGENT=" + address_, {{sentinel_.pid()}}, true, kSweepLimit);
  cgroup_.Remove(kSweepLimit);
  ranks_.reset();                         // closes its files, which then say what is missing at their end
  logs_.Finish(std::chrono::seconds(1));  // nearly all was written before the ranks counted as gone
  news_.output().Flush(kFlushLimit);
  return exit_status_;
}

void Agent::On(const LauncherOrders::Ended&) {
  const bool lost = node_ == NodeLife::kRunning && job_ == JobLife::kGoesOn;
  StopRanks(std::chrono::milliseconds(0));  // nothing to stop after an orderly end
  // dlaunch is gone, or the process by which it reaches us. To the others this node is then as lost as if we had been
  // killed; of ranks that end for no reason of their own they would think worse.
  if (lost && !link_.hosted()) link_.Abandon();
  EndWhenDone();
}

void Agent::OnSignal() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) ReapChildren();
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == LauncherGoneSignal()) orders_.End();
    if (signal == SIGUSR1 || signal == SIGUSR2) OnSchedulersNotice(signal);
    if (signal == SIGTERM) OnTerminate(WhoEnds(info));
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
void Agent::OnTerminate(const std::string& who) {
  if (node_ == NodeLife::kRunning && WantNotices() && notices_ != Notices::kPassedOn) {
    notices_ = Notices::kPassedOn;
    news_.Notice("the agent of " + start_.name() + " got " + who + ": its ranks are told that they are preempted");
    v1::FromAgent message;
    message.mutable_stop()->set_reason("the agent of " + start_.name() + " got " + who);
    message.mutable_stop()->set_exit_code(128 + SIGTERM);
    message.mutable_stop()->set_signal(SIGTERM);
    link_.Send(message);
    return;
  }
  SetStopping(true);
  const std::string why = start_.name() + " was told to end by " + who;
  news_.Notice(why + ", and its agent ends its ranks");
  if (link_.hosted()) link_.hosted()->OnEvent(StopRequested{why, 128 + SIGTERM});
  if (ranks_ && !link_.hosted()) ranks_->SayWhyTheyEnd(why);  // between two epochs as well
  StopRanks(ranks_ ? ranks_->grace() : std::chrono::milliseconds(0));
  if (!ranks_) GiveUp("got " + who + " before its ranks had started");
}

bool Agent::WantNotices() {
  if (notices_ == Notices::kUnwanted && ranks_ && ranks_->asks_for_notices()) notices_ = Notices::kWanted;
  return notices_ != Notices::kUnwanted;
}

void Agent::ReapChildren() {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;) {
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
      if (ranks_) ranks_->processes().OnChildStopped(pid);
      continue;
    }
    if (ranks_ && ranks_->OnChildEnded(pid, status)) continue;
    if (pid != sentinel_.pid()) continue;  // an orphan that came to us
    if (const std::optional<std::string> problem = sentinel_.OnEnded(status)) {
      news_.Notice("the sentinel of " + (start_.name().empty() ? "an agent" : start_.name()) + " " + *problem);
    }
  }
  sentinel_.ForgetEmptyGroups();
}

void Agent::On(const LauncherOrders::Order& event) {
  const v1::ToNode& message = *event.message;
  if (message.has_start()) OnStart(message.start());
  std::optional<Event> order = link_.hosted() ? OrderOf(message) : std::nullopt;
  if (order.has_value()) link_.hosted()->OnEvent(*std::move(order));
  if (message.has_take_over()) OnTakeOver(message.take_over());
  if (message.has_new_host()) link_.MoveTo(message.new_host());
  if (message.has_look()) OnLook(message.look());
  if (message.has_trace()) OnTrace(message.trace());
  const auto on_stack = [this](v1::RankStack stack) { news_.Stack(std::move(stack)); };
  if (message.has_stacks() && ranks_) ranks_->processes().GatherStacks(message.stacks(), on_stack);
  if (message.has_standard_input() && ranks_) ranks_->processes().streams().TakeInput(message.standard_input());
  if (message.has_stop()) OnStop(message.stop());
}

void Agent::OnStop(const v1::Stop& stop) {
  SetStopping(true);
  // With a signal ranks may yet stop in order, and else are told.
  if (stop.exit_code() != 0 && stop.signal() == 0 && ranks_) ranks_->MarkFailure();
  if (!link_.hosted() || stop.grace_ms() == 0) StopRanks(std::chrono::milliseconds(stop.grace_ms()));
  if (!ranks_ && !link_.hosted()) GiveUp("told to stop before its ranks had started");
}

// The watcher asks again. The view need not be kept for a dlaunch that does not read.
void Agent::OnLook(uint64_t number) {
  if (news_.output().full()) return;
  news_.View(ranks_ ? ranks_->View() : v1::NodeView(), number);
}

// It holds for ranks that are started later, too.
void Agent::OnTrace(const v1::TraceOrder& order) {
  trace_ = order;
  if (ranks_) return ranks_->trace().Obey(order);
  v1::NodeTrace answer;
  answer.set_number(order.number());
  answer.set_last(!order.on());
  news_.Trace(std::move(answer));
}

void Agent::OnStart(const v1::NodeStart& start) {
  if (std::exchange(started_, true)) return GiveUp("dlaunch sent a second start");
  start_ = start;
  std::string address = start.rendezvous_address();
  if (start.host_rendezvous()) {
    const absl::Status hosted = HostRendezvous(&address);
    if (!hosted.ok()) return GiveUp("can't host the rendezvous: " + TextOf(hosted));
    // Whatever the program makes of 0, it would not find its peers.
    if (FreeMasterPort(start_) == 0) return GiveUp(WhyNoMasterPort(start));
  }
  const absl::Status joined = link_.Join(start_, address, [this] { return IsToldToEnd(); });
  if (!joined.ok() && !orders_.ended()) GiveUp("can't join the rendezvous at " + address + ": " + TextOf(joined));
}

// dlaunch tells all agents, this one too, where to go.
void Agent::OnTakeOver(const v1::TakeOver& order) {
  if (orders_.ended()) return;
  const absl::StatusOr<std::string> addresses = link_.TakeOver(order);
  if (!addresses.ok()) return GiveUp("can't take over as the rendezvous' host: " + TextOf(addresses.status()));
  news_.Listening(*addresses);
}

absl::Status Agent::HostRendezvous(std::string* address) {
  COHORT_ASSIGN_OR_RETURN(const std::string addresses, link_.Host(start_));
  news_.Listening(addresses);
  // Its host takes its own first address, not loopback: its data interface is the one of that route.
  *address = addresses.substr(0, addresses.find(','));
  return absl::OkStatus();
}

// Reads what has come while the loop does not run.
bool Agent::IsToldToEnd() {
  orders_.TakeWaiting();
  OnSignal();
  return orders_.ended();
}

void Agent::On(const RendezvousLink::Message& event) {
  const v1::ToAgent& message = *event.message;
  switch (message.kind_case()) {
    case v1::ToAgent::kAssignment:
      OnAssignment(message.assignment());
      break;
    case v1::ToAgent::kRefused:
      if (link_.hosted()) {  // the others still need it
        StopRanks(std::chrono::milliseconds(0));
        break;
      }
      GiveUp("the rendezvous refused it: " + message.refused());
      break;
    case v1::ToAgent::kStop:
      SetStopping(!message.stop().restarting());
      if (ranks_) ranks_->MarkFailure();
      StopRanks(std::chrono::milliseconds(message.stop().grace_ms()), message.stop().restarting());
      break;
    case v1::ToAgent::kReport:
      if (!link_.hosted()) OnReport(message.report());
      break;
    default:  // of concern to the ranks alone, or handled by RendezvousClient
      break;
  }
  if (ranks_) ranks_->OnMessage(message);
}

void Agent::OnAssignment(const v1::Assignment& assignment) {
  if (orders_.ended() || IsOver(job_)) return;
  if (node_ == NodeLife::kRunning) return GiveUp("the rendezvous began an epoch before the end of the one before");
  std::vector<std::optional<Supervisor::Kept>> kept;
  if (ranks_) kept = ranks_->processes().TakeStaying();
  (void)WantNotices();  // asks the ranks of the epoch that is over
  ranks_.reset();       // the next ones have the same address
  node_.Enter(NodeLife::kRunning);
  epoch_ = assignment.epoch();
  MakeCgroup(assignment, link_.hosted() != nullptr, &cgroup_, &sentinel_);
  ranks_ = std::make_unique<NodeRanks>(&loop_,
                                       NodeRanks::Owner{.address = address_,
                                                        .cgroup = &cgroup_,
                                                        .sentinel = &sentinel_,
                                                        .logs = &logs_,
                                                        .link = &link_,
                                                        .news = &news_,
                                                        .rank_input = &rank_input_},
                                       assignment, [this] { OnAllGone(); });
  const absl::Status started = ranks_->Start(std::move(kept));
  if (!started.ok()) return GiveUp(TextOf(started));
  if (trace_.on()) ranks_->trace().Obey(trace_);  // which looks at the ranks' waits at once
}

void Agent::OnAllGone() {
  SetNodeDone();
  v1::FromAgent done;
  done.mutable_done()->set_node(start_.node());
  done.mutable_done()->set_master_port(FreeMasterPort(start_));
  link_.Send(done);
  EndWhenDone();
}

void Agent::On(const RendezvousLink::Lost& event) {
  if (IsOver(job_)) return;
  SetOver();
  if (ranks_) ranks_->MarkFailure();
  if (!event.why.ok()) {
    exit_status_ = kExitLauncher;
    news_.Failed("lost the rendezvous: " + TextOf(event.why));
  }
  // Our lease is over: others may take our place, or have been told that our ranks are lost.
  StopRanks(ranks_ && !ranks_->replaceable() ? ranks_->grace() : std::chrono::milliseconds(0));
  if (!ranks_) SetNodeDone();
  EndWhenDone();
}

void Agent::On(const RendezvousLink::Finished& event) {
  news_.Report(event.report);
  OnReport(event.report);
}

void Agent::OnReport(const v1::JobReport& report) {
  if (exit_with_job_) exit_status_ = report.exit_code();
  SetOver();
  StopRanks(std::chrono::milliseconds(0));  // which the rendezvous has given up on
  if (!ranks_) SetNodeDone();
  EndWhenDone();
}

void Agent::StopRanks(std::chrono::milliseconds grace, bool restarting) {
  if (ranks_) {
    ranks_->Stop(grace, restarting);
  } else if (orders_.ended()) {
    SetNodeDone();
  }
}

void Agent::GiveUp(const std::string& why) {
  exit_status_ = kExitLauncher;
  news_.Failed(why);
  SetOver();
  orders_.Close();
  StopRanks(std::chrono::milliseconds(0));
  if (!ranks_ || ranks_->processes().pids().empty()) {
    if (node_ == NodeLife::kRunning) news_.NotAllSaid(epoch_);  // their output may not have come whole
    SetNodeDone();
  }
  EndWhenDone();
}

void Agent::SetStopping(bool stopping) {
  const JobLife next = stopping ? JobLife::kStopping : JobLife::kGoesOn;
  if (!IsOver(job_) && job_ != next) job_.Enter(next);
}

void Agent::SetOver() {
  if (!IsOver(job_)) job_.Enter(JobLife::kOver);
}

void Agent::SetNodeDone() {
  if (node_ != NodeLife::kDone) node_.Enter(NodeLife::kDone);
}

// Not before dlaunch has taken all that we have to say, for however long nobody takes what it prints, or it is stopped.
// If dlaunch is gone, the output counts as empty.
void Agent::EndWhenDone() {
  if (node_ != NodeLife::kDone) return;
  news_.AllSaid(epoch_);
  if (!news_.output().empty() && IsOver(job_)) return;
  // The host stays for the others, and standbys stay until dlaunch has the report.
  const bool needed = link_.hosted() != nullptr || link_.standing_by();
  if (orders_.ended() || (IsOver(job_) && !needed)) return loop_.Quit();
  if (job_ != JobLife::kOver) return;
  // dlaunch closes our input when the other agents have gone.
  job_.Enter(JobLife::kLingering);
  loop_.After(kHostLinger, [this] { orders_.End(); });
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
  Agent agent(exit_with_job, RankInputFile::Inherited(argc, argv));
  return agent.Run();
}

}  // namespace cohort::launcher
