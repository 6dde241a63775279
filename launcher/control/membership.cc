// The part of the rendezvous that knows who belongs to the job: agents that join, nodes and spares that are lost, and
// who is in whose place in the next epoch.
#include <algorithm>
#include <chrono>
#include <utility>

#include "cohort/launcher/base/exit_status.h"
#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/control/lease.h"
#include "cohort/launcher/control/rendezvous_machine.h"

namespace cohort::launcher {

void Rendezvous::Machine::AnswerBeat(const Received& event) {
  const uint64_t number = event.message.beat().number();
  if (number == 0) return;
  v1::ToAgent answer;
  answer.mutable_beat()->set_number(number);
  SendTo(event.from, std::move(answer));
}

// Of a spare, or of somebody who has yet to join.
void Rendezvous::Machine::OnSpeechOfUnknown(const Received& event) {
  const auto spare = FindSpare(event.from);
  if (spare == spares_.end()) {
    if (event.message.has_join()) {
      OnJoin(event.from, event.message.join());
    } else {
      Refuse(event.from, "the first message of a connection must be an offer to join");
    }
    return;
  }
  spare->node.heard = now_;
  if (phase_ == Phase::kFinished) return;
  if (event.message.has_beat()) return AnswerBeat(event);
  Refuse(event.from, "a spare node spoke of ranks before it was given any");
  LoseSpare(event.from, "it spoke of ranks before it was given any");
}

std::string Rendezvous::Machine::WhyNotTaken(const v1::NodeOffer& offer) const {
  std::string why = roster_.WhyUnfit(offer);
  if (!why.empty()) return why;
  const bool is_spare = offer.node() >= first_spare_;
  const std::string claim = "; another agent at " + offer.address() + " claims to be it as well";
  if (is_spare && phase_ != Phase::kFinished) {
    return joined_spares_.count(offer.node()) > 0
               ? "spare node " + std::to_string(offer.node()) + " has already joined" + claim
               : "";
  }
  if (phase_ == Phase::kGathering) {
    const Roster::Node& node = roster_.node(offer.node());
    return node.joined ? node.name + " has already joined, from " + node.address + claim : "";
  }
  return phase_ == Phase::kFinished ? "the job is over"
                                    : "node " + std::to_string(offer.node()) + " has already joined, or was given up";
}

void Rendezvous::Machine::OnJoin(ConnectionId from, const v1::NodeOffer& offer) {
  const bool is_spare = offer.node() >= first_spare_;
  if (const std::string why = WhyNotTaken(offer); !why.empty()) {
    if (phase_ == Phase::kGathering && !is_spare) roster_.node(offer.node()).refusal = why;
    return Refuse(from, why);
  }
  Spare spare{.agent = offer.node(), .connection = from, .node = {}};
  Roster::Node& node = is_spare ? spare.node : roster_.node(offer.node());
  node.joined = true;
  node.agent = offer.node();
  if (!offer.name().empty()) node.name = offer.name();
  node.address = offer.address();
  node.master_port = offer.master_port();
  node.heard = now_;
  if (is_spare) {
    joined_spares_.insert(offer.node());
    spares_.push_back(std::move(spare));
    return;
  }
  node_of_[from] = offer.node();
  connection_of_[offer.node()] = from;
  if (node_of_.size() == roster_.node_count()) AssignAll();
}

void Rendezvous::Machine::On(const Disconnected& event) {
  const std::string how = event.reason.empty() ? "its connection has ended" : event.reason;
  LoseSpare(event.from, how);
  const auto known = node_of_.find(event.from);
  if (known != node_of_.end()) LoseNode(known->second, how, now_);
}

void Rendezvous::Machine::On(const AgentEnded& event) {
  ended_agents_.insert(event.agent);
  // One that has not joined has no connection whose end would tell.
  const bool awaited = phase_ == Phase::kGathering && event.agent < first_spare_ && !roster_.node(event.agent).joined;
  if (awaited) FinishUnstarted(event.text + ", before the job had started", kExitLauncher);
  if (phase_ == Phase::kPausing) (void)FinishIfLacking(event.text);
}

// Whoever is given up is told so: with standbys, the mere end of its stream would say that the host is lost.
void Rendezvous::Machine::FindSilentNodes() {
  constexpr char kSilent[] = "it was silent for 3.4 s";
  constexpr char kGivenUp[] = "the node was given up, since it was silent for 3.4 s";
  for (uint32_t i = 0; i < roster_.node_count(); ++i) {
    const Roster::Node& node = roster_.node(i);
    if (!connection_of_[i].has_value() || now_ - node.heard < kSilenceTimeout) continue;
    const ConnectionId connection = *connection_of_[i];
    LoseNode(i, kSilent, node.heard);
    Refuse(connection, kGivenUp);
    if (phase_ == Phase::kFinished) return;
  }
  for (const Spare& spare : std::vector<Spare>(spares_)) {
    if (now_ - spare.node.heard < kSilenceTimeout) continue;
    LoseSpare(spare.connection, kSilent);
    Refuse(spare.connection, kGivenUp);
    if (phase_ == Phase::kFinished) return;
  }
}

// Those that were told to stop and have not said in time that their ranks are gone. With its stream ends what ranks an
// agent still has; whoever takes its place waits for that as for any lost node (FencedUntil).
void Rendezvous::Machine::LoseLateNodes() {
  constexpr char kLate[] = "it did not say in time that its ranks were gone";
  for (uint32_t i = 0; i < roster_.node_count(); ++i) {
    if (roster_.node(i).done) continue;
    const ConnectionId connection = *connection_of_[i];  // who has none is done
    LoseNode(i, kLate, now_);
    Refuse(connection, kLate);
  }
}

std::vector<Rendezvous::Machine::Spare>::iterator Rendezvous::Machine::FindSpare(ConnectionId connection) {
  return std::find_if(spares_.begin(), spares_.end(),
                      [connection](const Spare& spare) { return spare.connection == connection; });
}

void Rendezvous::Machine::GiveUpAgent(uint32_t agent, const std::string& text) {
  v1::LostNode lost;
  lost.set_agent(agent);
  lost.set_text(text);
  actions_.emplace_back(NodeLost{std::move(lost)});
}

void Rendezvous::Machine::LoseSpare(ConnectionId connection, const std::string& how) {
  const auto spare = FindSpare(connection);
  if (spare == spares_.end()) return;
  const uint32_t agent = spare->agent;
  const std::string name = spare->node.name;
  spares_.erase(spare);
  if (phase_ == Phase::kFinished) return;
  GiveUpAgent(agent, "the agent of the spare node " + name + " is gone: " + how);
  if (phase_ == Phase::kPausing) (void)FinishIfLacking("the agent of the spare node " + name + " is gone: " + how);
}

void Rendezvous::Machine::LoseNode(uint32_t index, const std::string& how, TimePoint gone_at) {
  Roster::Node& node = roster_.node(index);
  const ConnectionId connection = *connection_of_[index];
  node_of_.erase(connection);
  connection_of_[index].reset();
  inspections_.Forget(connection);
  store_.Forget(connection);
  if (phase_ == Phase::kFinished) return;
  const std::string text = "the agent of " + node.name + " is gone: " + how;
  node.lost = true;
  GiveUpAgent(node.agent, text);
  if (phase_ == Phase::kGathering) {
    FinishUnstarted(text + ", before the job had started", kExitLauncher);
    return;
  }
  if (phase_ == Phase::kPausing) {
    (void)FinishIfLacking(text);
    return;
  }
  if (!std::exchange(node.done, true)) LoseRanksOf(index, text, gone_at);
  if (agreement_.has_value()) {
    agreement_->DoWithout(index);
    ConcludePreemption();
  }
}

void Rendezvous::Machine::LoseRanksOf(uint32_t index, const std::string& text, TimePoint gone_at) {
  const Roster::Node& node = roster_.node(index);
  std::vector<uint32_t> lost;
  for (uint32_t rank = node.first_rank; rank < node.first_rank + node.rank_count; ++rank) {
    if (roster_.rank(rank).exit.has_value()) continue;
    v1::RankExit exit;
    exit.set_rank(rank);
    exit.set_started(true);
    exit.set_lost(true);
    exit.set_error(text);
    RecordExit(exit, gone_at);
    lost.push_back(rank);
  }
  if (!lost.empty()) AnnounceLoss(lost, RankNames(lost) + " (" + node.name + ") lost: " + text);
}

bool Rendezvous::Machine::FinishIfLacking(const std::string& text) {
  const std::string lacking = Lacking();
  if (lacking.empty()) return false;
  FinishUnstarted(text + ", before the job was started again; " + lacking, kExitLauncher);
  return true;
}

uint32_t Rendezvous::Machine::SparesToCome() const {
  if (now_ >= join_deadline_) return 0;
  uint32_t to_come = 0;
  const uint32_t end = first_spare_ + static_cast<uint32_t>(roster_.plan().spares_size());
  for (uint32_t agent = first_spare_; agent < end; ++agent) {
    if (joined_spares_.count(agent) == 0 && ended_agents_.count(agent) == 0) ++to_come;
  }
  return to_come;
}

std::string Rendezvous::Machine::LackingWith(size_t spares) const {
  uint32_t lost = 0;
  for (uint32_t i = 0; i < roster_.node_count(); ++i) lost += roster_.node(i).lost ? 1 : 0;
  if (lost == 0) return "";
  if (roster_.node(0).lost && roster_.plan().standbys() == 0) {
    return "a node is lost, and it is the one that hosts the rendezvous (see --standby)";
  }
  const uint32_t without = lost - std::min(lost, static_cast<uint32_t>(spares));
  if (without == 0) return "";
  const uint32_t least = roster_.plan().min_nodes();
  if (least == 0) {
    return std::string("a node is lost, and there is no spare ") + (roster_.plan().spares().empty() ? "" : "left ") +
           "to take its place (see --spares and --nnodes MIN:MAX)";
  }
  const uint32_t left = roster_.node_count() - without;
  if (left >= least) return "";
  return "a node is lost, and with " + std::to_string(left) + " there are fewer than the " + std::to_string(least) +
         " that --nnodes asks for at least";
}

TimePoint Rendezvous::Machine::RestartDue() const {
  if (now_ < join_deadline_ && !LackingWith(spares_.size()).empty()) return join_deadline_;
  return std::max(*restart_due_, FencedUntil());
}

TimePoint Rendezvous::Machine::FencedUntil() const {
  TimePoint until = now_;
  const auto lease = kSilenceTimeout + (roster_.plan().standbys() > 0 ? kTakeOverTime : std::chrono::milliseconds(0));
  for (uint32_t i = 0; i < roster_.node_count(); ++i) {
    const Roster::Node& node = roster_.node(i);
    if (!node.lost || ended_agents_.count(node.agent) > 0) continue;
    until = std::max(until, node.heard + lease + kKillTime);
  }
  return until;
}

void Rendezvous::Machine::Reseat() {
  std::vector<Roster::Seat> seats;
  std::vector<std::optional<ConnectionId>> connections;
  std::vector<std::string> changes;
  std::string dropped;
  auto spare = spares_.begin();
  for (uint32_t i = 0; i < roster_.node_count(); ++i) {
    const Roster::Node& node = roster_.node(i);
    if (!node.lost) {
      seats.push_back({roster_.plan().placements(static_cast<int>(i)), node});
      connections.push_back(connection_of_[i]);
    } else if (spare != spares_.end()) {
      std::vector<uint32_t> ranks;
      for (uint32_t k = 0; k < node.rank_count; ++k) ranks.push_back(node.first_rank + k);
      changes.push_back("the spare node " + spare->node.name + " takes the place of " + node.name + ": " +
                        RankNames(ranks));
      seats.push_back({roster_.PlacementOfSpare(spare->agent, i), spare->node});
      connections.emplace_back(spare->connection);
      ++spare;
    } else {
      dropped += (dropped.empty() ? "" : ", ") + node.name;
    }
  }
  spares_.erase(spares_.begin(), spare);
  roster_.BeginEpoch(std::move(seats));
  connection_of_ = std::move(connections);
  node_of_.clear();
  for (uint32_t i = 0; i < roster_.node_count(); ++i) node_of_[*connection_of_[i]] = i;
  if (!dropped.empty()) {
    changes.push_back("the job goes on without " + dropped + ", with " + std::to_string(roster_.node_count()) +
                      (roster_.node_count() == 1 ? " node and " : " nodes and ") +
                      std::to_string(roster_.rank_count()) +
                      (roster_.rank_count() == 1 ? " rank" : " ranks, which are numbered anew"));
  }
  if (changes.empty()) return;
  v1::Membership members;
  *members.mutable_placements() = roster_.plan().placements();
  for (uint32_t i = 0; i < roster_.node_count(); ++i) members.add_agents(roster_.node(i).agent);
  for (std::string& change : changes) members.add_changes(std::move(change));
  actions_.emplace_back(MembersChanged{std::move(members)});
}

}  // namespace cohort::launcher
