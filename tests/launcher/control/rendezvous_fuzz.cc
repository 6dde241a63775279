// The rendezvous under arbitrary conversations: agents that join, lie, repeat themselves, speak out of turn or vanish,
// several connections at once, a clock that runs and jumps. Each input is a plan and a sequence of events; whatever
// they are, the machine keeps the promises of rendezvous.h:
//
//   - it sends only to connections that live, messages that say something;
//   - epochs count up one by one, each with ranks counted through from 0;
//   - a restart and a failure have a cause and a status other than 0, and a job with a failed rank is no success;
//   - it asks to be called only when there is something to do, and the end comes once, when all are gone at the latest.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/control/describe.h"
#include "launcher/control/rendezvous.h"
#include "launcher/control/roster.h"
#include "tests/support/fuzz_input.h"
#include "tests/support/fuzz_messages.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

constexpr size_t kConnections = 6;  // at a time
constexpr int kMaxEvents = 2000;

v1::NodePlacement MakePlacement(uint32_t node, uint32_t first_rank, uint32_t ranks) {
  v1::NodePlacement placement;
  placement.set_node(node);
  placement.set_name("node" + std::to_string(node));
  for (uint32_t i = 0; i < ranks; ++i) {
    v1::RankPlacement& rank = *placement.add_ranks();
    rank.set_rank(first_rank + i);
    rank.set_local_rank(i);
    rank.add_devices()->set_node_index(i);
  }
  return placement;
}

v1::JobPlan TakePlan(FuzzInput* input) {
  static constexpr const char* kOnFailure[] = {"end", "continue", "restart", ""};
  v1::JobPlan plan;
  plan.mutable_job()->set_on_failure(kOnFailure[input->Below(4)]);
  if (plan.job().on_failure() == "restart") plan.mutable_job()->set_max_restarts(1 + input->Below(3));
  plan.mutable_job()->set_grace_ms(10 * input->Byte());
  plan.set_join_timeout_ms(30'000);
  const uint32_t nodes = 1 + input->Below(4);
  std::set<uint32_t> sizes;
  uint32_t next_rank = 0;
  for (uint32_t node = 0; node < nodes; ++node) {
    const uint32_t ranks = 1 + input->Below(3);
    *plan.add_placements() = MakePlacement(node, next_rank, ranks);
    next_rank += ranks;
    sizes.insert(ranks);
  }
  const uint32_t spares = input->Below(3);
  for (uint32_t i = 0; i < spares; ++i) {
    v1::SpareNode& spare = *plan.add_spares();
    spare.set_name("spare" + std::to_string(i));
    for (const uint32_t ranks : sizes) *spare.add_placements() = MakePlacement(0, 0, ranks);
  }
  plan.set_min_nodes(input->Below(nodes + 1));
  return plan;
}

// --- what an agent may say ---

void TakeCall(FuzzInput* input, v1::CallState* call) {
  call->set_present(input->Bool());
  call->set_rank(input->Number32());
  call->set_group(input->Number());
  call->set_epoch(input->Number());
  call->set_sequence(input->Number());
  call->set_call(input->Text());
  call->set_site(input->Text());
  call->set_done(input->Bool());
  call->set_failed(input->Bool());
  call->set_signature(input->Number());
  call->set_age_ms(input->Number());
  call->set_sequence_seen(input->Bool());
}

void TakeExit(FuzzInput* input, v1::RankExit* exit) {
  exit->set_rank(input->Number32());
  exit->set_pid(input->Signed32());
  exit->set_exit_code(input->Signed32());
  exit->set_signal(input->Signed32());
  const uint8_t flags = input->Byte();
  exit->set_started((flags & 1) == 0);
  exit->set_killed_by_us((flags & 2) != 0);
  exit->set_finalized((flags & 4) != 0);
  exit->set_lost((flags & 8) != 0);
  exit->set_passed_on((flags & 16) != 0);
  exit->set_asked_to_end((flags & 16) != 0);
  exit->set_error(input->Text());
  if ((flags & 32) != 0) exit->set_out_of_memory("out of memory");
  if ((flags & 64) != 0) exit->add_last_lines(input->Text());
  if ((flags & 128) != 0) TakeCall(input, exit->mutable_doing());
}

void TakeOffer(FuzzInput* input, v1::NodeOffer* offer) {
  const uint32_t protocol = input->Below(8);
  offer->set_protocol(protocol == 7 ? input->Number32() : kRendezvousProtocol);
  offer->set_node(input->Number32());
  offer->set_name(input->Text());
  offer->set_address("10.0.0.1");
  offer->set_master_port(input->Number32());
  const uint32_t devices = input->Below(4);
  for (uint32_t i = 0; i < devices; ++i) offer->add_devices()->set_node_index(input->Number32());
}

v1::FromAgent TakeMessage(FuzzInput* input) {
  v1::FromAgent message;
  switch (input->Below(12)) {
    case 0:
      TakeOffer(input, message.mutable_join());
      break;
    case 1: {
      v1::RanksStarted& started = *message.mutable_started();
      for (uint32_t i = input->Below(3); i > 0; --i) {
        v1::RankPid& pid = *started.add_pids();
        pid.set_rank(input->Number32());
        pid.set_pid(input->Signed32());
      }
      for (uint32_t i = input->Below(3); i > 0; --i) TakeExit(input, started.add_failed());
      break;
    }
    case 2:
      TakeExit(input, message.mutable_exit());
      break;
    case 3:
      message.mutable_beat()->set_number(input->Number());
      break;
    case 4:
      message.mutable_put()->set_request(input->Number());
      message.mutable_put()->set_key(input->Text());
      message.mutable_put()->set_value(input->Text());
      break;
    case 5:
      message.mutable_get()->set_request(input->Number());
      message.mutable_get()->set_key(input->Text());
      message.mutable_get()->set_timeout_ms(input->Number32());
      break;
    case 6:
      message.mutable_stall()->set_group(input->Number());
      message.mutable_stall()->set_epoch(input->Number());
      message.mutable_stall()->set_sequence(input->Number());
      TakeMembers(input, message.mutable_stall()->mutable_members());
      message.mutable_stall()->set_expired(input->Bool());
      break;
    case 7:
      TakeFailure(input, message.mutable_group_failure());
      break;
    case 8:
      message.mutable_inspect()->set_request(input->Number());
      for (uint32_t i = input->Below(4); i > 0; --i) TakeCall(input, message.mutable_inspect()->add_calls());
      break;
    case 9:
      message.mutable_done()->set_node(input->Number32());
      message.mutable_done()->set_master_port(input->Number32());
      break;
    case 10:
      message.mutable_stop()->set_reason(input->Text());
      message.mutable_stop()->set_exit_code(input->Signed32());
      break;
    default:  // bytes as they come; what is no message never gets to the machine
      if (!message.ParseFromString(input->Text())) message.Clear();
  }
  return message;
}

// --- the world around the machine ---

class World {
 public:
  explicit World(v1::JobPlan plan)
      : max_restarts_(plan.job().max_restarts()), now_(std::chrono::hours(1)), rendezvous_(std::move(plan), now_) {
    for (ConnectionId& connection : connections_) connection = next_++;
  }

  void Step(FuzzInput* input) {
    const uint32_t what = input->Below(16);
    const size_t who = input->Below(kConnections);
    switch (what) {
      case 10:
        return Disconnect(who, input->Text());
      case 11:
        stopped_ = true;
        return Take(rendezvous_.Handle(StopRequested{input->Text(), 1 + static_cast<int>(input->Byte())}, now_));
      case 12:
        return Take(rendezvous_.Handle(AgentEnded{input->Number32()}, now_));
      case 13:
        return Pass(input->Byte());
      case 14:  // this process was stopped
        now_ += milliseconds(input->Number() % 10'000);
        return;
      case 15:  // time that is too short for anything
        now_ += std::chrono::microseconds(input->Byte());
        return;
      default:
        return Say(who, TakeMessage(input));
    }
  }

  // Nobody is left: the job is over, at the latest when nobody has joined in time.
  void End() {
    for (size_t who = 0; who < kConnections; ++who) Disconnect(who, "the end");
    for (int ticks = 0; !rendezvous_.finished(); ++ticks) {
      FuzzCheck(ticks < 1000);
      Pass(1);
    }
    FuzzCheck(finishes_ == 1);
  }

 private:
  void Say(size_t who, v1::FromAgent message) {
    stopped_ |= message.has_stop();
    open_.insert(connections_[who]);
    Take(rendezvous_.Handle(Received{connections_[who], std::move(message)}, now_));
  }
  void Disconnect(size_t who, std::string reason) {
    open_.erase(connections_[who]);
    Take(rendezvous_.Handle(Disconnected{connections_[who], std::move(reason)}, now_));
    connections_[who] = next_++;
  }
  void Pass(int ticks) {
    for (int i = 0; i < ticks && !rendezvous_.finished(); ++i) {
      const TimePoint due = rendezvous_.NextTick();
      FuzzCheck(due <= now_ + milliseconds(1000));  // it looks for silent nodes
      idle_ticks_ = due <= now_ + std::chrono::microseconds(1) ? idle_ticks_ + 1 : 0;
      FuzzCheck(idle_ticks_ < 64);
      now_ = std::max(now_, due);
      Take(rendezvous_.Tick(now_));
    }
  }

  void Take(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      FuzzCheck(finishes_ == 0 || std::holds_alternative<Send>(action) || std::holds_alternative<Close>(action));
      std::visit([this](const auto& it) { On(it); }, action);
    }
    FuzzCheck(rendezvous_.finished() == (finishes_ > 0));
  }
  void On(const Send& send) {
    FuzzCheck(open_.count(send.to) > 0 && send.message != nullptr);
    FuzzCheck(send.message->kind_case() != v1::ToAgent::KIND_NOT_SET);
    if (!send.message->has_assignment()) return;
    const v1::Assignment& assignment = send.message->assignment();
    FuzzCheck(assignment.epoch() == 1 + restarts_ && !assignment.placement().ranks().empty());
    FuzzCheck(assignment.placement().ranks().rbegin()->rank() < assignment.world_size());
  }
  void On(const Close& close) { FuzzCheck(open_.count(close.connection) > 0); }
  void On(const Restart& restart) {
    FuzzCheck(restart.restart.number() == ++restarts_ && restarts_ <= max_restarts_);
    FuzzCheck(restart.restart.report().exit_code() != 0 && !restart.restart.report().headline().empty());
  }
  void On(const StandbysWanted&) { FuzzCheck(false); }  // there are none
  void On(const NodeLost& lost) { FuzzCheck(!lost.lost.text().empty()); }
  void On(const MembersChanged& changed) {
    FuzzCheck(!changed.members.changes().empty());
    FuzzCheck(changed.members.agents_size() == changed.members.placements_size());
    uint32_t rank = 0;
    for (const v1::NodePlacement& placement : changed.members.placements()) {
      for (const v1::RankPlacement& placed : placement.ranks()) FuzzCheck(placed.rank() == rank++);
    }
  }
  void On(const Finish& finish) {
    ++finishes_;
    if (stopped_) return;  // whoever asked for that chose reason and status
    FuzzCheck((finish.report.exit_code() == 0) == finish.report.headline().empty());
    for (const v1::RankExit& exit : finish.report.exits())
      FuzzCheck(!IsFailure(exit) || finish.report.exit_code() != 0);
  }

  const uint32_t max_restarts_;
  TimePoint now_;
  Rendezvous rendezvous_;
  ConnectionId next_ = 1;
  ConnectionId connections_[kConnections] = {};
  std::set<ConnectionId> open_;  // those that have spoken and have not ended
  uint32_t restarts_ = 0;
  int finishes_ = 0;
  int idle_ticks_ = 0;
  bool stopped_ = false;
};

void Try(FuzzInput input) {
  v1::JobPlan plan = TakePlan(&input);
  FuzzCheck(CheckPlan(plan).ok());
  World world(std::move(plan));
  for (int events = 0; !input.empty() && events < kMaxEvents; ++events) world.Step(&input);
  world.End();
}

}  // namespace
}  // namespace cohort::launcher

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cohort::launcher::Try(cohort::FuzzInput(data, size));
  return 0;
}
