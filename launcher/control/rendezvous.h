// The rendezvous of a job: who has joined, what everybody is told, when and why the job ends. A state machine without
// I/O: its owner feeds it events with the time and carries out the actions it returns, so that thousands of
// simulated nodes with seeded faults run in one thread, and the same code serves gRPC (launcher/rpc/).
//
//   gathering ── every planned node joined ──► running ── failure, stop request ──► stopping ─┐
//       │                                       ▲  └──────── every node done ────────────────┴┬─► finished
//       │                                       └─ time ─ pausing ◄─ failure, restarts left ───┘      ▲
//       └── timeout, stop request, an agent lost ─────────┴───────────────────────────────────────────┘
//
// A restart is a new epoch: the same nodes and ranks, an empty key-value store. Streams keep their order, and an agent
// says that its ranks are gone after everything else it has to say of them, so nothing of an epoch reaches the next.
//
// When a node is lost, a spare takes its place and its ranks. Without a spare the job goes on with fewer nodes, down to
// the plan's least number, and ranks get new numbers. The next epoch begins when the lost node's lease is over
// (lease.h) or its end is known, so that never two worlds exist. The node that hosts the rendezvous can be replaced
// only where another has a copy of it (replicated_rendezvous.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// The version of rendezvous.proto's conversation: NodeOffer.protocol must equal it.
inline constexpr uint32_t kRendezvousProtocol = 2;

// An agent beats in every interval, and each beat is answered; a side silent for the timeout is taken for lost. All
// agents are to know of a loss within 3.5 s: what the timeout leaves of that is for telling them.
inline constexpr std::chrono::milliseconds kBeatInterval{1000};
inline constexpr std::chrono::milliseconds kSilenceTimeout{3400};

using TimePoint = std::chrono::steady_clock::time_point;
// One stream of one agent; never used again after its end.
using ConnectionId = uint64_t;

// --- events ---

// A message arrived. The first of a connection must be `join`. The owner of the machine has already checked that the
// connection's certificate belongs to the node that the offer names.
struct Received {
  ConnectionId from = 0;
  v1::FromAgent message;
};
// The connection has ended; nothing more comes from it.
struct Disconnected {
  ConnectionId from = 0;
  std::string reason;
};
// The user or the host agent wants the job to end with `exit_code`, e.g. {"stopped by SIGINT", 130}. With `signal`
// (SIGTERM) ranks that ask for notices of a preemption may first stop by themselves, within the grace.
struct StopRequested {
  std::string reason;
  int exit_code = 1;
  int signal = 0;
  uint64_t number = 0;  // ToNode.number, as in the next two
};
// A notice of a preemption: SIGUSR1 or SIGUSR2, which dlaunch got. The job goes on until its ranks stop.
struct NoticeGiven {
  int signal = 0;
  uint64_t number = 0;
};
// That agent, as the plan counts them, and all that it had started live no more. dlaunch, which started it, knows how
// that came, in words.
struct AgentEnded {
  uint32_t agent = 0;
  std::string text = {};
  uint64_t number = 0;
};
// Another host goes on from here. Nobody could be heard meanwhile, and so nobody was silent.
struct TakenOver {};
// dlaunch has noted who may take over: of concern to ReplicatedRendezvous alone.
struct StandbysNoted {
  v1::Standbys standbys;
};
using Event = std::variant<Received, Disconnected, StopRequested, NoticeGiven, AgentEnded, TakenOver, StandbysNoted>;

// --- actions, to be carried out in order ---

struct Send {
  ConnectionId to = 0;
  std::shared_ptr<const v1::ToAgent> message;  // shared by all receivers of a broadcast
};
// End the connection when what was sent to it has been written.
struct Close {
  ConnectionId connection = 0;
};
// An epoch has failed, none of its ranks lives, and the next one begins after the delay told.
struct Restart {
  v1::Restart restart;
  uint64_t number = 0;  // FromNode.number, as in the next four; 0 without standbys
};
// Ranks are lost, and the job goes on without them, or its agents are told to stop. The text names the cause.
struct RanksLost {
  std::string text;
  uint64_t number = 0;
};
// A node is given up. dlaunch, which started its agent, is told.
struct NodeLost {
  v1::LostNode lost;
  uint64_t number = 0;
};
// The next epoch, which begins now, has other members than the one before.
struct MembersChanged {
  v1::Membership members;
  uint64_t number = 0;
};
// The job is over. The last action ever; later events are answered by nothing or by a refusal.
struct Finish {
  v1::JobReport report;
  uint64_t number = 0;
};
// The standbys that have a copy of the rendezvous. When the list shrinks, those that are left out no longer count.
// dlaunch is told, and answers by StandbysNoted.
struct StandbysWanted {
  v1::Standbys standbys;
};
using Action = std::variant<Send, Close, Restart, RanksLost, NodeLost, MembersChanged, Finish, StandbysWanted>;

// Turns events into actions. Not thread-safe. Never blocks, never fails: what a peer may send wrongly ends that
// peer's connection, named cause included, and so its node.
class EventMachine {
 public:
  virtual ~EventMachine() = default;
  virtual std::vector<Action> Handle(Event event, TimePoint now) = 0;
  // Lets time pass: beats, timeouts. To be called at NextTick() or earlier, after the events that have arrived by then;
  // a call that comes much later than asked means that this process itself was stopped, and nobody is blamed for it.
  virtual std::vector<Action> Tick(TimePoint now) = 0;
  virtual TimePoint NextTick() const = 0;
};

class Rendezvous : public EventMachine {
 public:
  // The plan's placements must be of nodes 0..n-1 in order with ranks counted through; CheckPlan tells.
  Rendezvous(v1::JobPlan plan, TimePoint now);
  ~Rendezvous() override;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  std::vector<Action> Handle(Event event, TimePoint now) override;
  std::vector<Action> Tick(TimePoint now) override;
  TimePoint NextTick() const override;

  bool finished() const;

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

}  // namespace cohort::launcher
