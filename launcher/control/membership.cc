#include "cohort/launcher/control/membership.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/control/lease.h"

namespace cohort::launcher {
namespace {

constexpr std::chrono::milliseconds kDefaultJoinTimeout{300'000};

TimePoint JoinDeadline(const v1::JobPlan& plan, TimePoint now) {
  const std::chrono::milliseconds timeout(plan.join_timeout_ms());
  return now + (timeout > std::chrono::milliseconds(0) ? timeout : kDefaultJoinTimeout);
}

}  // namespace

Membership::Membership(Roster* roster, const JobTime& time)
    : roster_(roster),
      time_(time),
      first_spare_(roster->node_count()),
      join_deadline_(JoinDeadline(roster->plan(), time.now())),
      connection_of_(roster->node_count()) {}

std::optional<uint32_t> Membership::NodeOf(ConnectionId connection) const {
  const auto known = node_of_.find(connection);
  if (known == node_of_.end()) return std::nullopt;
  return known->second;
}

std::string Membership::WhyRefused(const v1::NodeOffer& offer, Phase phase) {
  std::string why = roster_->WhyUnfit(offer);
  const bool is_spare = offer.node() >= first_spare_;
  const std::string claim = "; another agent at " + offer.address() + " claims to be it as well";
  const std::string node_name = "node " + std::to_string(offer.node());
  if (!why.empty()) {
    // The plan speaks against it.
  } else if (is_spare && phase != Phase::kFinished) {
    if (joined_spares_.contains(offer.node())) why = "spare " + node_name + " has already joined" + claim;
  } else if (phase == Phase::kGathering) {
    const Roster::Node& node = roster_->node(offer.node());
    if (node.joined) why = node.name + " has already joined, from " + node.address + claim;
  } else {
    why = phase == Phase::kFinished ? "the job is over" : node_name + " has already joined, or was given up";
  }
  if (!why.empty() && phase == Phase::kGathering && !is_spare) roster_->node(offer.node()).refusal = why;
  return why;
}

bool Membership::Join(ConnectionId from, const v1::NodeOffer& offer) {
  const bool is_spare = offer.node() >= first_spare_;
  Spare spare{.agent = offer.node(), .connection = from, .node = {}};
  Roster::Node& node = is_spare ? spare.node : roster_->node(offer.node());
  node.joined = true;
  node.agent = offer.node();
  if (!offer.name().empty()) node.name = offer.name();
  node.address = offer.address();
  node.master_port = offer.master_port();
  node.heard = time_.now();
  if (is_spare) {
    joined_spares_.insert(offer.node());
    spares_.push_back(std::move(spare));
    return false;
  }
  node_of_[from] = offer.node();
  connection_of_[offer.node()] = from;
  return node_of_.size() == roster_->node_count();
}

std::string Membership::MissingNodes() const {
  std::string missing;
  for (uint32_t i = 0; i < roster_->node_count(); ++i) {
    const Roster::Node& node = roster_->node(i);
    if (node.joined) continue;
    if (!missing.empty()) missing += ", ";
    missing += node.name;
    if (!node.refusal.empty()) missing += " (was refused: " + node.refusal + ")";
  }
  return missing;
}

bool Membership::Hear(ConnectionId connection) {
  if (const std::optional<uint32_t> node = NodeOf(connection)) {
    roster_->node(*node).heard = time_.now();
    return true;
  }
  const auto spare = FindSpare(connection);
  if (spare == spares_.end()) return false;
  spare->node.heard = time_.now();
  return true;
}

void Membership::HearEverybody() {
  for (uint32_t index = 0; index < roster_->node_count(); ++index) {
    Roster::Node& node = roster_->node(index);
    if (!node.lost) node.heard = time_.now();  // nothing is awaited of a lost one; its fence counts from its last word
  }
  for (Spare& spare : spares_) spare.node.heard = time_.now();
}

std::vector<uint32_t> Membership::SilentNodes() const {
  std::vector<uint32_t> silent;
  for (uint32_t i = 0; i < roster_->node_count(); ++i) {
    const bool heard = time_.now() - roster_->node(i).heard < kSilenceTimeout;
    if (connection_of_[i].has_value() && !heard) silent.push_back(i);
  }
  return silent;
}

std::vector<ConnectionId> Membership::SilentSpares() const {
  std::vector<ConnectionId> silent;
  for (const Spare& spare : spares_) {
    if (time_.now() - spare.node.heard >= kSilenceTimeout) silent.push_back(spare.connection);
  }
  return silent;
}

std::vector<Membership::Spare>::iterator Membership::FindSpare(ConnectionId connection) {
  return std::find_if(spares_.begin(), spares_.end(),
                      [connection](const Spare& spare) { return spare.connection == connection; });
}

std::optional<Membership::Spare> Membership::RemoveSpare(ConnectionId connection) {
  const auto found = FindSpare(connection);
  if (found == spares_.end()) return std::nullopt;
  Spare spare = std::move(*found);
  spares_.erase(found);
  return spare;
}

ConnectionId Membership::Disconnect(uint32_t node) {
  const ConnectionId connection = *connection_of_[node];
  node_of_.erase(connection);
  connection_of_[node].reset();
  return connection;
}

uint32_t Membership::SparesToCome() const {
  if (time_.now() >= join_deadline_) return 0;
  uint32_t to_come = 0;
  const uint32_t end = first_spare_ + static_cast<uint32_t>(roster_->plan().spares_size());
  for (uint32_t agent = first_spare_; agent < end; ++agent) {
    if (joined_spares_.count(agent) == 0 && ended_agents_.count(agent) == 0) ++to_come;
  }
  return to_come;
}

std::string Membership::LackingWith(size_t spares) const {
  uint32_t lost = 0;
  for (uint32_t i = 0; i < roster_->node_count(); ++i) lost += roster_->node(i).lost ? 1 : 0;
  if (lost == 0) return "";
  if (roster_->node(0).lost && !roster_->host_loss().ends_job.empty()) return roster_->host_loss().ends_job;
  const uint32_t without = lost - std::min(lost, static_cast<uint32_t>(spares));
  if (without == 0) return "";
  const uint32_t least = roster_->plan().min_nodes();
  if (least == 0) {
    return std::string("a node is lost, and there is no spare ") + (roster_->plan().spares().empty() ? "" : "left ") +
           "to take its place (see --spares and --nnodes MIN:MAX)";
  }
  const uint32_t left = roster_->node_count() - without;
  if (left >= least) return "";
  return "a node is lost, and with " + std::to_string(left) + " there are fewer than the " + std::to_string(least) +
         " that --nnodes asks for at least";
}

TimePoint Membership::RestartDue(TimePoint due) const {
  if (time_.now() < join_deadline_ && !LackingNow().empty()) return join_deadline_;
  return std::max(due, FencedUntil());
}

TimePoint Membership::FencedUntil() const {
  TimePoint until = time_.now();
  const auto lease = kSilenceTimeout + roster_->host_loss().take_over_time;
  for (uint32_t i = 0; i < roster_->node_count(); ++i) {
    const Roster::Node& node = roster_->node(i);
    if (!node.lost || ended_agents_.count(node.agent) > 0) continue;
    until = std::max(until, node.heard + lease + kKillTime);
  }
  return until;
}

std::optional<v1::Membership> Membership::Reseat() {
  std::vector<Roster::Seat> seats;
  std::vector<std::optional<ConnectionId>> connections;
  std::vector<std::string> changes;
  std::string dropped;
  auto spare = spares_.begin();
  for (uint32_t i = 0; i < roster_->node_count(); ++i) {
    const Roster::Node& node = roster_->node(i);
    if (!node.lost) {
      seats.push_back({roster_->plan().placements(static_cast<int>(i)), node});
      connections.push_back(connection_of_[i]);
    } else if (spare != spares_.end()) {
      std::vector<uint32_t> ranks;
      for (uint32_t k = 0; k < node.rank_count; ++k) ranks.push_back(node.first_rank + k);
      changes.push_back("the spare node " + spare->node.name + " takes the place of " + node.name + ": " +
                        RankNames(ranks));
      seats.push_back({roster_->PlacementOfSpare(spare->agent, i), spare->node});
      connections.emplace_back(spare->connection);
      ++spare;
    } else {
      dropped += (dropped.empty() ? "" : ", ") + node.name;
    }
  }
  spares_.erase(spares_.begin(), spare);
  roster_->BeginEpoch(std::move(seats));
  connection_of_ = std::move(connections);
  node_of_.clear();
  for (uint32_t i = 0; i < roster_->node_count(); ++i) node_of_[*connection_of_[i]] = i;
  if (!dropped.empty()) {
    changes.push_back("the job goes on without " + dropped + ", with " + std::to_string(roster_->node_count()) +
                      (roster_->node_count() == 1 ? " node and " : " nodes and ") +
                      std::to_string(roster_->rank_count()) +
                      (roster_->rank_count() == 1 ? " rank" : " ranks, which are numbered again"));
  }
  if (changes.empty()) return std::nullopt;
  v1::Membership members;
  *members.mutable_placements() = roster_->plan().placements();
  for (uint32_t i = 0; i < roster_->node_count(); ++i) members.add_agents(roster_->node(i).agent);
  for (std::string& change : changes) members.add_changes(std::move(change));
  return members;
}

}  // namespace cohort::launcher
