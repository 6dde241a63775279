#include "cohort/launcher/control/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/control/deadlocks.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/control/failed_groups.h"
#include "cohort/launcher/control/job_course.h"
#include "cohort/launcher/control/membership.h"
#include "cohort/launcher/control/outbox.h"
#include "cohort/launcher/control/parts/job_time.h"
#include "cohort/launcher/control/preemption.h"
#include "cohort/launcher/control/roster.h"
#include "cohort/launcher/control/stall_inquiries.h"
#include "cohort/launcher/control/store_requests.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::milliseconds kLookInterval{250};
// Linux has no signal above it, so that no process has the statuses 128 + n above it.
constexpr int kLastSignal = 64;

}  // namespace

// Takes each event to the part that it concerns, and lets time pass in all of them.
class Rendezvous::Machine {
 public:
  Machine(v1::JobPlan plan, TimePoint now);

  std::vector<Action> Handle(Event event, TimePoint now);
  std::vector<Action> Tick(TimePoint now);
  TimePoint NextTick() const { return time_.promised(); }
  bool finished() const { return course_.finished(); }

 private:
  TimePoint NextDue() const;
  void Advance(TimePoint now);
  void LetTimePass();
  std::vector<Action> End();

  void On(const Received& event);
  void On(const Disconnected& event);
  void On(const StopRequested& event) { course_.OnStopRequested(event); }
  void On(const NoticeGiven& event) { preemption_.OnNotice(event.signal, std::nullopt, course_.phase()); }
  void On(const AgentEnded& event);
  void On(const TakenOver&) { members_.HearEverybody(); }  // what agents have sent may not have been read yet
  void On(const StandbysNoted&) {}

  // A node or a spare shows that it lives.
  void AnswerBeat(const Received& event);
  void OnJoin(const Received& event);
  void OnMessage(ConnectionId from, uint32_t node, const v1::FromAgent& message);
  void OnStarted(ConnectionId from, uint32_t node, const v1::RanksStarted& started);
  void OnExit(ConnectionId from, uint32_t node, const v1::RankExit& exit);
  void OnStays(ConnectionId from, uint32_t node, const v1::RankStays& stays);
  void OnDone(uint32_t node, const v1::NodeDone& done);
  void OnGroupFailure(uint32_t node, const v1::GroupFailure& failure);

  void LoseSilentNodes();
  void LoseLateNodes();
  void LoseNode(uint32_t node, const std::string& how, TimePoint gone_at);
  void LoseSpare(ConnectionId connection, const std::string& how);
  void GiveUpAgent(uint32_t agent, const std::string& text);
  // The agent said something that it may not say.
  void Violate(ConnectionId from, uint32_t node, const std::string& what);

  JobTime time_;
  Roster roster_;
  Membership members_;
  Outbox outbox_;
  StoreRequests store_;
  FailedGroups failed_groups_;
  StallInquiries stalls_;
  Deadlocks deadlocks_;
  Preemption preemption_;
  JobCourse course_;
  TimePoint next_look_;  // for silent nodes
};

Rendezvous::Rendezvous(v1::JobPlan plan, TimePoint now) : machine_(std::make_unique<Machine>(std::move(plan), now)) {}
Rendezvous::~Rendezvous() = default;
std::vector<Action> Rendezvous::Handle(Event event, TimePoint now) { return machine_->Handle(std::move(event), now); }
std::vector<Action> Rendezvous::Tick(TimePoint now) { return machine_->Tick(now); }
TimePoint Rendezvous::NextTick() const { return machine_->NextTick(); }
bool Rendezvous::finished() const { return machine_->finished(); }

Rendezvous::Machine::Machine(v1::JobPlan plan, TimePoint now)
    : time_(now),
      roster_(std::move(plan)),
      members_(&roster_, time_),
      outbox_(members_),
      store_(time_, &outbox_),
      failed_groups_(&roster_, time_, &outbox_),
      stalls_(roster_, members_, time_, &failed_groups_, &outbox_),
      deadlocks_(roster_, members_, time_, &failed_groups_, &stalls_, &outbox_),
      preemption_(roster_, time_, &outbox_),
      course_({.roster = &roster_,
               .members = &members_,
               .preemption = &preemption_,
               .failed_groups = &failed_groups_,
               .stalls = &stalls_,
               .deadlocks = &deadlocks_,
               .store = &store_,
               .outbox = &outbox_},
              time_),
      next_look_(now + kLookInterval) {
  time_.Promise(NextDue());
}

std::vector<Action> Rendezvous::Machine::Handle(Event event, TimePoint now) {
  Advance(now);
  std::visit([this](const auto& it) { On(it); }, event);
  // Nothing is called late here: what would prove the contrary may be the next event.
  if (!finished()) {
    stalls_.Continue(/*late_ones_too=*/false);
    deadlocks_.Continue(/*late_ones_too=*/false);
    course_.FinishIfDone();
  }
  return End();
}

std::vector<Action> Rendezvous::Machine::Tick(TimePoint now) {
  Advance(now);
  LetTimePass();
  return End();
}

void Rendezvous::Machine::Advance(TimePoint now) {
  // Messages that agents sent while this process was stopped may not have been read yet.
  if (time_.Advance(now)) members_.HearEverybody();
}

std::vector<Action> Rendezvous::Machine::End() {
  time_.Promise(NextDue());
  return outbox_.Take();
}

TimePoint Rendezvous::Machine::NextDue() const {
  TimePoint due = next_look_;
  for (const std::optional<TimePoint>& other :
       {course_.NextDue(), store_.NextExpiry(), stalls_.NextDue(), deadlocks_.NextDue()}) {
    if (other.has_value()) due = std::min(due, *other);
  }
  return std::max(due, time_.now());
}

void Rendezvous::Machine::LetTimePass() {
  if (finished()) {
    next_look_ = time_.now() + std::chrono::hours(1);
    return;
  }
  store_.Expire();
  stalls_.Continue(/*late_ones_too=*/true);
  deadlocks_.Continue(/*late_ones_too=*/true);
  if (time_.now() >= next_look_) {
    next_look_ = time_.now() + kLookInterval;
    LoseSilentNodes();
  }
  course_.LetTimePass();
  if (course_.StopIsLate()) LoseLateNodes();
  course_.BeginNextEpochIfDue();
  course_.FinishIfDone();
}

void Rendezvous::Machine::AnswerBeat(const Received& event) {
  const uint64_t number = event.message.beat().number();
  if (number == 0) return;
  v1::ToAgent answer;
  answer.mutable_beat()->set_number(number);
  outbox_.SendTo(event.from, std::move(answer));
}

void Rendezvous::Machine::On(const Received& event) {
  const v1::FromAgent& message = event.message;
  if (!members_.Hear(event.from)) return OnJoin(event);
  if (finished()) return;
  const std::optional<uint32_t> node = members_.NodeOf(event.from);
  if (!node.has_value()) {
    if (message.has_beat()) return AnswerBeat(event);
    outbox_.Refuse(event.from, "a spare node spoke of ranks before it was given any");
    return LoseSpare(event.from, "it spoke of ranks before it was given any");
  }
  AnswerBeat(event);
  if (course_.phase() == Phase::kGathering && !message.has_beat() && !message.has_stop()) {
    return Violate(event.from, *node, "it spoke of ranks before it was given any");
  }
  OnMessage(event.from, *node, message);
}

void Rendezvous::Machine::OnJoin(const Received& event) {
  if (!event.message.has_join()) {
    return outbox_.Refuse(event.from, "the first message of a connection must be an offer to join");
  }
  const std::string why = members_.WhyRefused(event.message.join(), course_.phase());
  if (!why.empty()) return outbox_.Refuse(event.from, why);
  if (members_.Join(event.from, event.message.join())) course_.BeginFirstEpoch();
}

void Rendezvous::Machine::On(const Disconnected& event) {
  const std::string how = event.reason.empty() ? "its connection has ended" : event.reason;
  LoseSpare(event.from, how);
  if (const std::optional<uint32_t> node = members_.NodeOf(event.from)) LoseNode(*node, how, time_.now());
}

void Rendezvous::Machine::On(const AgentEnded& event) {
  members_.NoteEnd(event.agent);
  // An agent that has not joined has no connection whose end would tell.
  if (course_.phase() == Phase::kGathering && members_.Awaits(event.agent)) {
    course_.FinishUnstarted(event.text + ", before the job had started", kExitLauncher);
  }
  (void)course_.FinishIfLacking(event.text);
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
      store_.OnPut(from, message.put());
      break;
    case v1::FromAgent::kGet:
      store_.OnGet(from, message.get());
      break;
    case v1::FromAgent::kVariable:
      store_.OnVariable(from, message.variable());
      break;
    case v1::FromAgent::kStall:
      stalls_.OnStall(message.stall());
      break;
    case v1::FromAgent::kGroupFailure:
      OnGroupFailure(node, message.group_failure());
      break;
    case v1::FromAgent::kInspect:
      stalls_.OnReply(from, message.inspect());
      break;
    case v1::FromAgent::kWaits:
      if (course_.phase() == Phase::kRunning) deadlocks_.OnWaits(from, node, message.waits());
      break;
    case v1::FromAgent::kDone:
      OnDone(node, message.done());
      break;
    case v1::FromAgent::kStop:
      course_.OnStopRequested({message.stop().reason(), message.stop().exit_code(), message.stop().signal()});
      break;
    case v1::FromAgent::kPreemption:
      preemption_.OnWish(course_.phase());
      break;
    case v1::FromAgent::kNoticeSignal:
      preemption_.OnNotice(message.notice_signal(), from, course_.phase());
      break;
    case v1::FromAgent::kPreemptionStep:
      if (message.preemption_step().epoch() != course_.epoch()) break;
      preemption_.OnStep(node, message.preemption_step());
      break;
    case v1::FromAgent::kPreempted:
      if (message.preempted().epoch() == course_.epoch()) preemption_.OnPreempted(message.preempted());
      break;
    case v1::FromAgent::kBeat:
    case v1::FromAgent::kLogged:
    case v1::FromAgent::kBatch:        // AgentStream passes its messages on one by one
    case v1::FromAgent::KIND_NOT_SET:  // a kind of a later version: of no concern here
      break;
  }
}

void Rendezvous::Machine::OnStarted(ConnectionId from, uint32_t node, const v1::RanksStarted& started) {
  for (const v1::RankPid& pid : started.pids()) {
    if (roster_.IsOn(node, pid.rank())) roster_.rank(pid.rank()).pid = pid.pid();
  }
  for (const v1::RankExit& failed : started.failed()) {
    v1::RankExit exit = failed;
    exit.set_started(false);
    OnExit(from, node, exit);
    if (!members_.NodeOf(from).has_value()) return;
  }
}

void Rendezvous::Machine::OnExit(ConnectionId from, uint32_t node, const v1::RankExit& exit) {
  if (!roster_.IsOn(node, exit.rank())) {
    Violate(from, node, "it reported the end of rank " + std::to_string(exit.rank()) + ", which is not its own");
    return;
  }
  if (exit.signal() < 0 || exit.signal() > kLastSignal || exit.exit_code() < 0 || exit.exit_code() > 255) {
    Violate(from, node, "it reported an end of rank " + std::to_string(exit.rank()) + " that no process has");
    return;
  }
  const std::optional<v1::RankExit>& known = roster_.rank(exit.rank()).exit;
  v1::RankExit reported = exit;
  if (known.has_value()) {
    // A process that the rank had spawned may fail after its end in order. Nothing else is added to an end.
    if (exit.spawned_failure().empty() || IsFailure(*known) || known->killed_by_us()) return;
    reported = *known;
    reported.set_spawned_failure(exit.spawned_failure());
    reported.set_exit_code(exit.exit_code());
  }
  reported.set_lost(false);  // only we say that of a rank
  course_.RecordExit(reported, time_.now());
  deadlocks_.ForgetRank(exit.rank());
  if (IsFailure(reported) || (reported.killed_by_us() && course_.phase() == Phase::kRunning)) {
    course_.AnnounceLoss({exit.rank()}, roster_.Name(exit.rank()) + " " + DescribeFailure(reported));
  } else {
    stalls_.AskAboutStallsWith(exit.rank());
  }
}

void Rendezvous::Machine::OnStays(ConnectionId from, uint32_t node, const v1::RankStays& stays) {
  if (stays.epoch() != course_.epoch()) return;
  if (!roster_.IsOn(node, stays.rank())) {
    Violate(from, node, "it spoke of rank " + std::to_string(stays.rank()) + ", which is not its own");
    return;
  }
  roster_.rank(stays.rank()).stays = stays.doing();
  deadlocks_.ForgetRank(stays.rank());
  stalls_.AskAboutStallsWith(stays.rank());
}

void Rendezvous::Machine::OnDone(uint32_t node, const v1::NodeDone& done) {
  roster_.node(node).done = true;
  if (done.master_port() != 0) roster_.node(node).master_port = done.master_port();
  preemption_.OnNodeDone(node);
}

void Rendezvous::Machine::OnGroupFailure(uint32_t node, const v1::GroupFailure& failure) {
  if (!failed_groups_.OnReport(node, failure)) return;
  if (failure.code() == static_cast<uint32_t>(absl::StatusCode::kDeadlineExceeded)) {
    stalls_.OnTimeout(failure.group(), failure.epoch());
  } else {
    stalls_.Drop(failure.group(), failure.epoch());
  }
}

void Rendezvous::Machine::LoseSilentNodes() {
  constexpr char kSilent[] = "it was silent for 3.4 s";
  // An agent that is given up is told so: with standbys, the mere end of its stream would say that the host is lost.
  constexpr char kGivenUp[] = "the node was given up, since it was silent for 3.4 s";
  for (const uint32_t node : members_.SilentNodes()) {
    const ConnectionId connection = *members_.ConnectionOf(node);
    LoseNode(node, kSilent, roster_.node(node).heard);
    outbox_.Refuse(connection, kGivenUp);
    if (finished()) return;
  }
  for (const ConnectionId spare : members_.SilentSpares()) {
    LoseSpare(spare, kSilent);
    outbox_.Refuse(spare, kGivenUp);
    if (finished()) return;
  }
}

// Agents that were told to stop have not said in time that their ranks are gone. An agent whose stream ends kills the
// ranks it still has. The next agent in its place waits for that as for any lost node (FencedUntil).
void Rendezvous::Machine::LoseLateNodes() {
  constexpr char kLate[] = "it did not say in time that its ranks were gone";
  for (uint32_t node = 0; node < roster_.node_count(); ++node) {
    if (roster_.node(node).done) continue;
    const ConnectionId connection = *members_.ConnectionOf(node);  // who has none is done
    LoseNode(node, kLate, time_.now());
    outbox_.Refuse(connection, kLate);
  }
}

void Rendezvous::Machine::GiveUpAgent(uint32_t agent, const std::string& text) {
  v1::LostNode lost;
  lost.set_agent(agent);
  lost.set_text(text);
  outbox_.Add(NodeLost{std::move(lost)});
}

void Rendezvous::Machine::LoseSpare(ConnectionId connection, const std::string& how) {
  const std::optional<Membership::Spare> spare = members_.RemoveSpare(connection);
  if (!spare.has_value() || finished()) return;
  const std::string text = "the agent of the spare node " + spare->node.name + " is gone: " + how;
  GiveUpAgent(spare->agent, text);
  (void)course_.FinishIfLacking(text);
}

void Rendezvous::Machine::LoseNode(uint32_t index, const std::string& how, TimePoint gone_at) {
  const ConnectionId connection = members_.Disconnect(index);
  stalls_.Forget(connection);
  deadlocks_.Forget(connection);
  store_.Forget(connection);
  if (finished()) return;
  Roster::Node& node = roster_.node(index);
  const std::string text = "the agent of " + node.name + " is gone: " + how;
  node.lost = true;
  GiveUpAgent(node.agent, text);
  if (course_.phase() == Phase::kGathering) {
    return course_.FinishUnstarted(text + ", before the job had started", kExitLauncher);
  }
  if (course_.phase() == Phase::kPausing) {
    (void)course_.FinishIfLacking(text);
    return;
  }
  if (!std::exchange(node.done, true)) course_.LoseRanksOf(index, text, gone_at);
  preemption_.OnNodeLost(index);
}

void Rendezvous::Machine::Violate(ConnectionId from, uint32_t node, const std::string& what) {
  outbox_.Refuse(from, what);
  LoseNode(node, what, time_.now());
}

}  // namespace cohort::launcher
