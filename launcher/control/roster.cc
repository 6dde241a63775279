#include "cohort/launcher/control/roster.h"

#include <algorithm>
#include <utility>

#include "cohort/launcher/control/describe.h"
#include "cohort/launcher/control/lease.h"
#include "cohort/launcher/control/parts/program_of.h"
#include "cohort/launcher/control/rendezvous.h"

namespace cohort::launcher {
namespace {

std::string PlannedName(const v1::NodePlacement& placement) {
  return placement.name().empty() ? "node" + std::to_string(placement.node()) : placement.name();
}

const v1::NodePlacement* FindPlacement(const v1::SpareNode& spare, int ranks) {
  for (const v1::NodePlacement& placement : spare.placements()) {
    if (placement.ranks_size() == ranks) return &placement;
  }
  return nullptr;
}

absl::Status CheckElasticity(const v1::JobPlan& plan) {
  for (const v1::SpareNode& spare : plan.spares()) {
    for (const v1::NodePlacement& placement : plan.placements()) {
      if (FindPlacement(spare, placement.ranks_size()) != nullptr) continue;
      return absl::InvalidArgumentError("the job's plan does not say how " + spare.name() +
                                        " would take the place of " + PlannedName(placement));
    }
  }
  if (plan.standbys() >= static_cast<uint32_t>(plan.placements_size())) {
    return absl::InvalidArgumentError("the job's plan has " + std::to_string(plan.placements_size()) +
                                      " nodes and wants " + std::to_string(plan.standbys()) +
                                      " of them to stand by for the first");
  }
  if (plan.min_nodes() > static_cast<uint32_t>(plan.placements_size())) {
    return absl::InvalidArgumentError("the job's plan asks for " + std::to_string(plan.min_nodes()) +
                                      " nodes at least and has " + std::to_string(plan.placements_size()));
  }
  return absl::OkStatus();
}

HostLoss HostLossOf(const v1::JobPlan& plan) {
  if (plan.standbys() > 0) return {.ends_job = "", .take_over_time = kTakeOverTime, .agents_keep_table = false};
  return {.ends_job = "a node is lost, and it is the one that hosts the rendezvous (see --standby)"};
}

}  // namespace

absl::Status CheckPlan(const v1::JobPlan& plan) {
  if (plan.placements().empty()) return absl::InvalidArgumentError("the job's plan has no node");
  uint32_t next_rank = 0;
  for (int i = 0; i < plan.placements_size(); ++i) {
    const v1::NodePlacement& placement = plan.placements(i);
    if (placement.node() != static_cast<uint32_t>(i)) {
      return absl::InvalidArgumentError("the job's plan lists node " + std::to_string(placement.node()) +
                                        " in place of node " + std::to_string(i));
    }
    if (placement.ranks().empty()) {
      return absl::InvalidArgumentError("the job's plan gives " + PlannedName(placement) + " no rank");
    }
    for (const v1::RankPlacement& rank : placement.ranks()) {
      if (rank.rank() != next_rank++) {
        return absl::InvalidArgumentError("the job's plan numbers ranks out of order: " + std::to_string(rank.rank()) +
                                          " in place of " + std::to_string(next_rank - 1) + " on " +
                                          PlannedName(placement));
      }
    }
  }
  const std::string& on_failure = plan.job().on_failure();
  if (!on_failure.empty() && on_failure != "end" && on_failure != "continue" && on_failure != "restart") {
    return absl::InvalidArgumentError("on_failure is '" + on_failure + "'; it must be 'end', 'continue' or 'restart'");
  }
  if ((plan.job().max_restarts() > 0) != (on_failure == "restart")) {
    return absl::InvalidArgumentError("max_restarts is " + std::to_string(plan.job().max_restarts()) +
                                      " and on_failure '" + on_failure + "'; one needs the other");
  }
  return CheckElasticity(plan);
}

Roster::Roster(v1::JobPlan plan)
    : plan_(std::move(plan)),
      first_spare_(static_cast<uint32_t>(plan_.placements_size())),
      host_loss_(HostLossOf(plan_)) {
  for (const v1::NodePlacement& placement : plan_.placements()) {
    Node node;
    node.agent = node_count();
    node.name = PlannedName(placement);
    nodes_.push_back(std::move(node));
  }
  AddRanks();
}

void Roster::AddRanks() {
  for (uint32_t i = 0; i < node_count(); ++i) {
    nodes_[i].first_rank = rank_count();
    nodes_[i].rank_count = static_cast<uint32_t>(plan_.placements(static_cast<int>(i)).ranks_size());
    Rank rank;
    rank.node = i;
    ranks_.insert(ranks_.end(), nodes_[i].rank_count, rank);
  }
}

std::string Roster::WhyUnfit(const v1::NodeOffer& offer) const {
  if (offer.protocol() != kRendezvousProtocol) {
    return "the agent speaks version " + std::to_string(offer.protocol()) +
           " of the rendezvous protocol, this job's rendezvous speaks version " + std::to_string(kRendezvousProtocol) +
           ": use the same dlaunch on every node";
  }
  const uint32_t agents = first_spare_ + static_cast<uint32_t>(plan_.spares_size());
  if (offer.node() >= agents) {
    return "node " + std::to_string(offer.node()) + " does not belong to this job, which has " +
           std::to_string(agents) + " (counted from 0)";
  }
  return "";
}

v1::Assignment Roster::MakeAssignment(uint32_t node, uint64_t epoch) const {
  v1::Assignment assignment;
  assignment.set_epoch(epoch);
  *assignment.mutable_job() = plan_.job();
  *assignment.mutable_placement() = plan_.placements(static_cast<int>(node));
  assignment.set_world_size(rank_count());
  assignment.set_master_address(nodes_[0].address);
  assignment.set_master_port(nodes_[0].master_port);
  return assignment;
}

v1::NodeTable Roster::MakeNodeTable() const {
  v1::NodeTable table;
  for (uint32_t i = 0; i < node_count(); ++i) {
    v1::Node& entry = *table.add_nodes();
    entry.set_index(i);
    entry.set_name(nodes_[i].name);
    entry.set_first_rank(nodes_[i].first_rank);
    entry.set_rank_count(nodes_[i].rank_count);
  }
  return table;
}

v1::NodePlacement Roster::PlacementOfSpare(uint32_t spare, uint32_t index) const {
  const v1::SpareNode& planned = plan_.spares(static_cast<int>(spare - first_spare_));
  v1::NodePlacement placement = *FindPlacement(planned, plan_.placements(static_cast<int>(index)).ranks_size());
  placement.set_name(planned.name());
  return placement;
}

void Roster::BeginEpoch(std::vector<Seat> seats) {
  plan_.clear_placements();
  nodes_.clear();
  ranks_.clear();
  uint32_t next_rank = 0;
  for (Seat& seat : seats) {
    seat.placement.set_node(node_count());
    for (v1::RankPlacement& rank : *seat.placement.mutable_ranks()) rank.set_rank(next_rank++);
    *plan_.add_placements() = std::move(seat.placement);
    seat.node.joined = true;
    seat.node.done = false;
    seat.node.latest_told.reset();
    nodes_.push_back(std::move(seat.node));
  }
  AddRanks();
}

std::optional<std::vector<uint32_t>> Roster::Members(const v1::RankSet& set) const {
  std::vector<uint32_t> members;
  if (set.everyone()) {
    for (uint32_t rank = 0; rank < rank_count(); ++rank) members.push_back(rank);
    return members;
  }
  members.assign(set.ranks().begin(), set.ranks().end());
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  if (members.empty() || members.back() >= rank_count()) return std::nullopt;
  return members;
}

std::string Roster::Place(uint32_t rank) const {
  const std::string program = ProgramName(plan_.job().programs(), rank);
  return (program.empty() ? "" : program + ", ") + node_of(rank).name;
}

std::string Roster::Name(uint32_t rank) const { return NameRank(rank, Place(rank), ranks_[rank].pid); }

}  // namespace cohort::launcher
