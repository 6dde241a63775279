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

#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/control/roster.h"
#include "tests/launcher/control/fuzz_conversation.h"
#include "tests/support/fuzz_input.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

constexpr size_t kConnections = 6;  // at a time
constexpr int kMaxEvents = 2000;

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
      case 9:
        return Take(rendezvous_.Handle(NoticeGiven{.signal = input->Signed32()}, now_));
      case 10:
        return Disconnect(who, input->Text());
      case 11:
        stopped_ = true;
        return Take(rendezvous_.Handle(StopRequested{.reason = input->Text(),
                                                     .exit_code = 1 + static_cast<int>(input->Byte()),
                                                     .signal = input->Bool() ? 15 : 0},
                                       now_));
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
  void On(const RanksLost& lost) { FuzzCheck(!lost.text.empty()); }
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
    if (stopped_) return;  // the message that asked for that chose reason and status
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
