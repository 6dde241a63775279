// A standby's copy of the rendezvous under arbitrary pages of a log, and the host that it then becomes under arbitrary
// conversations. Each input is a sequence of pages, most of them near to what a host sends, an order to take over, and
// a sequence of events; whatever they are:
//
//   - a copy acknowledges what it has, which never gets less within a term, and carries out no more than that;
//   - what it has carried out it never takes back;
//   - a host sends only to connections of its own, asks to be called in time, and ends when all agents are gone.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/launcher/control/standby/replicated_rendezvous.h"
#include "cohort/launcher/control/standby/standby.h"
#include "tests/launcher/control/fuzz_conversation.h"
#include "tests/support/fuzz_input.h"

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

constexpr int kMaxPages = 200;
constexpr int kMaxEvents = 500;
constexpr uint32_t kConnections = 6;
constexpr uint64_t kMostTerms = uint64_t{1} << 31;  // a copy takes none of such a host

v1::ToNode TakeLauncherMessage(FuzzInput* input) {
  v1::ToNode message;
  message.set_number(input->Number());
  switch (input->Below(3)) {
    case 0:
      message.mutable_stop()->set_reason(input->Text());
      message.mutable_stop()->set_exit_code(input->Signed32());
      message.mutable_stop()->set_signal(input->Signed32());
      break;
    case 1:
      message.set_notice_signal(input->Signed32());
      break;
    default:
      message.mutable_agent_ended()->set_agent(input->Number32());
      message.mutable_agent_ended()->set_text(input->Text());
  }
  return message;
}

// --- what a host before may have sent ---

class Pages {
 public:
  v1::LogPage Take(FuzzInput* input) {
    v1::LogPage page;
    if (input->Below(32) == 0) ++term_;
    page.set_term(input->Below(32) == 0 ? input->Number() : term_);
    if (page.term() < kMostTerms) latest_ = std::max(latest_, page.term());
    for (uint32_t i = input->Below(4); i > 0; --i) *page.add_entries() = TakeEntry(input);
    page.set_committed(input->Bool() ? next_ - 1 : input->Number());
    page.set_forget(input->Bool() ? 0 : input->Number());
    return page;
  }

  // dlaunch's next term is later than all.
  uint64_t latest() const { return latest_; }

 private:
  v1::LogEntry TakeEntry(FuzzInput* input) {
    v1::LogEntry entry;
    const uint8_t odd = input->Byte();
    if (odd % 16 == 1) next_ -= std::min<uint64_t>(next_ - 1, input->Below(3));  // known already
    entry.set_number(odd % 64 == 2 ? input->Number() : next_++);
    time_ns_ += int64_t{input->Byte()} * 10'000'000;
    entry.set_time_ns(odd % 64 == 3 ? static_cast<int64_t>(input->Number()) : time_ns_);
    entry.set_connection(odd % 64 == 4 ? input->Number() : 1 + input->Below(kConnections));
    const uint32_t kind = entry.number() == 1 && odd % 64 != 5 ? 0 : input->Below(8);
    if (kind == 0) *entry.mutable_start() = TakeStart(input);
    if (kind == 1) entry.set_tick(true);
    if (kind == 2) entry.set_disconnected(input->Text());
    if (kind == 3) entry.set_resumed(input->Number());
    if (kind == 4) entry.set_taken_over(true);
    if (kind == 5) *entry.mutable_launcher() = TakeLauncherMessage(input);
    if (kind >= 6) *entry.mutable_received() = TakeMessage(input);
    return entry;
  }
  static v1::JobPlan TakeStart(FuzzInput* input) {
    v1::JobPlan plan = TakePlan(input);
    plan.set_standbys(input->Below(4));
    if (input->Below(16) == 0) plan.mutable_placements(0)->set_node(input->Number32());
    return plan;
  }

  uint64_t term_ = 1;
  uint64_t latest_ = 1;
  uint64_t next_ = 1;
  int64_t time_ns_ = std::chrono::nanoseconds(std::chrono::hours(1)).count();
};

// --- the host that the copy becomes ---

class World {
 public:
  World(StandbyCopy copy, const v1::TakeOver& order, TimePoint now)
      : first_(FirstConnection(order.term())), next_(first_), now_(now), host_(std::move(copy), order, now) {
    for (ConnectionId& connection : connections_) connection = next_++;
    Take(host_.Tick(now_));
  }

  void Step(FuzzInput* input) {
    const uint32_t what = input->Below(16);
    const uint32_t who = input->Below(kConnections);
    if (what == 10) return Disconnect(who, input->Text());
    if (what == 11) return Take(host_.Handle(StopRequested{input->Text(), 1 + static_cast<int>(input->Byte())}, now_));
    if (what == 12) return Take(host_.Handle(AgentEnded{input->Number32()}, now_));
    if (what == 13) return Pass(input->Byte());
    if (what == 14) now_ += milliseconds(input->Number() % 10'000);  // this process was stopped
    if (what == 15) return Say(who, TakeResume(input));
    Say(who, TakeMessage(input));
  }

  // Nobody is left, and dlaunch knows.
  void End() {
    for (uint32_t who = 0; who < kConnections; ++who) Disconnect(who, "the end");
    for (uint32_t agent = 0; agent < 8; ++agent) Take(host_.Handle(AgentEnded{agent, "the end"}, now_));
    for (int ticks = 0; !host_.finished(); ++ticks) {
      FuzzCheck(ticks < 2000);
      Pass(1);
    }
  }

 private:
  static v1::FromAgent TakeResume(FuzzInput* input) {
    v1::FromAgent message;
    TakeOffer(input, message.mutable_join());
    message.mutable_join()->mutable_resume()->set_taken(input->Number());
    if (input->Bool()) message.mutable_join()->mutable_resume()->set_applied(input->Number());
    return message;
  }
  void Say(uint32_t who, v1::FromAgent message) {
    Take(host_.Handle(Received{connections_[who], std::move(message)}, now_));
  }
  void Disconnect(uint32_t who, std::string reason) {
    Take(host_.Handle(Disconnected{connections_[who], std::move(reason)}, now_));
    connections_[who] = next_++;
  }
  void Pass(int ticks) {
    for (int i = 0; i < ticks && !host_.finished(); ++i) {
      const TimePoint due = host_.NextTick();
      FuzzCheck(due <= now_ + milliseconds(1000));
      idle_ticks_ = due <= now_ + std::chrono::microseconds(1) ? idle_ticks_ + 1 : 0;
      FuzzCheck(idle_ticks_ < 64);
      now_ = std::max(now_, due);
      Take(host_.Tick(now_));
    }
  }
  // dlaunch notes what it is asked to.
  void Take(std::vector<Action> actions) {
    while (!actions.empty()) {
      std::vector<Action> more;
      for (const Action& action : actions) {
        if (const Send* const send = std::get_if<Send>(&action)) {
          // It may have ended since: what it said before waited for a standby.
          FuzzCheck(send->to >= first_ && send->to < next_);
          FuzzCheck(send->message->kind_case() != v1::ToAgent::KIND_NOT_SET);
        } else if (const auto* wanted = std::get_if<StandbysWanted>(&action)) {
          std::vector<Action> after = host_.Handle(StandbysNoted{wanted->standbys}, now_);
          more.insert(more.end(), after.begin(), after.end());
        }
      }
      actions = std::move(more);
    }
  }

  const ConnectionId first_;
  ConnectionId next_;
  TimePoint now_;
  ReplicatedRendezvous host_;
  ConnectionId connections_[kConnections] = {};
  int idle_ticks_ = 0;
};

void Try(FuzzInput input) {
  const TimePoint start{std::chrono::hours(5)};
  StandbyCopy copy;
  Pages pages;
  v1::LogAck last;
  for (int i = 0; i < kMaxPages && input.Below(16) != 0; ++i) {
    const std::optional<v1::LogAck> ack = copy.OnPage(pages.Take(&input), start + milliseconds(i));
    FuzzCheck(copy.applied() >= last.applied());
    if (!ack) continue;
    FuzzCheck(ack->term() >= last.term() && ack->applied() <= ack->received());
    FuzzCheck(ack->term() > last.term() || ack->received() >= last.received());
    last = *ack;
  }
  if (last.received() == 0) return;  // it would not be noted
  v1::TakeOver order;
  order.set_term(pages.latest() + 1);
  order.set_heard(input.Number32());
  for (uint32_t i = input.Below(3); i > 0; --i) order.add_standbys(input.Number32());
  World world(std::move(copy), order, start + std::chrono::seconds(1));
  for (int events = 0; !input.empty() && events < kMaxEvents; ++events) world.Step(&input);
  world.End();
}

}  // namespace
}  // namespace cohort::launcher

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cohort::launcher::Try(cohort::FuzzInput(data, size));
  return 0;
}
