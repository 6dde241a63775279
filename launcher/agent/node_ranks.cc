#include "cohort/launcher/agent/node_ranks.h"

#include <algorithm>
#include <csignal>
#include <string_view>
#include <utility>
#include <variant>

#include "cohort/launcher/agent/watch/open_mpi_folder.h"
#include "cohort/launcher/agent/watch/sweep.h"
#include "cohort/launcher/base/process_environment.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/machine/cpus.h"
#include "cohort/launcher/machine/placement.h"
#include "cohort/launcher/machine/program.h"
#include "cohort/launcher/machine/rank_environment.h"
#include "cohort/runtime/base/status_macros.h"

namespace cohort::launcher {
namespace {

// Adds those variables whose names `environment` has not.
void AddUnlessGiven(std::vector<std::string> variables, std::vector<std::string>* environment) {
  for (std::string& variable : variables) {
    const std::string_view name = std::string_view(variable).substr(0, variable.find('=') + 1);
    const bool given = std::any_of(environment->begin(), environment->end(),
                                   [name](const std::string& its) { return its.starts_with(name); });
    if (!given) environment->push_back(std::move(variable));
  }
}

std::vector<uint32_t> WorldRanks(const v1::Assignment& assignment) {
  std::vector<uint32_t> ranks;
  for (const v1::RankPlacement& rank : assignment.placement().ranks()) ranks.push_back(rank.rank());
  return ranks;
}

}  // namespace

NodeRanks::NodeRanks(EventLoop* loop, Owner owner, v1::Assignment assignment, std::function<void()> on_all_gone)
    : loop_(loop),
      owner_(std::move(owner)),
      assignment_(std::move(assignment)),
      on_all_gone_(std::move(on_all_gone)),
      processes_(loop, owner_.sentinel, owner_.cgroup, owner_.logs,
                 [this](const Supervisor::Event& event) { std::visit([this](const auto& it) { On(it); }, event); }),
      service_(
          loop, assignment_, owner_.link->data_interface_ip(),
          {.to_rendezvous = [this](const v1::FromAgent& message) { owner_.link->Send(message); },
           .to_agent =
               [this](const v1::AgentMessage& answer) {
                 if (answer.has_variable()) mpi_->store().OnReply(answer.variable());
               },
           .group_of = [this](int rank) { return processes_.GroupOf(rank); },
           .on_event =
               [this](const RankService::Event& event) { std::visit([this](const auto& it) { On(it); }, event); }}),
      states_(loop, WorldRanks(assignment_),
              {.process_of = [this](int rank) { return IsAlive(rank) ? joined_[rank] : WatchedProcess(); },
               .waits = [this](int rank) { return service_.waits().IsWaiting(rank); }}),
      trace_(
          loop, WorldRanks(assignment_),
          {.segment_of = [this](int local_rank) -> runtime::Segment& { return service_.waits().SegmentOf(local_rank); },
           .full = [this] { return owner_.news->output().full(); },
           .send = [this](v1::NodeTrace trace) { owner_.news->Trace(std::move(trace)); },
           .watch_states = [this](bool on) { states_.Watch(on); },
           .add_states = [this](v1::TracedCalls* calls) { states_.Take(calls); }}),
      spawned_(loop, assignment_, owner_.sentinel, owner_.cgroup, OpenMpiFolders::Of(owner_.address),
               {.on_line = [this](const v1::OutputLine& line) { On(Supervisor::Line{&line}); },
                .on_notice = [this](const std::string& text) { owner_.news->Notice(text); },
                .on_failure = [this](int rank, const std::string& why, std::optional<int> code,
                                     int signal) { OnSpawnedFailure(rank, why, code, signal); },
                .on_all_ended = [this] { FinishIfAllGone(); },
                .environment_of = [this](int rank) { return Surroundings()[rank].environment; },
                .use_of = [this](int rank) { return mpi_ == nullptr ? MpiUse::kNever : mpi_->UseOf(rank); }}),
      joined_(static_cast<size_t>(assignment_.placement().ranks_size())),
      said_goodbye_(static_cast<size_t>(assignment_.placement().ranks_size()), false) {}

absl::Status NodeRanks::Start(std::vector<std::optional<Supervisor::Kept>> kept) {
  COHORT_ASSIGN_OR_RETURN(torch_switch_, TorchSwitchFolder(InheritedEnvironment(), assignment_.job(), OwnPath()));
  nccl_plugin_ = NcclPluginOf(OwnPath());
  COHORT_RETURN_IF_ERROR(service_.Start(owner_.address));
  const bool has_input = owner_.rank_input != nullptr && assignment_.job().inherits_input();
  if (MpiService::Serves(assignment_.job())) {
    // Its calls on the job's variables go with those of the ranks.
    mpi_ = std::make_unique<MpiService>(
        loop_, assignment_,
        MpiService::Callbacks{
            .ask =
                [this](const v1::VariableRequest& request) {
                  service_.store().OnVariable(StoreRelay::kAgentItself, request);
                },
            .on_notice = [this](const std::string& text) { owner_.news->Notice(text); },
            .on_left = [this](const std::string& text) { owner_.news->Remark(text); },
            .on_abort = [this](int rank, int code) { processes_.KillAsAsked(rank, "MPI_Abort", code); },
            .on_stuck = [this](int rank, const std::string& why) { OnStuckInMpi(rank, why); },
            .on_spawn =
                [this](int rank, MpiWay way, const SpawnRequest& request, SpawnDone done) {
                  const auto number = static_cast<int>(assignment_.placement().ranks(rank).rank());
                  spawned_.Spawn({rank, MpiService::WorldOf(assignment_), number}, way, request, &mpi_->store(),
                                 std::move(done));
                }});
    const auto start_pmix = [folders = OpenMpiFolders::Of(owner_.address)](PmixEndpoint::Job job,
                                                                           PmixEndpoint::Handler handler) {
      job.folder = folders.files;
      job.memory_folder = folders.memory;
      return StartPmixEndpoint(std::move(job), std::move(handler));
    };
    COHORT_RETURN_IF_ERROR(mpi_->Start(start_pmix));
  }
  processes_.Start(assignment_, Surroundings(), std::move(kept),
                   has_input ? owner_.rank_input->OfEpoch(assignment_.epoch()) : -1);
  if (mpi_ != nullptr) mpi_->CloseInherited();
  wait_timer_ = loop_->After(RankWaits::kLookInterval, [this] { LookAtWaits(); });
  return absl::OkStatus();
}

// After a failure the job ends, or the user has asked that it go on.
void NodeRanks::OnStuckInMpi(int local_rank, const std::string& why) {
  if (!after_failure_) return processes_.KillAsAsked(local_rank, why);
  if (assignment_.job().on_failure() != "continue" || std::exchange(stuck_is_told_, true)) return;
  owner_.news->Notice("rank " + std::to_string(assignment_.placement().ranks(local_rank).rank()) +
                      " may wait in MPI for ever: " + why + "; --on-failure continue lets it");
}

// The rank that has asked fails with it. One that had ended in order counts as failed after all.
void NodeRanks::OnSpawnedFailure(int local_rank, const std::string& why, std::optional<int> exit_code, int signal) {
  const int status = signal != 0 ? 128 + signal : std::clamp(exit_code.value_or(1) & 0xff, 1, 255);
  spawned_failures_.try_emplace(local_rank, SpawnedFailure{why, status});
  if (processes_.GroupOf(local_rank) != 0) return processes_.KillAsAsked(local_rank, why, exit_code);
  SendSpawnedFailure(local_rank);
}

void NodeRanks::SendSpawnedFailure(int local_rank) {
  const SpawnedFailure& failure = spawned_failures_.at(local_rank);
  MarkFailure();
  v1::FromAgent message;
  message.mutable_exit()->set_rank(assignment_.placement().ranks(local_rank).rank());
  message.mutable_exit()->set_started(true);
  message.mutable_exit()->set_exit_code(failure.exit_code);
  message.mutable_exit()->set_spawned_failure(failure.why);
  owner_.link->Send(message);
  spawned_.KillOf(local_rank);
}

void NodeRanks::MarkFailure() {
  after_failure_ = true;
  if (mpi_ != nullptr) mpi_->OnFailure();
}

void NodeRanks::Stop(std::chrono::milliseconds grace, bool restarting) {
  stopped_ = true;
  processes_.Stop(grace, restarting);
  spawned_.Stop(grace);
}

void NodeRanks::Resume() {
  processes_.streams().Resume();
  spawned_.Resume();
}

void NodeRanks::LookAtWaits() {
  if (processes_.all_gone()) return;
  if (std::optional<v1::NodeWaits> waits = service_.waits().Look(EventLoop::Clock::now())) {
    v1::FromAgent message;
    *message.mutable_waits() = *std::move(waits);
    owner_.link->Send(message);
  }
  wait_timer_ = loop_->After(RankWaits::kLookInterval, [this] { LookAtWaits(); });
}

void NodeRanks::On(const Supervisor::Started& event) {
  if (event.started.failed_size() > 0) MarkFailure();
  v1::FromAgent message;
  *message.mutable_started() = event.started;
  owner_.link->Send(message);
}

std::vector<RankSurroundings> NodeRanks::Surroundings() const {
  const std::vector<std::string> inherited = InheritedEnvironment();
  std::vector<RankSurroundings> surroundings;
  const bool shared = assignment_.job().nodes_share_host();
  const int ranks = shared ? static_cast<int>(assignment_.world_size()) : assignment_.placement().ranks_size();
  const int cpus = CpusToShare();
  for (const v1::RankPlacement& rank : assignment_.placement().ranks()) {
    const int own = static_cast<int>(ParseCpuList(rank.cpus()).value_or(std::vector<int>()).size());
    RankSurroundings& its = surroundings.emplace_back();
    its.environment = BuildRankEnvironment(inherited, {.assignment = &assignment_,
                                                       .rank = &rank,
                                                       .node = static_cast<int>(assignment_.placement().node()),
                                                       .agent_address = owner_.address,
                                                       .cpu_share = CpuShare(own, ranks, cpus),
                                                       .torch_switch = torch_switch_,
                                                       .nccl_plugin = nccl_plugin_});
    if (mpi_ == nullptr) continue;
    const int local_rank = static_cast<int>(surroundings.size()) - 1;
    AddUnlessGiven(mpi_->EnvironmentOf(local_rank), &its.environment);
    its.inherited = mpi_->InheritedBy(local_rank);
  }
  return surroundings;
}

void NodeRanks::OnMessage(const v1::ToAgent& message) {
  v1::FromAgent reply;
  switch (message.kind_case()) {
    case v1::ToAgent::kPut:
      service_.store().OnPutReply(message.put());
      break;
    case v1::ToAgent::kGet:
      service_.store().OnGetReply(message.get());
      break;
    case v1::ToAgent::kVariable:
      service_.store().OnVariableReply(message.variable());
      break;
    case v1::ToAgent::kGroupFailure:
      if (message.group_failure().watched()) {
        owner_.news->Notice(message.group_failure().text());
      } else {
        service_.OnGroupFailure(message.group_failure());
      }
      break;
    case v1::ToAgent::kRanksLost:
      MarkFailure();
      service_.OnRanksLost(message.ranks_lost());
      break;
    case v1::ToAgent::kInspect:
      *reply.mutable_inspect() = service_.Inspect(message.inspect());
      for (v1::CallState& call : *reply.mutable_inspect()->mutable_calls()) {
        call.set_held_by(processes_.HeldBy(static_cast<int>(call.rank() - assignment_.placement().ranks(0).rank())));
      }
      owner_.link->Send(reply);
      break;
    case v1::ToAgent::kWaits:
      *reply.mutable_waits() = service_.waits().Answer(message.waits());
      owner_.link->Send(reply);
      break;
    case v1::ToAgent::kPreemption:
      // Else the node is done, or about to be: nothing more is said of this epoch.
      if (!processes_.all_gone()) service_.OnPreemption(message.preemption());
      break;
    case v1::ToAgent::kStopStep:
      service_.OnStopStep(message.stop_step());
      break;
    case v1::ToAgent::kPassOnSignal:
      processes_.PassOn(message.pass_on_signal());
      break;
    default:
      break;
  }
}

void NodeRanks::SayWhyTheyEnd(const std::string& why) {
  if (assignment_.job().on_failure() == "continue") {
    reason_to_end_ = why;
    return;
  }
  v1::FromAgent message;
  message.mutable_stop()->set_reason(why);
  message.mutable_stop()->set_exit_code(128 + SIGTERM);
  owner_.link->Send(message);
}

v1::CallState NodeRanks::LatestCallOf(int local_rank) {
  v1::CallState call = service_.waits().LatestCallOf(local_rank);
  call.set_joined(joined_[local_rank].pid != 0);
  call.set_in_mpi(mpi_ != nullptr && mpi_->UseOf(local_rank) != MpiUse::kNever);
  return call;
}

// Before the first has joined there may be no processes yet.
bool NodeRanks::IsAlive(int local_rank) const {
  return joined_[local_rank].pid != 0 && processes_.GroupOf(local_rank) != 0;
}

v1::NodeView NodeRanks::View() {
  v1::NodeView view;
  std::vector<v1::RankView> ranks = processes_.View();
  for (size_t i = 0; i < ranks.size(); ++i) {
    *ranks[i].mutable_doing() = LatestCallOf(static_cast<int>(i));
    *view.add_ranks() = std::move(ranks[i]);
  }
  service_.waits().Add(&view);
  return view;
}

// An agent whose messages are not taken reads its ranks no more: they block in time.
void NodeRanks::On(const Supervisor::Line& event) {
  v1::OutputLine line = *event.line;
  line.set_after_failure(after_failure_);
  line.set_epoch(assignment_.epoch());
  owner_.news->Line(line);
  if (!owner_.news->output().full()) return;
  processes_.streams().Pause();
  spawned_.Pause();
}

void NodeRanks::On(const Supervisor::Ended& event) {
  const int local_rank = event.local_rank;
  v1::RankExit exit = event.exit;
  const bool in_order = exit.signal() == 0 && exit.exit_code() == 0;
  if (mpi_ != nullptr) mpi_->OnEnded(local_rank, in_order && !exit.killed_by_us());
  service_.TakeRest(local_rank, /*for_good=*/!in_order);
  exit.set_finalized(said_goodbye_[local_rank]);
  if (exit.killed_by_us() && exit.error().empty()) exit.set_error(reason_to_end_);
  *exit.mutable_doing() = LatestCallOf(local_rank);
  trace_.OnLeave(local_rank);
  if (in_order) {
    service_.MarkEnded(local_rank);
  } else {
    service_.MarkLost(local_rank);
  }
  const bool failed = IsFailure(exit);
  if (failed) {
    MarkFailure();
    spawned_.KillOf(local_rank);
  } else {
    spawned_.OnAskerEnded(local_rank);
  }
  v1::FromAgent message;
  *message.mutable_exit() = std::move(exit);
  owner_.link->Send(message);
  // It may have ended while it was to be killed for that.
  if (!failed && in_order && spawned_failures_.contains(local_rank)) SendSpawnedFailure(local_rank);
}

void NodeRanks::On(const RankService::Recorded& event) {
  joined_[event.local_rank] = ProcessOf(event.pid);
  trace_.OnJoin(event.local_rank);
}

void NodeRanks::On(const RankService::Hello& event) {
  joined_[event.local_rank] = ProcessOf(event.pid);
  trace_.OnJoin(event.local_rank);
  said_goodbye_[event.local_rank] = false;
  processes_.OnProgramJoined(event.local_rank, event.pid, event.stays);
}

void NodeRanks::On(const RankService::EpochLeft& event) {
  const int local_rank = event.local_rank;
  v1::FromAgent message;
  message.mutable_stays()->set_rank(assignment_.placement().ranks(local_rank).rank());
  *message.mutable_stays()->mutable_doing() = LatestCallOf(local_rank);
  trace_.OnLeave(local_rank);
  message.mutable_stays()->set_epoch(assignment_.epoch());
  owner_.link->Send(message);
  processes_.OnStays(local_rank);
}

void NodeRanks::On(const Supervisor::AllGone&) {
  life_ = Life::kRanksGone;
  spawned_.OnRanksGone();
  FinishIfAllGone();
}

// A job that goes on after a failure waits for its spawned processes all the same.
void NodeRanks::FinishIfAllGone() {
  const bool ends = stopped_ || (after_failure_ && assignment_.job().on_failure() != "continue");
  if (life_ != Life::kRanksGone || (spawned_.any_lives() && !ends)) return;
  life_ = Life::kOver;  // it is said once
  const auto deadline = runtime::Deadline::After(kDoneWithin);
  const std::vector<pid_t> staying = processes_.staying();
  if (staying.empty()) owner_.cgroup->Kill(kSweepLimit);
  const bool nothing_left =
      Sweep("COHORT_AGENT=" + owner_.address, {{owner_.sentinel->pid()}, staying}, true, kSweepLimit);
  spawned_.OnSwept();
  swept_ = nothing_left && staying.empty();
  owner_.sentinel->ForgetEmptyGroups();
  processes_.streams().Drain();
  AwaitLogs(deadline);
}

void NodeRanks::AwaitLogs(runtime::Deadline deadline) {
  if (!owner_.logs->working() || deadline.passed()) return on_all_gone_();
  log_timer_ = loop_->After(kLookAtLogs, [this, deadline] { AwaitLogs(deadline); });
}

}  // namespace cohort::launcher
