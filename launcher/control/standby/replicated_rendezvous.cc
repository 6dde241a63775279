#include "cohort/launcher/control/standby/replicated_rendezvous.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <variant>

namespace cohort::launcher {
namespace {

using std::chrono::milliseconds;

// Being called this much later than asked means that this process was stopped: acknowledgements may not be read yet.
constexpr milliseconds kOwnStall{500};
constexpr size_t kPageBytes = 1 << 20;

}  // namespace

ReplicatedRendezvous::ReplicatedRendezvous(v1::JobPlan plan, TimePoint now) : term_(1), now_(now) {
  for (uint32_t agent = 1; agent <= plan.standbys(); ++agent) standbys_[agent];
  v1::LogEntry start;
  *start.mutable_start() = std::move(plan);
  Append(std::move(start));
  Commit();
  promised_ = NextTick();
}

ReplicatedRendezvous::ReplicatedRendezvous(StandbyCopy copy, const v1::TakeOver& order, TimePoint now)
    : term_(order.term()),
      copy_(std::move(copy.copy_)),
      entries_(std::move(copy.entries_)),
      end_(entries_.empty() ? copy.end_ : entries_.back().number()),
      committed_(copy_.applied()),
      now_(now) {
  log_time_ = entries_.empty() ? copy_.now() : TimeOf(entries_.back());
  clock_ahead_ = log_time_ - copy.arrived_;
  for (const uint32_t agent : order.standbys()) {
    Standby& standby = standbys_[agent];
    standby.needed = standby.noted = true;
    standby.since = now + kCopyTimeout;  // it has yet to come
  }
  remember_until_ = now + 2 * kCopyTimeout;
  actions_ = copy_.ToldSince(order.heard() + 1);
  v1::LogEntry taken_over;
  taken_over.set_taken_over(true);
  Append(std::move(taken_over));
  inherited_ = end_;
  Commit();
  promised_ = NextTick();
}

void ReplicatedRendezvous::Begin(TimePoint now) {
  if (now > promised_ + kOwnStall) {
    for (auto& [agent, standby] : standbys_) standby.since = std::max(standby.since, now);
  }
  now_ = now;
}

std::vector<Action> ReplicatedRendezvous::Handle(Event event, TimePoint now) {
  Begin(now);
  if (const auto* received = std::get_if<Received>(&event)) On(*received);
  if (const auto* disconnected = std::get_if<Disconnected>(&event)) On(*disconnected);
  if (const auto* noted = std::get_if<StandbysNoted>(&event)) On(*noted);
  if (const auto* ended = std::get_if<AgentEnded>(&event)) On(*ended);
  v1::ToNode message;
  if (const auto* stop = std::get_if<StopRequested>(&event)) {
    message.set_number(stop->number);
    message.mutable_stop()->set_reason(stop->reason);
    message.mutable_stop()->set_exit_code(stop->exit_code);
    message.mutable_stop()->set_signal(stop->signal);
    AppendLauncher(std::move(message));
  } else if (const auto* notice = std::get_if<NoticeGiven>(&event)) {
    message.set_number(notice->number);
    message.set_notice_signal(notice->signal);
    AppendLauncher(std::move(message));
  }
  Commit();
  std::vector<Action> actions = std::exchange(actions_, {});
  promised_ = NextTick();
  return actions;
}

std::vector<Action> ReplicatedRendezvous::Tick(TimePoint now) {
  Begin(now);
  DropLate();
  if (tick_ <= copy_.applied() && LogTime() >= copy_.NextTick()) {
    v1::LogEntry tick;
    tick.set_tick(true);
    Append(std::move(tick));
    tick_ = end_;
  }
  Commit();
  std::vector<Action> actions = std::exchange(actions_, {});
  promised_ = NextTick();
  return actions;
}

TimePoint ReplicatedRendezvous::NextTick() const {
  TimePoint next = now_ + std::chrono::seconds(1);
  if (!actions_.empty()) return now_;
  // Before the log's start is carried out its time is the end of all times, to which nothing can be added.
  const auto wait = copy_.NextTick() - LogTime();
  if (tick_ <= copy_.applied() && wait < next - now_) next = now_ + wait;
  for (const auto& [agent, standby] : standbys_) {
    if (standby.needed && standby.dropped == 0 && standby.received < end_)
      next = std::min(next, standby.since + kCopyTimeout);
  }
  return std::max(next, now_);
}

// --- what happens ---

void ReplicatedRendezvous::On(const Received& event) {
  if (event.message.has_join()) return OnJoin(event);
  if (event.message.has_logged()) return OnAck(event.from, event.message.logged());
  const ConnectionId logged = LoggedOf(event.from);
  if (logged == 0) {  // it has not been let in
    for (Early& early : early_) {
      if (early.from == event.from && event.message.has_beat()) early.beat = event.message;
    }
    return;
  }
  v1::LogEntry entry;
  entry.set_connection(logged);
  *entry.mutable_received() = event.message;
  Append(std::move(entry));
}

void ReplicatedRendezvous::OnJoin(const Received& event) {
  const v1::NodeOffer& offer = event.message.join();
  if (offer.has_resume()) {
    (void)OnResume(event.from, offer);
    return;
  }
  v1::LogEntry entry;
  entry.set_connection(event.from);
  *entry.mutable_received() = event.message;
  Append(std::move(entry));
  const auto standby = standbys_.find(offer.node());
  if (standby == standbys_.end() || standby->second.connection.has_value()) return;
  Attach(&standby->second, event.from, 0);
}

bool ReplicatedRendezvous::OnResume(ConnectionId from, const v1::NodeOffer& offer) {
  if (offer.resume().has_applied()) ReadmitStandby(from, offer);
  if (copy_.applied() < inherited_) {
    early_.push_back({from, offer, std::nullopt});
    return false;
  }
  const std::optional<ConnectionId> logged = copy_.ConnectionOf(offer.node());
  if (logged.has_value() && copy_.Closed(*logged) && !copy_.finished()) {
    v1::ToAgent message;
    message.set_refused("node " + std::to_string(offer.node()) + " was given up");
    actions_.emplace_back(Send{from, std::make_shared<const v1::ToAgent>(std::move(message))});
    actions_.emplace_back(Close{from});
    return false;
  }
  v1::LogEntry entry;
  entry.set_connection(logged.value_or(from));
  if (logged.has_value()) {
    std::erase_if(logged_of_, [&logged](const auto& before) { return before.second == *logged; });
    logged_of_[from] = *logged;
    arriving_[end_ + 1] = from;
    entry.set_resumed(offer.resume().taken());
  } else {
    *entry.mutable_received()->mutable_join() = offer;
  }
  Append(std::move(entry));
  return true;
}

void ReplicatedRendezvous::On(const Disconnected& event) {
  for (auto& [agent, standby] : standbys_) {
    if (standby.connection == event.from) Drop(&standby);
  }
  std::erase_if(early_, [&event](const Early& early) { return early.from == event.from; });
  const ConnectionId logged = LoggedOf(event.from);
  if (logged == 0) return;
  v1::LogEntry entry;
  entry.set_connection(logged);
  entry.set_disconnected(event.reason);
  Append(std::move(entry));
}

void ReplicatedRendezvous::On(const AgentEnded& event) {
  v1::ToNode message;
  message.set_number(event.number);
  message.mutable_agent_ended()->set_agent(event.agent);
  message.mutable_agent_ended()->set_text(event.text);
  AppendLauncher(std::move(message));
  // It will not come to this host, and so has no stream whose end would tell.
  const std::optional<ConnectionId> logged = copy_.ConnectionOf(event.agent);
  if (!logged.has_value() || HereOf(*logged).has_value() || copy_.Closed(*logged)) return;
  v1::LogEntry entry;
  entry.set_connection(*logged);
  entry.set_disconnected(event.text);
  Append(std::move(entry));
}

// --- standbys ---

// One that could take over from the host before, or that was not in sync yet when that one was lost.
void ReplicatedRendezvous::ReadmitStandby(ConnectionId from, const v1::NodeOffer& offer) {
  if (offer.node() == 0 || offer.node() > copy_.standbys()) return;
  Standby& standby = standbys_[offer.node()];
  if (standby.dropped == 0 && !standby.connection.has_value()) Attach(&standby, from, offer.resume().applied());
  if (!standby.needed) standbys_.erase(offer.node());
}

void ReplicatedRendezvous::Attach(Standby* standby, ConnectionId connection, uint64_t applied) {
  const uint64_t first = entries_.empty() ? end_ + 1 : entries_.front().number();
  if (applied + 1 < first || applied > end_) return;  // what it lacks is not there any more
  standby->connection = connection;
  standby->received = standby->applied = applied;
  standby->needed = true;
  standby->since_entry = end_;
  standby->since = now_;
  SendPage(*standby, applied);
}

void ReplicatedRendezvous::OnAck(ConnectionId from, const v1::LogAck& ack) {
  if (ack.term() != term_ || ack.received() > end_) return;
  for (auto& [agent, standby] : standbys_) {
    if (standby.connection != from) continue;
    standby.received = std::max(standby.received, ack.received());
    standby.applied = std::max(standby.applied, ack.applied());
    standby.since = now_;
    // It has every entry that was acted on without it, also by earlier hosts. All else waits for its acknowledgement.
    const bool whole = standby.received >= std::max(committed_, inherited_) && standby.dropped == 0;
    if (!whole || standby.wanted != 0 || standby.noted) continue;
    standby.wanted = wishes_ + 1;
    TellWanted();
  }
}

void ReplicatedRendezvous::DropLate() {
  for (auto& [agent, standby] : standbys_) {
    if (standby.needed && standby.received < end_ && now_ >= standby.since + kCopyTimeout) Drop(&standby);
  }
}

void ReplicatedRendezvous::Drop(Standby* standby) {
  if (standby->dropped != 0) return;
  standby->connection.reset();
  standby->wanted = 0;
  standby->noted = false;
  standby->dropped = TellWanted();
}

uint64_t ReplicatedRendezvous::TellWanted() {
  StandbysWanted wanted;
  wanted.standbys.set_number(++wishes_);
  wanted.standbys.set_term(term_);
  for (const auto& [agent, standby] : standbys_) {
    if (standby.wanted != 0 || standby.noted) wanted.standbys.add_agents(agent);
  }
  actions_.emplace_back(std::move(wanted));
  return wishes_;
}

// Standbys that dlaunch was asked to do without by then can't take over any more.
void ReplicatedRendezvous::On(const StandbysNoted& event) {
  if (event.standbys.term() != term_) return;
  std::erase_if(standbys_, [&event](const auto& standby) {
    return standby.second.dropped != 0 && standby.second.dropped <= event.standbys.number();
  });
  for (auto& [agent, standby] : standbys_) {
    if (standby.wanted != 0 && standby.wanted <= event.standbys.number()) standby.noted = true;
  }
}

// --- the log ---

void ReplicatedRendezvous::Append(v1::LogEntry entry) {
  log_time_ = std::max(LogTime(), log_time_ + std::chrono::nanoseconds(1));
  entry.set_number(++end_);
  entry.set_time_ns(NanosecondsOf(log_time_));
  for (auto& [agent, standby] : standbys_) {
    if (standby.received + 1 == end_) standby.since = now_;
  }
  entries_.push_back(std::move(entry));
  for (auto& [agent, standby] : standbys_) {
    if (standby.connection.has_value()) SendPage(standby, end_ - 1);
  }
}

void ReplicatedRendezvous::AppendLauncher(v1::ToNode message) {
  v1::LogEntry entry;
  *entry.mutable_launcher() = std::move(message);
  Append(std::move(entry));
}

// All entries after that one, in pages that a stream takes.
void ReplicatedRendezvous::SendPage(const Standby& standby, uint64_t after) {
  const auto send = [&](v1::ToAgent page) {
    page.mutable_log()->set_term(term_);
    page.mutable_log()->set_committed(committed_);
    uint64_t forget = now_ < remember_until_ ? 0 : committed_;
    for (const auto& [agent, other] : standbys_) forget = std::min(forget, other.applied);
    page.mutable_log()->set_forget(forget);
    actions_.emplace_back(Send{*standby.connection, std::make_shared<const v1::ToAgent>(std::move(page))});
  };
  v1::ToAgent page;
  size_t bytes = 0;
  for (auto entry = std::lower_bound(entries_.begin(), entries_.end(), after + 1,
                                     [](const v1::LogEntry& e, uint64_t number) { return e.number() < number; });
       entry != entries_.end(); ++entry) {
    const size_t size = entry->ByteSizeLong();
    if (bytes > 0 && bytes + size > kPageBytes) {
      send(std::exchange(page, {}));
      bytes = 0;
    }
    bytes += size;
    *page.mutable_log()->add_entries() = *entry;
  }
  send(std::move(page));
}

void ReplicatedRendezvous::Commit() {
  uint64_t sure = end_;
  uint64_t forget = end_;
  for (const auto& [agent, standby] : standbys_) {
    if (standby.needed) sure = std::min(sure, standby.received);
    if (standby.needed && !standby.noted) sure = std::min(sure, standby.since_entry - 1);
    forget = std::min(forget, standby.applied);
  }
  if (sure > committed_) {
    committed_ = sure;
    const uint64_t first = copy_.applied() + 1;
    auto entry = std::lower_bound(entries_.begin(), entries_.end(), first,
                                  [](const v1::LogEntry& e, uint64_t number) { return e.number() < number; });
    for (; entry != entries_.end() && entry->number() <= committed_; ++entry) {
      // Not before: what is said to an agent until then is kept, and said again as it arrives.
      if (const auto arrived = arriving_.extract(entry->number())) here_of_[entry->connection()] = arrived.mapped();
      Act(copy_.Apply(*entry));
    }
  }
  forget = std::min(forget, copy_.applied());
  while (now_ >= remember_until_ && !entries_.empty() && entries_.front().number() <= forget) entries_.pop_front();
  if (copy_.applied() < inherited_ || early_.empty()) return;
  for (Early& early : std::exchange(early_, {})) {
    if (OnResume(early.from, early.offer) && early.beat.has_value()) On(Received{early.from, *std::move(early.beat)});
  }
  Commit();
}

void ReplicatedRendezvous::Act(std::vector<Action> actions) {
  for (Action& action : actions) {
    if (Send* const send = std::get_if<Send>(&action)) {
      const std::optional<ConnectionId> here = HereOf(send->to);
      if (!here.has_value()) continue;  // kept until it comes
      send->to = *here;
    } else if (Close* const close = std::get_if<Close>(&action)) {
      const std::optional<ConnectionId> here = HereOf(close->connection);
      if (!here.has_value()) continue;
      close->connection = *here;
    }
    actions_.push_back(std::move(action));
  }
}

std::optional<ConnectionId> ReplicatedRendezvous::HereOf(ConnectionId logged) const {
  if (logged >= FirstConnection(term_)) return logged;
  const auto found = here_of_.find(logged);
  if (found == here_of_.end()) return std::nullopt;
  return found->second;
}

// 0: of nobody that the log knows.
ConnectionId ReplicatedRendezvous::LoggedOf(ConnectionId here) const {
  const auto found = logged_of_.find(here);
  if (found != logged_of_.end()) return found->second;
  const bool early = std::any_of(early_.begin(), early_.end(), [here](const Early& e) { return e.from == here; });
  return early ? 0 : here;
}

std::unique_ptr<EventMachine> FirstHost(v1::JobPlan plan, TimePoint now) {
  if (plan.standbys() > 0) return std::make_unique<ReplicatedRendezvous>(std::move(plan), now);
  return std::make_unique<Rendezvous>(std::move(plan), now);
}

}  // namespace cohort::launcher
