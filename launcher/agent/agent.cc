#include "launcher/agent/agent.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"
#include "launcher/agent/rank_service.h"
#include "launcher/agent/rank_socket.h"
#include "launcher/agent/sentinel.h"
#include "launcher/agent/supervisor.h"
#include "launcher/agent/sweep.h"
#include "launcher/base/addresses.h"
#include "launcher/base/event_loop.h"
#include "launcher/base/message_pipe.h"
#include "launcher/base/unique_fd.h"
#include "launcher/control/describe.h"
#include "launcher/control/rendezvous.h"
#include "launcher/environment/cpus.h"
#include "launcher/environment/process_environment.h"
#include "launcher/options.h"
#include "launcher/placement.h"
#include "launcher/rpc/client.h"
#include "launcher/rpc/server.h"
#include "runtime/base/deadline.h"
#include "runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

using runtime::Deadline;

constexpr std::chrono::seconds kSweepLimit{2};
// How long the host of the rendezvous stays for the others after the job's end, unless dlaunch lets it go before.
constexpr std::chrono::seconds kHostLinger{5};
constexpr int kMaxSentinelRestarts = 10;

std::string ReadBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

class Agent {
 public:
  explicit Agent(bool exit_with_job);
  int Run();

 private:
  void OnInput();
  void OnInputEnded();
  void OnSignal();
  void OnToNode(const v1::ToNode& message);
  void OnStart(const v1::NodeStart& start);
  absl::Status HostRendezvous();
  absl::Status Join(const std::string& addresses);
  void OnMessage(const v1::ToAgent& message);
  void OnAssignment(const v1::Assignment& assignment);
  void OnRendezvousLost(const absl::Status& why);
  void OnReport(const v1::JobReport& report);
  void OnRankExit(int local_rank, v1::RankExit exit);
  void OnAllGone();
  void OnOutputLine(const v1::OutputLine& line);
  void StopRanks(std::chrono::milliseconds grace);
  void Tell(const v1::FromAgent& message);
  void Notice(const std::string& text);
  void GiveUp(const std::string& why);
  void EndWhenDone();
  std::string OnInterface() const;
  void ReapChildren();
  std::vector<std::vector<std::string>> RankEnvironments() const;

  const bool exit_with_job_;
  const std::string address_ = NewSocketAddress();
  Sentinel sentinel_;
  int sentinel_restarts_ = 0;
  EventLoop loop_;
  MessageReader input_;
  MessageWriter output_;
  UniqueFd signals_;

  v1::NodeStart start_;
  v1::Assignment assignment_;
  std::string data_interface_ip_;
  std::unique_ptr<RankService> service_;
  std::unique_ptr<Supervisor> supervisor_;
  std::vector<bool> said_goodbye_;
  bool after_failure_ = false;
  bool ranks_done_ = false;   // or never started
  bool report_seen_ = false;  // the rendezvous has nothing more to say, or is gone
  bool input_ended_ = false;
  int exit_status_ = 0;
  // Last, so that their threads end first.
  std::unique_ptr<RendezvousServer> server_;
  std::unique_ptr<RendezvousClient> client_;
};

Agent::Agent(bool exit_with_job)
    : exit_with_job_(exit_with_job),
      sentinel_("COHORT_AGENT=" + address_),
      output_(&loop_, UniqueFd(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3))) {}

int Agent::Run() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : {SIGCHLD, SIGTERM, kLauncherGoneSignal}) ::sigaddset(&handled, signal);
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);  // before any thread exists
  for (const int signal : {SIGPIPE, SIGINT, SIGHUP}) ::signal(signal, SIG_IGN);
  sentinel_.Start();
  // Nothing that a library prints may get into the messages.
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  signals_.reset(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  loop_.Watch(signals_.get(), EPOLLIN, [this](uint32_t) { OnSignal(); });
  loop_.Watch(STDIN_FILENO, EPOLLIN, [this](uint32_t) { OnInput(); });
  loop_.Run();
  if (client_) client_->Close(Deadline::After(std::chrono::seconds(1)));
  Sweep("COHORT_AGENT=" + address_, {sentinel_.pid()}, true, kSweepLimit);
  output_.Flush(std::chrono::seconds(2));
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
  StopRanks(std::chrono::milliseconds(0));  // nothing to stop after an orderly end
  EndWhenDone();
}

void Agent::OnSignal() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) ReapChildren();
    if (info.ssi_signo == static_cast<uint32_t>(kLauncherGoneSignal)) OnInputEnded();
    if (info.ssi_signo == SIGTERM) {
      Notice("the agent of " + start_.name() + " got SIGTERM and ends its ranks");
      if (server_) server_->RequestStop("the agent of " + start_.name() + " got SIGTERM", 128 + SIGTERM);
      StopRanks(std::chrono::milliseconds(assignment_.job().grace_ms()));
      if (!supervisor_) GiveUp("got SIGTERM before its ranks had started");
    }
  }
}

void Agent::ReapChildren() {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;) {
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
      if (supervisor_) supervisor_->OnChildStopped(pid);
      continue;
    }
    if (supervisor_ && supervisor_->OnChildEnded(pid, status)) continue;
    if (pid == sentinel_.pid() && sentinel_restarts_++ < kMaxSentinelRestarts) {
      sentinel_.Start();
      if (supervisor_) {
        for (const pid_t group : supervisor_->pids()) sentinel_.AddGroup(group);
      }
    }
    // Anything else was an orphan that came to us.
  }
}

void Agent::OnToNode(const v1::ToNode& message) {
  if (message.has_start()) OnStart(message.start());
  if (!message.has_stop()) return;
  const v1::Stop& stop = message.stop();
  if (server_) server_->RequestStop(stop.reason(), stop.exit_code());
  after_failure_ = after_failure_ || stop.exit_code() != 0;
  if (!server_ || stop.grace_ms() == 0) StopRanks(std::chrono::milliseconds(stop.grace_ms()));
  if (!supervisor_ && !server_) GiveUp("told to stop before its ranks had started");
}

void Agent::OnStart(const v1::NodeStart& start) {
  start_ = start;
  std::string address = start.rendezvous_address();
  if (start.host_rendezvous()) {
    const absl::Status hosted = HostRendezvous();
    if (!hosted.ok()) return GiveUp("can't host the rendezvous: " + std::string(hosted.message()));
    address = server_->address();
    if (start.across_hosts()) address = FormatAddresses(OwnAddresses(start_.interface()), PortOf(address));
    if (address.empty())
      return GiveUp("can't host the rendezvous: this machine has no address that others may reach" + OnInterface());
    v1::FromNode listening;
    listening.set_listening(address);
    output_.Write(listening);
  }
  // Its host takes its own first address, not loopback: its data interface is the one of that route.
  if (start.host_rendezvous()) address = address.substr(0, address.find(','));
  const absl::Status joined = Join(address);
  if (!joined.ok()) GiveUp("can't join the rendezvous at " + address + ": " + std::string(joined.message()));
}

absl::Status Agent::HostRendezvous() {
  RendezvousServer::Options options;
  if (start_.across_hosts()) options.host = "[::]";  // IPv4 too; where the kernel has no IPv6, gRPC takes 0.0.0.0
  options.identity = {start_.ca_certificate(), start_.certificate(), start_.private_key()};
  const auto on_finished = [this](v1::JobReport report) {
    loop_.Post([this, report = std::move(report)] {
      v1::FromNode message;
      *message.mutable_report() = report;
      output_.Write(message);
      OnReport(report);
    });
  };
  absl::StatusOr<std::unique_ptr<RendezvousServer>> server = absl::UnavailableError("no port");
  for (uint32_t port = start_.first_port(); !server.ok() && port <= start_.last_port(); ++port) {
    options.port = static_cast<int>(port);
    server = RendezvousServer::Start(start_.plan(), options, on_finished);
  }
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  return absl::OkStatus();
}

absl::Status Agent::Join(const std::string& addresses) {
  COHORT_ASSIGN_OR_RETURN(const std::string address,
                          FirstReachable(addresses, Deadline::After(std::chrono::seconds(10))));
  data_interface_ip_ = LocalAddressTowards(address);
  if (!start_.interface().empty()) {
    const std::vector<std::string> own = OwnAddresses(start_.interface());
    if (own.empty()) return absl::InvalidArgumentError("this machine has no address" + OnInterface());
    data_interface_ip_ = own[0];
  }
  v1::NodeOffer offer;
  offer.set_protocol(kRendezvousProtocol);
  offer.set_node(start_.node());
  offer.set_name(start_.name());
  offer.set_host_id(ReadBootId());
  offer.set_cpu_count(static_cast<uint32_t>(AvailableCpus().size()));
  offer.set_address(data_interface_ip_);
  offer.set_master_port(static_cast<uint32_t>(FindFreePort(start_.first_port(), start_.last_port())));
  RendezvousClient::Callbacks callbacks;
  callbacks.on_message = [this](v1::ToAgent message) {
    loop_.Post([this, message = std::move(message)] { OnMessage(message); });
  };
  callbacks.on_lost = [this](absl::Status why) { loop_.Post([this, why] { OnRendezvousLost(why); }); };
  auto client =
      RendezvousClient::Connect(address, {start_.ca_certificate(), start_.certificate(), start_.private_key()}, offer,
                                std::move(callbacks), Deadline::After(std::chrono::seconds(30)));
  if (!client.ok()) return client.status();
  client_ = *std::move(client);
  return absl::OkStatus();
}

void Agent::OnMessage(const v1::ToAgent& message) {
  switch (message.kind_case()) {
    case v1::ToAgent::kAssignment:
      OnAssignment(message.assignment());
      break;
    case v1::ToAgent::kRefused:
      GiveUp("the rendezvous refused it: " + message.refused());
      break;
    case v1::ToAgent::kPut:
      if (service_) service_->OnPutReply(message.put());
      break;
    case v1::ToAgent::kGet:
      if (service_) service_->OnGetReply(message.get());
      break;
    case v1::ToAgent::kGroupFailure:
      if (service_) service_->OnGroupFailure(message.group_failure());
      break;
    case v1::ToAgent::kRanksLost:
      after_failure_ = true;
      if (server_) {
        v1::FromNode lost;
        lost.set_lost(message.ranks_lost().text());
        output_.Write(lost);
      }
      if (service_) service_->OnRanksLost(message.ranks_lost());
      break;
    case v1::ToAgent::kInspect:
      if (service_) {
        v1::FromAgent reply;
        *reply.mutable_inspect() = service_->Inspect(message.inspect());
        Tell(reply);
      }
      break;
    case v1::ToAgent::kStop:
      after_failure_ = true;
      StopRanks(std::chrono::milliseconds(message.stop().grace_ms()));
      break;
    case v1::ToAgent::kReport:
      if (!server_) OnReport(message.report());
      break;
    case v1::ToAgent::kNodes:  // RendezvousClient puts them into the assignment
    case v1::ToAgent::kBeat:
    case v1::ToAgent::KIND_NOT_SET:
      break;
  }
}

std::vector<std::vector<std::string>> Agent::RankEnvironments() const {
  const std::vector<std::string> inherited = InheritedEnvironment();
  std::vector<std::vector<std::string>> environments;
  const bool shared = assignment_.job().nodes_share_host();
  const int ranks = shared ? static_cast<int>(assignment_.world_size()) : assignment_.placement().ranks_size();
  for (const v1::RankPlacement& rank : assignment_.placement().ranks()) {
    const int own = static_cast<int>(ParseCpuList(rank.cpus()).value_or(std::vector<int>()).size());
    environments.push_back(BuildRankEnvironment(inherited, {.assignment = &assignment_,
                                                            .rank = &rank,
                                                            .node = static_cast<int>(start_.node()),
                                                            .agent_address = address_,
                                                            .cpu_share = CpuShare(own, ranks)}));
  }
  return environments;
}

void Agent::OnAssignment(const v1::Assignment& assignment) {
  if (supervisor_ || input_ended_) return;
  assignment_ = assignment;
  const size_t ranks = static_cast<size_t>(assignment.placement().ranks_size());
  said_goodbye_.assign(ranks, false);
  if (const std::string& folder = assignment.job().log_directory(); !folder.empty()) {
    std::error_code error;  // that of the files will be told
    std::filesystem::create_directories(folder, error);
  }
  supervisor_ = std::make_unique<Supervisor>(
      &loop_, &sentinel_,
      Supervisor::Callbacks{.on_line = [this](const v1::OutputLine& line) { OnOutputLine(line); },
                            .on_notice = [this](const std::string& text) { Notice(text); },
                            .on_exit = [this](int rank, v1::RankExit exit) { OnRankExit(rank, std::move(exit)); },
                            .on_all_gone = [this] { OnAllGone(); }});
  service_ = std::make_unique<RankService>(
      &loop_, assignment_, data_interface_ip_,
      RankService::Callbacks{
          .to_rendezvous = [this](const v1::FromAgent& message) { Tell(message); },
          .group_of = [this](int rank) { return supervisor_->GroupOf(rank); },
          .on_hello = [this](int rank, pid_t pid) { supervisor_->OnProgramJoined(rank, pid); },
          .on_goodbye = [this](int rank) { said_goodbye_[rank] = true; },
          .on_kill_request = [this](int rank, const std::string& why) { supervisor_->KillAsAsked(rank, why); },
          .on_vanished = [this](int rank, pid_t pid) { supervisor_->OnProgramVanished(rank, pid); }});
  const absl::Status ready = service_->Start(address_);
  if (!ready.ok()) return GiveUp(std::string(ready.message()));
  output_.set_on_drained([this] {
    if (!output_.full()) supervisor_->ResumeOutput();
  });
  v1::FromAgent started;
  *started.mutable_started() = supervisor_->Start(assignment_, RankEnvironments());
  if (started.started().failed_size() > 0) after_failure_ = true;
  Tell(started);
}

void Agent::OnOutputLine(const v1::OutputLine& line) {
  v1::FromNode message;
  *message.mutable_output() = line;
  message.mutable_output()->set_after_failure(after_failure_);
  output_.Write(message);
  if (output_.full()) supervisor_->PauseOutput();
}

void Agent::OnRankExit(int local_rank, v1::RankExit exit) {
  const bool in_order = exit.signal() == 0 && exit.exit_code() == 0;
  service_->TakeRest(local_rank, /*for_good=*/!in_order);
  exit.set_finalized(said_goodbye_[local_rank]);
  *exit.mutable_doing() = service_->LatestCallOf(local_rank);
  if (in_order) {
    service_->MarkEnded(local_rank);
  } else {
    service_->MarkLost(local_rank);
  }
  if (IsFailure(exit)) after_failure_ = true;
  v1::FromAgent message;
  *message.mutable_exit() = std::move(exit);
  Tell(message);
}

void Agent::OnAllGone() {
  Sweep("COHORT_AGENT=" + address_, {sentinel_.pid()}, true, kSweepLimit);
  supervisor_->DrainOutput();
  ranks_done_ = true;
  v1::FromAgent done;
  done.mutable_done()->set_node(start_.node());
  Tell(done);
  EndWhenDone();
}

void Agent::OnRendezvousLost(const absl::Status& why) {
  if (report_seen_) return;
  report_seen_ = true;  // none will come
  after_failure_ = true;
  if (!why.ok()) {
    exit_status_ = kExitLauncher;
    v1::FromNode failed;
    failed.set_failed("lost the rendezvous: " + std::string(why.message()));
    output_.Write(failed);
  }
  StopRanks(std::chrono::milliseconds(assignment_.job().grace_ms()));
  if (!supervisor_) ranks_done_ = true;
  EndWhenDone();
}

void Agent::OnReport(const v1::JobReport& report) {
  if (exit_with_job_) exit_status_ = report.exit_code();
  report_seen_ = true;
  StopRanks(std::chrono::milliseconds(0));  // whoever the rendezvous has given up on
  if (!supervisor_) ranks_done_ = true;
  // dlaunch closes our input when the other agents have gone.
  if (server_) loop_.After(kHostLinger, [this] { OnInputEnded(); });
  EndWhenDone();
}

void Agent::StopRanks(std::chrono::milliseconds grace) {
  if (supervisor_) {
    supervisor_->Stop(grace);
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
  StopRanks(std::chrono::milliseconds(0));
  if (!supervisor_ || supervisor_->pids().empty()) ranks_done_ = true;
  EndWhenDone();
}

std::string Agent::OnInterface() const {
  if (start_.interface().empty()) return "; bring its network up";
  std::string all;
  for (const std::string& address : OwnAddresses()) all += (all.empty() ? "" : ", ") + address;
  return " on --iface " + start_.interface() + "; it has " + (all.empty() ? "none" : all);
}

void Agent::EndWhenDone() {
  const bool nobody_waits = input_ended_ || (report_seen_ && !server_);
  if (ranks_done_ && nobody_waits) loop_.Quit();
}

void Agent::Tell(const v1::FromAgent& message) {
  if (client_) (void)client_->Send(message);  // a stream that has ended is reported by on_lost
}

void Agent::Notice(const std::string& text) {
  v1::FromNode message;
  message.set_notice(text);
  output_.Write(message);
}

}  // namespace

int RunAgent(int argc, char** argv) {
  bool exit_with_job = false;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], kExitWithJobArgument) == 0) exit_with_job = true;
    if (std::strcmp(argv[i], kAgentPreambleArgument) != 0) continue;
    // A pipe takes that much at once; if nobody reads it, the messages won't be read either.
    (void)!::write(STDOUT_FILENO, kAgentPreamble, sizeof kAgentPreamble - 1);
  }
  Sentinel::RememberArguments(argc, argv);
  Agent agent(exit_with_job);
  return agent.Run();
}

}  // namespace cohort::launcher
