// The members of a job: the connections of its nodes, the spares, the lost nodes, and who takes whose place in the next
// epoch. It decides nothing about the course of the job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/launcher/control/parts/job_time.h"
#include "cohort/launcher/control/parts/phase.h"
#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/control/roster.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class Membership {
 public:
  // An idle agent.
  struct Spare {
    uint32_t agent = 0;
    ConnectionId connection = 0;
    Roster::Node node;  // what it would be in the job
  };

  Membership(Roster* roster, const JobTime& time);

  std::optional<uint32_t> NodeOf(ConnectionId connection) const;
  std::optional<ConnectionId> ConnectionOf(uint32_t node) const { return connection_of_[node]; }
  // By node.
  const std::vector<std::optional<ConnectionId>>& connections() const { return connection_of_; }
  const std::vector<Spare>& spares() const { return spares_; }
  // A planned node that has yet to join has this agent.
  bool Awaits(uint32_t agent) const { return agent < first_spare_ && !roster_->node(agent).joined; }

  // Why the offer can't be taken, or empty. Remembers the reason for MissingNodes.
  std::string WhyRefused(const v1::NodeOffer& offer, Phase phase);
  // Takes an offer that is not refused. True when every planned node has joined by it.
  bool Join(ConnectionId from, const v1::NodeOffer& offer);
  TimePoint join_deadline() const { return join_deadline_; }
  // "node2, node3 (was refused: ...)".
  std::string MissingNodes() const;

  // Something arrived on the connection. False: it belongs to nobody.
  bool Hear(ConnectionId connection);
  // Nobody could be heard for a while, and so nobody was silent.
  void HearEverybody();
  std::vector<uint32_t> SilentNodes() const;
  std::vector<ConnectionId> SilentSpares() const;

  // The spare is gone.
  std::optional<Spare> RemoveSpare(ConnectionId connection);
  // The node's connection is of no use any more.
  ConnectionId Disconnect(uint32_t node);
  // Nothing that the agent had started lives.
  void NoteEnd(uint32_t agent) { ended_agents_.insert(agent); }

  // Spares that have yet to join, and may.
  uint32_t SparesToCome() const;
  // Why the job can't go on without the lost nodes, or empty. Counts the spares that are there and those to come.
  std::string Lacking() const { return LackingWith(spares_.size() + SparesToCome()); }
  // The same with the spares that are there.
  std::string LackingNow() const { return LackingWith(spares_.size()); }
  // When no rank of a lost node can live any more.
  TimePoint FencedUntil() const;
  // When a job that pauses until `due` can go on: no rank of a lost node can live any more, and the spares that it
  // needs are there or will not come.
  TimePoint RestartDue(TimePoint due) const;
  // Fills the lost nodes' places, or closes the ranks. Returns the members if they change.
  std::optional<v1::Membership> Reseat();

 private:
  std::string LackingWith(size_t spares) const;
  std::vector<Spare>::iterator FindSpare(ConnectionId connection);

  Roster* const roster_;
  const JobTime& time_;
  const uint32_t first_spare_;  // agents from this one on are spares
  const TimePoint join_deadline_;
  std::unordered_map<ConnectionId, uint32_t> node_of_;
  std::vector<std::optional<ConnectionId>> connection_of_;  // by node
  std::vector<Spare> spares_;                               // in the order of their coming
  std::set<uint32_t> joined_spares_;
  std::set<uint32_t> ended_agents_;  // agents with nothing left alive
};

}  // namespace cohort::launcher
