// The nodes and ranks of a job and how each is doing: the plan, indexed, with what has happened so far.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// OK when a rendezvous can work from the plan: nodes 0..n-1 in order, each with at least one rank, ranks counted
// through from 0 over the nodes, a known on_failure, spares that can take each node's place, no more nodes at least
// than there are. kInvalidArgument names what is wrong.
absl::Status CheckPlan(const v1::JobPlan& plan);

// The consequences for a job of losing the agent that hosts the rendezvous.
struct HostLoss {
  std::string ends_job;                         // why it can't go on; empty: another agent takes over
  std::chrono::milliseconds take_over_time{0};  // how much longer ranks run whose agents have lost the rendezvous
  // Whether agents still have the table of nodes from the epoch before. Those that have come to another host may not.
  bool agents_keep_table = true;
};

class Roster {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Rank {
    uint32_t node = 0;
    int32_t pid = 0;                     // 0: not known
    std::optional<v1::RankExit> exit;    // once it is gone
    TimePoint gone_at;                   // as nearly as is known
    bool told = false;                   // a failure or a stop had been announced to its node before
    std::optional<v1::CallState> stays;  // what it was doing when it left the epoch: it lives on and waits for the next
  };
  struct Node {
    uint32_t agent = 0;  // who is in this place: as the plan counts agents
    std::string name;
    uint32_t first_rank = 0;
    uint32_t rank_count = 0;
    bool joined = false;
    bool done = false;  // all its ranks are gone and reported, or it is lost
    bool lost = false;
    std::string address;
    uint32_t master_port = 0;
    TimePoint heard;                       // its latest message
    std::optional<TimePoint> latest_told;  // when a failure or a stop was last announced to it
    std::string refusal;                   // why an agent that wanted to be this node was turned away
  };

  explicit Roster(v1::JobPlan plan);  // a plan that passes CheckPlan

  uint32_t node_count() const { return static_cast<uint32_t>(nodes_.size()); }
  uint32_t rank_count() const { return static_cast<uint32_t>(ranks_.size()); }
  const v1::JobPlan& plan() const { return plan_; }
  const HostLoss& host_loss() const { return host_loss_; }
  Node& node(uint32_t index) { return nodes_[index]; }
  const Node& node(uint32_t index) const { return nodes_[index]; }
  Rank& rank(uint32_t index) { return ranks_[index]; }
  const Rank& rank(uint32_t index) const { return ranks_[index]; }
  const Node& node_of(uint32_t rank) const { return nodes_[ranks_[rank].node]; }
  bool IsOn(uint32_t node, uint32_t rank) const { return rank < rank_count() && ranks_[rank].node == node; }

  // Why this offer can't be taken, or empty. Looks at what the plan says, not at who has joined. In the first epoch, or
  // of a spare.
  std::string WhyUnfit(const v1::NodeOffer& offer) const;
  // The assignment of the agent of `node`, without the table of nodes. Every node has joined.
  v1::Assignment MakeAssignment(uint32_t node, uint64_t epoch) const;
  v1::NodeTable MakeNodeTable() const;

  // A place in the next epoch: what runs there, and who is there.
  struct Seat {
    v1::NodePlacement placement;
    Node node;
  };
  // The placement of agent `spare` in the place of node `index`: that node's ranks on the spare's devices and CPUs.
  v1::NodePlacement PlacementOfSpare(uint32_t spare, uint32_t index) const;
  // The next epoch's nodes, all of which are there, in their order; nodes and ranks are counted through again. Forgets
  // what has become of the ranks, none of which lives.
  void BeginEpoch(std::vector<Seat> seats);

  // The world ranks that a set names, ascending; nothing when it names one that does not exist or none at all.
  std::optional<std::vector<uint32_t>> Members(const v1::RankSet& set) const;

  // "node1"; where the job has several programs, with the rank's own: "client, node1".
  std::string Place(uint32_t rank) const;
  // "rank 3 (node1, pid 4711)": the rank at its place.
  std::string Name(uint32_t rank) const;

 private:
  void AddRanks();

  v1::JobPlan plan_;  // its placements are this epoch's
  const uint32_t first_spare_;
  const HostLoss host_loss_;
  std::vector<Node> nodes_;
  std::vector<Rank> ranks_;
};

}  // namespace cohort::launcher
