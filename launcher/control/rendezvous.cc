#include "cohort/launcher/control/rendezvous.h"

#include <algorithm>
#include <utility>

#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/control/rendezvous_machine.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

// Being called this much later than asked means that this process was stopped or starved: no verdicts then.
constexpr milliseconds kOwnStall{500};
constexpr milliseconds kLookInterval{250};
constexpr milliseconds kDefaultJoinTimeout{300'000};
// Between the first failure and the order to stop: deaths that caused it are still seen as such, and ranks that are
// told of the loss have a moment to end in their own words.
constexpr milliseconds kSettle{100};
// Of Linux: the statuses 128 + n above it are nobody's.
constexpr int kLastSignal = 64;
// How long agents may take beyond the grace they were given.
constexpr milliseconds kStopSlack{5000};

}  // namespace

Rendezvous::Rendezvous(v1::JobPlan plan, TimePoint now) : machine_(std::make_unique<Machine>(std::move(plan), now)) {}
Rendezvous::~Rendezvous() = default;
std::vector<Action> Rendezvous::Handle(Event event, TimePoint now) { return machine_->Handle(std::move(event), now); }
std::vector<Action> Rendezvous::Tick(TimePoint now) { return machine_->Tick(now); }
TimePoint Rendezvous::NextTick() const { return machine_->NextTick(); }
bool Rendezvous::finished() const { return machine_->finished(); }

Rendezvous::Machine::Machine(v1::JobPlan plan, TimePoint now)
    : roster_(std::move(plan)),
      first_spare_(roster_.node_count()),
      restarts_(roster_.plan().job().max_restarts()),
      now_(now) {
  connection_of_.resize(roster_.node_count());
  const milliseconds timeout(roster_.plan().join_timeout_ms());
  join_deadline_ = now + (timeout > milliseconds(0) ? timeout : kDefaultJoinTimeout);
  next_look_ = now + kLookInterval;
  promised_ = NextDue();
}

std::vector<Action> Rendezvous::Machine::Handle(Event event, TimePoint now) {
  Begin(now);
  std::visit([this](const auto& it) { On(it); }, event);
  // Nothing is called late here: what would prove the contrary may be the next event.
  if (phase_ != Phase::kFinished) {
    ConcludeInspections(/*late_ones_too=*/false);
    StartInspections();
    ConcludeInspections(/*late_ones_too=*/false);
    FinishIfDone();
  }
  return End();
}

std::vector<Action> Rendezvous::Machine::Tick(TimePoint now) {
  Begin(now);
  LetTimePass();
  return End();
}

void Rendezvous::Machine::Begin(TimePoint now) {
  if (now > promised_ + kOwnStall) {
    paused_ += now - promised_;
    now_ = std::max(now - paused_, now_);
    HearEverybody();
  }
  // Strictly increasing, so that times also tell the order of events.
  now_ = std::max(now - paused_, now_ + std::chrono::nanoseconds(1));
}

void Rendezvous::Machine::HearEverybody() {
  for (uint32_t index = 0; index < roster_.node_count(); ++index) {
    Roster::Node& node = roster_.node(index);
    if (!node.lost) node.heard = now_;  // of a lost one nothing is awaited; its fence counts from when it was heard
  }
  for (Spare& spare : spares_) spare.node.heard = now_;
}

std::vector<Action> Rendezvous::Machine::End() {
  promised_ = NextDue() + paused_;
  return std::exchange(actions_, {});
}

TimePoint Rendezvous::Machine::NextDue() const {
  TimePoint due = next_look_;
  if (phase_ == Phase::kGathering) due = std::min(due, join_deadline_);
  if (restart_due_.has_value()) due = std::min(due, RestartDue());
  for (const std::optional<TimePoint>& other :
       {stop_due_, end_deadline_, preemption_due_, store_.NextExpiry(), inspections_.NextDue()}) {
    if (other.has_value()) due = std::min(due, *other);
  }
  return std::max(due, now_);
}

void Rendezvous::Machine::LetTimePass() {
  if (phase_ == Phase::kFinished) {
    next_look_ = now_ + std::chrono::hours(1);
    return;
  }
  for (const KeyValueStore::Waiter& waiter : store_.Expire(now_)) {
    v1::ToAgent message;
    message.mutable_get()->set_request(waiter.request);
    SendTo(waiter.connection, std::move(message));
  }
  ConcludeInspections(/*late_ones_too=*/true);
  StartInspections();
  ConcludeInspections(/*late_ones_too=*/true);
  if (now_ >= next_look_) {
    next_look_ = now_ + kLookInterval;
    FindSilentNodes();
  }
  if (phase_ == Phase::kGathering && now_ >= join_deadline_) {
    std::string missing;
    for (uint32_t i = 0; i < roster_.node_count(); ++i) {
      const Roster::Node& node = roster_.node(i);
      if (node.joined) continue;
      if (!missing.empty()) missing += ", ";
      missing += node.name;
      if (!node.refusal.empty()) missing += " (was refused: " + node.refusal + ")";
    }
    FinishUnstarted("not every node has joined in time; missing: " + missing, kExitLauncher);
  }
  EndPreemptionIfDue();
  if (phase_ == Phase::kRunning && stop_due_.has_value() && now_ >= *stop_due_) {
    const v1::JobReport so_far = FindRootCause(roster_, failures_, stop_);
    const bool restarting =
        !stop_.has_value() && !preempted_stop_.has_value() && restarts_.MayRestart(so_far, Lacking());
    StopAll(so_far.headline(), so_far.exit_code(), GraceLeft(), restarting);
  }
  if (phase_ == Phase::kStopping && now_ >= *end_deadline_) LoseLateNodes();
  if (phase_ == Phase::kPausing && now_ >= RestartDue()) {
    if (!FinishIfLacking("not every spare node has joined in time")) BeginNextEpoch();
  }
  FinishIfDone();
}

void Rendezvous::Machine::On(const Received& event) {
  const auto known = node_of_.find(event.from);
  if (known == node_of_.end()) return OnSpeechOfUnknown(event);
  const uint32_t node = known->second;
  roster_.node(node).heard = now_;
  if (phase_ == Phase::kFinished) return;
  AnswerBeat(event);
  if (phase_ == Phase::kGathering && !event.message.has_beat() && !event.message.has_stop()) {
    Violate(event.from, node, "it spoke of ranks before it was given any");
    return;
  }
  OnMessage(event.from, node, event.message);
}

void Rendezvous::Machine::On(const StopRequested& event) {
  if (stop_.has_value() || phase_ == Phase::kFinished) return;
  if (phase_ == Phase::kGathering || phase_ == Phase::kPausing) {
    FinishUnstarted(event.reason, event.exit_code);
    return;
  }
  if (PreemptBeforeStopping(event)) return;
  stop_ = ReportedStop{event.reason, event.exit_code, now_};
  if (phase_ == Phase::kRunning) StopAll(event.reason, event.exit_code, GraceLeft());
}

void Rendezvous::Machine::AssignAll() {
  phase_ = Phase::kRunning;
  epoch_began_ = now_;
  v1::ToAgent table;
  *table.mutable_nodes() = roster_.MakeNodeTable();
  Broadcast(std::move(table));
  for (uint32_t node = 0; node < roster_.node_count(); ++node) {
    v1::ToAgent message;
    *message.mutable_assignment() = roster_.MakeAssignment(node, epoch());
    SendTo(*connection_of_[node], std::move(message));
  }
}

void Rendezvous::Machine::OnMessage(ConnectionId from, uint32_t node, const v1::FromAgent& message) {
  switch (message.kind_case()) {
    case v1::FromAgent::kJoin:
      Violate(from, node, "it joined twice");
      break;
    case v1::FromAgent::kStarted:
      OnStarted(from, node, message.started());
      break;
    case v1::FromAgent::kExit:
      OnExit(from, node, message.exit());
      break;
    case v1::FromAgent::kStays:
      OnStays(from, node, message.stays());
      break;
    case v1::FromAgent::kPut:
      OnPut(from, message.put());
      break;
    case v1::FromAgent::kGet:
      OnGet(from, message.get());
      break;
    case v1::FromAgent::kStall:
      OnStall(message.stall());
      break;
    case v1::FromAgent::kGroupFailure:
      OnGroupFailure(node, message.group_failure());
      break;
    case v1::FromAgent::kInspect:
      inspections_.Reply(from, message.inspect());
      break;
    case v1::FromAgent::kDone:
      OnDone(node, message.done());
      break;
    case v1::FromAgent::kStop:
      On(StopRequested{message.stop().reason(), message.stop().exit_code(), message.stop().signal()});
      break;
    case v1::FromAgent::kPreemption:
      OnPreemptionWish();
      break;
    case v1::FromAgent::kNoticeSignal:
      OnNotice(message.notice_signal(), from);
      break;
    case v1::FromAgent::kPreemptionStep:
      OnPreemptionStep(node, message.preemption_step());
      break;
    case v1::FromAgent::kPreempted:
      OnPreempted(message.preempted());
      break;
    case v1::FromAgent::kBeat:
    case v1::FromAgent::kLogged:
    case v1::FromAgent::KIND_NOT_SET:  // a kind of a later version: of no concern here
      break;
  }
}

bool Rendezvous::Machine::IsOn(uint32_t node, uint32_t rank) const {
  return rank < roster_.rank_count() && roster_.rank(rank).node == node;
}

void Rendezvous::Machine::OnStarted(ConnectionId from, uint32_t node, const v1::RanksStarted& started) {
  for (const v1::RankPid& pid : started.pids()) {
    if (IsOn(node, pid.rank())) roster_.rank(pid.rank()).pid = pid.pid();
  }
  for (const v1::RankExit& failed : started.failed()) {
    v1::RankExit exit = failed;
    exit.set_started(false);
    OnExit(from, node, exit);
    if (node_of_.find(from) == node_of_.end()) return;
  }
}

void Rendezvous::Machine::OnExit(ConnectionId from, uint32_t node, const v1::RankExit& exit) {
  if (!IsOn(node, exit.rank())) {
    Violate(from, node, "it reported the end of rank " + std::to_string(exit.rank()) + ", which is not its own");
    return;
  }
  if (exit.signal() < 0 || exit.signal() > kLastSignal || exit.exit_code() < 0 || exit.exit_code() > 255) {
    Violate(from, node, "it reported an end of rank " + std::to_string(exit.rank()) + " that no process has");
    return;
  }
  if (roster_.rank(exit.rank()).exit.has_value()) return;
  v1::RankExit reported = exit;
  reported.set_lost(false);  // only we say that of a rank
  RecordExit(reported, now_);
  if (IsFailure(exit) || (exit.killed_by_us() && phase_ == Phase::kRunning)) {
    AnnounceLoss({exit.rank()}, roster_.Name(exit.rank()) + " " + DescribeEnd(exit));
  } else {
    AskAboutStallsWith(exit.rank());
  }
}

void Rendezvous::Machine::OnStays(ConnectionId from, uint32_t node, const v1::RankStays& stays) {
  if (stays.epoch() != epoch()) return;
  if (!IsOn(node, stays.rank())) {
    Violate(from, node, "it spoke of rank " + std::to_string(stays.rank()) + ", which is not its own");
    return;
  }
  roster_.rank(stays.rank()).stays = stays.doing();
  AskAboutStallsWith(stays.rank());
}

void Rendezvous::Machine::OnDone(uint32_t node, const v1::NodeDone& done) {
  roster_.node(node).done = true;
  if (done.master_port() != 0) roster_.node(node).master_port = done.master_port();
  if (agreement_.has_value()) AnswerFor(node);
  ConcludePreemption();
}

void Rendezvous::Machine::RecordExit(const v1::RankExit& exit, TimePoint gone_at) {
  Roster::Rank& rank = roster_.rank(exit.rank());
  rank.exit = exit;
  if (!IsFailure(exit)) rank.exit->clear_last_lines();  // of no interest, and large
  if (exit.pid() != 0) rank.pid = exit.pid();
  rank.exit->set_pid(rank.pid);
  rank.gone_at = gone_at;
  const std::optional<TimePoint>& told = roster_.node_of(exit.rank()).latest_told;
  rank.told = told.has_value() && *told < gone_at && gone_at - *told < kConsequenceTime;
}

void Rendezvous::Machine::AnnounceLoss(const std::vector<uint32_t>& ranks, const std::string& text) {
  // Everybody has been told to stop, or is about to be: the many losses that follow a first one are no news.
  if (phase_ != Phase::kRunning || stop_due_.has_value()) return;
  v1::ToAgent message;
  for (uint32_t rank : ranks) message.mutable_ranks_lost()->add_ranks(rank);
  message.mutable_ranks_lost()->set_text(text);
  Broadcast(std::move(message));
  for (uint32_t node = 0; node < roster_.node_count(); ++node) MarkTold(node);
  if (roster_.plan().job().on_failure() != "continue") stop_due_ = now_ + kSettle;
}

void Rendezvous::Machine::StopAll(const std::string& reason, int exit_code, milliseconds grace, bool restarting) {
  phase_ = Phase::kStopping;
  stop_due_.reset();
  end_deadline_ = now_ + grace + kStopSlack;
  v1::ToAgent message;
  message.mutable_stop()->set_reason(reason);
  message.mutable_stop()->set_exit_code(exit_code);
  message.mutable_stop()->set_grace_ms(static_cast<uint32_t>(grace.count()));
  message.mutable_stop()->set_restarting(restarting);
  Broadcast(std::move(message));
  for (uint32_t node = 0; node < roster_.node_count(); ++node) MarkTold(node);
}

void Rendezvous::Machine::FinishIfDone() {
  if (phase_ != Phase::kRunning && phase_ != Phase::kStopping) return;
  for (uint32_t node = 0; node < roster_.node_count(); ++node) {
    if (!roster_.node(node).done) return;
  }
  v1::JobReport report = FindRootCause(roster_, failures_, stop_);
  TellIfPreempted(&report);
  if (!stop_.has_value() && !preempted_stop_.has_value() && report.preempted_by() == 0) {
    const RestartPolicy::Decision decision = restarts_.Decide(report, now_ - epoch_began_, Lacking());
    if (decision.restart) return Pause(std::move(report), decision);
    report.set_not_restarted(decision.why_not);
  } else if (!stop_.has_value() && report.exit_code() != 0 && roster_.plan().job().max_restarts() > 0 &&
             report.preempted_by() == 0) {
    report.set_not_restarted("the job had been told to end");
  }
  Finish(std::move(report));
}

void Rendezvous::Machine::Pause(v1::JobReport report, const RestartPolicy::Decision& decision) {
  phase_ = Phase::kPausing;
  stop_due_.reset();
  end_deadline_.reset();
  restart_due_ = now_ + decision.delay;
  v1::Restart restart;
  *restart.mutable_report() = std::move(report);
  restart.set_number(restarts_.restarts());
  restart.set_max_restarts(roster_.plan().job().max_restarts());
  const auto fenced_for = std::chrono::ceil<milliseconds>(FencedUntil() - now_);
  restart.set_delay_ms(static_cast<uint32_t>(std::max(decision.delay, fenced_for).count()));
  if (!LackingWith(spares_.size()).empty()) restart.set_spares(SparesToCome());
  actions_.emplace_back(launcher::Restart{std::move(restart)});
}

void Rendezvous::Machine::BeginNextEpoch() {
  restart_due_.reset();
  Reseat();
  store_ = KeyValueStore();
  inspections_.Clear();
  stalls_.clear();
  failures_.clear();
  failed_groups_.clear();
  agreement_.reset();
  preempted_at_.reset();
  AssignAll();
}

void Rendezvous::Machine::FinishUnstarted(const std::string& headline, int exit_code) {
  v1::JobReport report;
  report.set_exit_code(exit_code);
  report.set_headline(headline);
  report.set_culprit_rank(-1);
  Finish(std::move(report));
}

void Rendezvous::Machine::Finish(v1::JobReport report) {
  phase_ = Phase::kFinished;
  stop_due_.reset();
  preemption_due_.reset();
  end_deadline_.reset();
  restart_due_.reset();
  // Nobody asks or waits any more, and nothing of it may be due again and again.
  inspections_.Clear();
  store_ = KeyValueStore();
  v1::ToAgent message;
  message.mutable_report()->set_exit_code(report.exit_code());
  message.mutable_report()->set_headline(report.headline());
  message.mutable_report()->set_culprit_rank(report.culprit_rank());
  Broadcast(std::move(message));
  for (const std::optional<ConnectionId>& connection : connection_of_) {
    if (connection.has_value()) actions_.emplace_back(Close{*connection});
  }
  for (const Spare& spare : spares_) actions_.emplace_back(Close{spare.connection});
  actions_.emplace_back(launcher::Finish{std::move(report)});
}

void Rendezvous::Machine::SendTo(ConnectionId to, v1::ToAgent message) {
  actions_.emplace_back(Send{to, std::make_shared<const v1::ToAgent>(std::move(message))});
}

void Rendezvous::Machine::Broadcast(v1::ToAgent message) {
  const auto shared = std::make_shared<const v1::ToAgent>(std::move(message));
  for (const std::optional<ConnectionId>& connection : connection_of_) {
    if (connection.has_value()) actions_.emplace_back(Send{*connection, shared});
  }
  if (phase_ != Phase::kFinished) return;
  for (const Spare& spare : spares_) actions_.emplace_back(Send{spare.connection, shared});  // the report
}

void Rendezvous::Machine::Refuse(ConnectionId connection, const std::string& why) {
  v1::ToAgent message;
  message.set_refused(why);
  SendTo(connection, std::move(message));
  actions_.emplace_back(Close{connection});
}

void Rendezvous::Machine::Violate(ConnectionId from, uint32_t node, const std::string& what) {
  Refuse(from, what);
  LoseNode(node, what, now_);
}

}  // namespace cohort::launcher
