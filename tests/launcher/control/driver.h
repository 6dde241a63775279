// Drives a Rendezvous by hand: a made-up clock, connections named by node, and all that was sent.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/launcher/control/rendezvous.h"

namespace cohort::launcher {

inline v1::JobPlan MakePlan(uint32_t nodes, uint32_t ranks_per_node, const std::string& on_failure = "end") {
  v1::JobPlan plan;
  plan.mutable_job()->set_on_failure(on_failure);
  plan.mutable_job()->set_grace_ms(2000);
  plan.set_join_timeout_ms(60'000);
  for (uint32_t node = 0; node < nodes; ++node) {
    v1::NodePlacement& placement = *plan.add_placements();
    placement.set_node(node);
    placement.set_name("node" + std::to_string(node));
    for (uint32_t i = 0; i < ranks_per_node; ++i) {
      v1::RankPlacement& rank = *placement.add_ranks();
      rank.set_rank(node * ranks_per_node + i);
      rank.set_local_rank(i);
    }
  }
  return plan;
}

inline v1::NodeOffer MakeOffer(uint32_t node) {
  v1::NodeOffer offer;
  offer.set_protocol(kRendezvousProtocol);
  offer.set_node(node);
  offer.set_name("node" + std::to_string(node));
  offer.set_address("10.0.0." + std::to_string(node + 1));
  return offer;
}

inline v1::RankExit Exited(uint32_t rank, int code) {
  v1::RankExit exit;
  exit.set_rank(rank);
  exit.set_pid(static_cast<int32_t>(1000 + rank));
  exit.set_started(true);
  exit.set_exit_code(code);
  return exit;
}

inline v1::RankExit Killed(uint32_t rank, int signal, bool by_us = false) {
  v1::RankExit exit = Exited(rank, 0);
  exit.set_signal(signal);
  exit.set_killed_by_us(by_us);
  return exit;
}

class Driver {
 public:
  Driver(uint32_t nodes, uint32_t ranks_per_node, const std::string& on_failure = "end")
      : Driver(MakePlan(nodes, ranks_per_node, on_failure)) {}
  explicit Driver(v1::JobPlan plan)
      : nodes_(static_cast<uint32_t>(plan.placements_size())),
        ranks_per_node_(static_cast<uint32_t>(plan.placements(0).ranks_size())),
        now_(std::chrono::hours(1)),
        rendezvous_(std::move(plan), now_) {}

  static ConnectionId Of(uint32_t node) { return node + 1; }
  uint32_t NodeOf(uint32_t rank) const { return rank / ranks_per_node_; }

  void Handle(Event event) { Take(rendezvous_.Handle(std::move(event), now_)); }
  void Say(uint32_t node, v1::FromAgent message) { Handle(Received{Of(node), std::move(message)}); }
  void Join(uint32_t node) { JoinAs(Of(node), MakeOffer(node)); }
  void JoinAs(ConnectionId connection, const v1::NodeOffer& offer) {
    v1::FromAgent message;
    *message.mutable_join() = offer;
    Handle(Received{connection, std::move(message)});
  }
  void JoinAll() {
    for (uint32_t node = 0; node < nodes_; ++node) Join(node);
  }
  void Exit(const v1::RankExit& exit) {
    v1::FromAgent message;
    *message.mutable_exit() = exit;
    Say(NodeOf(exit.rank()), std::move(message));
  }
  void Done(uint32_t node) {
    v1::FromAgent message;
    message.mutable_done()->set_node(node);
    Say(node, std::move(message));
  }
  // The remaining ranks of all nodes end as told, by our SIGTERM, and the nodes are done.
  void EndAllAsTold() {
    for (uint32_t rank = 0; rank < nodes_ * ranks_per_node_; ++rank) Exit(Killed(rank, 15, true));
    for (uint32_t node = 0; node < nodes_; ++node) Done(node);
  }
  // Time passes as it should: ticks when asked for; the nodes in `speaking` beat every half second.
  void Pass(std::chrono::milliseconds duration, const std::vector<uint32_t>& speaking) {
    const TimePoint end = now_ + duration;
    TimePoint next_beat = now_;
    while (now_ < end && !rendezvous_.finished()) {
      now_ = std::max(now_, std::min({end, rendezvous_.NextTick(), next_beat}));
      if (now_ >= next_beat) {
        next_beat = now_ + std::chrono::milliseconds(500);
        for (uint32_t node : speaking) {
          v1::FromAgent beat;
          beat.mutable_beat();
          Say(node, std::move(beat));
        }
      }
      Take(rendezvous_.Tick(now_));
    }
  }
  void Pass(std::chrono::milliseconds duration) { Pass(duration, AllNodes()); }
  std::vector<uint32_t> AllNodes() const {
    std::vector<uint32_t> all;
    for (uint32_t node = 0; node < nodes_; ++node) all.push_back(node);
    return all;
  }
  // The clock jumps: this process was stopped.
  void Freeze(std::chrono::milliseconds duration) { now_ += duration; }
  void Tick() { Take(rendezvous_.Tick(now_)); }

  // The latest message of a kind sent to a connection.
  const v1::ToAgent* Last(ConnectionId to, v1::ToAgent::KindCase kind) const {
    const auto found = sent_.find(to);
    if (found == sent_.end()) return nullptr;
    for (auto it = found->second.rbegin(); it != found->second.rend(); ++it) {
      if ((*it)->kind_case() == kind) return it->get();
    }
    return nullptr;
  }
  // All messages of a kind that were sent to a connection.
  std::vector<const v1::ToAgent*> All(ConnectionId to, v1::ToAgent::KindCase kind) const {
    std::vector<const v1::ToAgent*> all;
    if (const auto found = sent_.find(to); found != sent_.end()) {
      for (const auto& message : found->second) {
        if (message->kind_case() == kind) all.push_back(message.get());
      }
    }
    return all;
  }
  int Count(ConnectionId to, v1::ToAgent::KindCase kind) const {
    int count = 0;
    if (const auto found = sent_.find(to); found != sent_.end()) {
      for (const auto& message : found->second) count += message->kind_case() == kind;
    }
    return count;
  }
  bool Closed(ConnectionId connection) const { return closed_.count(connection) > 0; }
  const std::optional<v1::JobReport>& report() const { return report_; }
  int finishes() const { return finishes_; }
  // The present one, or while the job pauses the next.
  uint64_t epoch() const { return 1 + restarts_.size(); }
  const std::vector<v1::Restart>& restarts() const { return restarts_; }
  // The news of lost ranks that dlaunch got.
  const std::vector<std::string>& losses() const { return losses_; }
  const std::vector<uint32_t>& lost() const { return lost_; }
  const std::vector<v1::Membership>& members() const { return members_; }
  TimePoint now() const { return now_; }
  Rendezvous& rendezvous() { return rendezvous_; }
  void Forget() { sent_.clear(); }

 private:
  void Take(std::vector<Action> actions) {
    for (Action& action : actions) {
      if (Send* const send = std::get_if<Send>(&action)) {
        sent_[send->to].push_back(send->message);
      } else if (const Close* const close = std::get_if<Close>(&action)) {
        closed_[close->connection] = true;
      } else if (Restart* const restart = std::get_if<Restart>(&action)) {
        restarts_.push_back(std::move(restart->restart));
      } else if (RanksLost* const ranks = std::get_if<RanksLost>(&action)) {
        losses_.push_back(std::move(ranks->text));
      } else if (NodeLost* const lost = std::get_if<NodeLost>(&action)) {
        lost_.push_back(lost->lost.agent());
      } else if (MembersChanged* const changed = std::get_if<MembersChanged>(&action)) {
        members_.push_back(std::move(changed->members));
      } else {
        report_ = std::move(std::get<Finish>(action).report);
        ++finishes_;
      }
    }
  }

  const uint32_t nodes_;
  const uint32_t ranks_per_node_;
  TimePoint now_;
  Rendezvous rendezvous_;
  std::map<ConnectionId, std::vector<std::shared_ptr<const v1::ToAgent>>> sent_;
  std::map<ConnectionId, bool> closed_;
  std::optional<v1::JobReport> report_;
  std::vector<v1::Restart> restarts_;
  std::vector<std::string> losses_;
  std::vector<uint32_t> lost_;
  std::vector<v1::Membership> members_;
  int finishes_ = 0;
};

}  // namespace cohort::launcher
