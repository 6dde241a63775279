// The event loop of the simulator: actors (a lane of a rank each) that run programs, messages that queue for links.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "cohort/comm/simulate/network.h"
#include "cohort/comm/simulate/program.h"
#include "cohort/comm/simulate/simulator.h"
#include "cohort/comm/simulate/steady_state.h"

namespace cohort::comm {

class EventEngine {
 public:
  using OnStep = std::function<void(const SimulatedStep& step)>;

  // Times ranks [0, timed) of network.ranks(); with fewer than all of them, rank r stands for r, r + timed, ...
  // `on_step` may be null.
  EventEngine(const Network& network, int64_t timed, double chunk_bytes, bool fanout, OnStep on_step = nullptr);

  // The programs of a rank's lanes; outlive the run. Ranks in order; those that do the same may share them.
  void AddRank(const std::vector<Program>& programs);
  // With `repetitions` of the one program that all ranks run.
  absl::StatusOr<SimulationReport> Run(const std::vector<Repetition>& repetitions);

 private:
  friend class SteadyState;  // which reads and shifts all of the state
  using Time = int64_t;      // femtoseconds
  static constexpr Time kUnknown = -1;
  static constexpr uint32_t kNone = UINT32_MAX;
  enum class Blocked : uint8_t { kNo, kReceive, kFence };

  struct Outstanding {
    int64_t index;
    Time arrival;
  };
  struct Actor {
    const Program* program = nullptr;
    const Peers* peers = nullptr;
    uint32_t first_channel = 0;  // one for each of the peers
    size_t at = 0;
    Time clock = 0;
    int64_t posted = 0;
    uint32_t waits_for = kNone;  // channel
    // The next receive whose message may take the rank's port, and when the one before was let go.
    size_t taking = 0;
    Time released = 0;
    bool lets = false;  // that one has not taken the port yet
    Blocked blocked = Blocked::kNo;
    OpKind last = OpKind::kWork;
    bool fences = false;  // the program has any
    std::vector<Outstanding> outstanding;
  };
  struct Message {
    Time time = 0;  // posted; then arrived
    uint32_t actor = 0;
    uint32_t channel = kNone;
    int32_t chunks = 0;
    int32_t offset = 0;     // from the sender to the receiver
    uint32_t next = kNone;  // in its channel, or of the free list
    int64_t index = 0;      // of the actor's sends
    bool publish = false;
  };
  struct Event {
    Time time;
    int64_t index;  // of the sender's sends: those of one rank keep their order
    uint64_t tie;   // equal for images of the same message
    uint32_t message;
    bool operator>(const Event& other) const {
      return std::tie(time, index, tie) > std::tie(other.time, other.index, other.tie);
    }
  };
  struct Queue {
    uint32_t head = kNone, tail = kNone;
  };
  struct Channel {
    Queue posted;   // wait for the receiver's earlier messages
    Queue arrived;  // wait for the receiver
  };
  struct Route {
    std::array<uint32_t, 6> links;
    int count = 0;
    bool local = false;
    bool core = false;
  };

  static Time Femtoseconds(double microseconds);
  size_t Image(size_t rank) const {
    return rank < static_cast<size_t>(timed_) ? rank : rank % static_cast<size_t>(timed_);
  }
  // The rank `offset` further on.
  size_t Peer(size_t rank, int32_t offset) const {
    const size_t peer = rank + static_cast<size_t>(offset);
    return peer < node_of_.size() ? peer : peer - node_of_.size();
  }
  size_t RankOf(uint32_t actor) const { return lanes_ == 1 ? actor : actor / lanes_; }
  // The channel of a message from the rank `offset` further on; kNone if the reader expects nothing from it.
  uint32_t ChannelFrom(uint32_t reader, int32_t offset) const;
  // The channel of the reader's receive number `op`.
  uint32_t ChannelOf(const Actor& reader, size_t op) const { return reader.first_channel + reader.peers->of_op[op]; }
  Route RouteOf(size_t from, size_t to) const;
  void Advance(uint32_t actor);
  void Combine(uint32_t actor, const Op& op);
  // Tells `on_step_`, which there is, of a step that ends at the actor's clock.
  void Tell(uint32_t actor, SimulatedStep step) const;
  bool FenceOpen(Actor& actor, const Op& op);
  void Post(uint32_t actor, const Op& op);
  void Take(uint32_t reader);
  void Begin(uint32_t message, Time time);
  void Append(Queue& queue, uint32_t message);
  uint32_t Pop(Queue& queue);
  void Transfer(const Event& event);
  Time Occupy(const Route& route, const Message& message, bool skip_out);
  uint32_t ReaderOf(const Message& message, size_t to) const {
    return static_cast<uint32_t>(Image(to) * lanes_ + message.actor % lanes_);
  }
  void Deliver(uint32_t message, size_t to, Time arrival);
  void Arrived(uint32_t actor, int64_t index, Time arrival);
  uint32_t NewMessage();

  Time Further(bool local) const { return local ? local_further_ : remote_further_; }

  const Network network_;
  const int64_t ranks_;
  const int64_t timed_;
  const int64_t tie_ranks_;
  const double chunk_bytes_;
  const Time local_further_, remote_further_;  // LevelTuning::message_us
  std::vector<uint32_t> node_of_;              // by rank
  std::vector<uint32_t> leaf_of_;              // by node
  size_t link_nodes_ = 0, link_leaves_ = 0;    // that have links of their own: those of the ranks that are timed
  const bool fanout_;
  const OnStep on_step_;
  size_t lanes_ = 1;
  std::vector<Actor> actors_;
  std::vector<Message> messages_;
  uint32_t free_message_ = kNone;
  std::vector<Event> heap_;
  std::vector<Channel> channels_;
  std::deque<Peers> peers_;  // of each program; ranks that share programs share these
  std::vector<Time> link_free_;
  std::vector<double> uplink_use_;  // femtoseconds
  const Repetition* repetition_ = nullptr;
  SteadyState steady_state_{this};
  SimulationReport report_;
};

}  // namespace cohort::comm
