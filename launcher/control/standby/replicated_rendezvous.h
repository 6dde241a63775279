// The rendezvous of a job with standbys: other agents have a copy, and one of them takes over when the host is lost.
//
//     dlaunch (chooses the host; knows who may take over; lives as long as the job)
//       │ term 1: agent 0                │ "you are the host, term 2"
//       ▼                                ▼
//     agent 0, host ──log page──► agent 1, standby      agent 2        agent 3
//        ▲  ▲  ▲    ◄────ack─────    copy of all           │              │
//        │  │  └───────────────────────────────────────────┘              │
//        └──┴─────────────────────────────────────────────────────────────┘   one stream each, to the present host
//
// The rendezvous is deterministic, so all that happens to it is an entry of a log, with its time. The host first sends
// an entry to every standby, and acts on it when all of them have it (a round trip; beats and ticks are entries too).
// A standby that does not answer for kCopyTimeout, or whose stream ends, must not hold the job up: the host asks
// dlaunch to note that it can't take over any more, and goes on without it when dlaunch has said so. Nor does it act on
// a standby's coming, or on anything after that, before dlaunch has noted that it may take over: the job's ranks start
// when its loss would be survived, and not before.
//
// Why there are never two hosts that act: dlaunch lets only those take over that it has noted, and the host needs the
// acknowledgement of every one of them for everything it does. A standby that takes over in term t+1 acknowledges
// nothing of term t any more, and dlaunch notes nothing for term t any more; so the host of term t, should it live on
// behind a broken network, acts on nothing, answers no beat, and the leases of the agents that still hear it end
// (lease.h). All that it has acted on is in the log of the standby that took over. So a take-over is always safe, and
// may be begun on suspicion.
//
// An agent moves to the new host when dlaunch tells it to, with what it has taken (NodeOffer.resume); the host says how
// much it has taken of the agent's, and both say again what the other lacks. To the rendezvous the connection has never
// ended. An agent that does not come is silent, as ever.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/launcher/control/rendezvous.h"
#include "cohort/launcher/control/standby/rendezvous_copy.h"
#include "cohort/launcher/control/standby/standby.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// How long a standby may leave an entry unanswered. Less than a lease lasts without the answer to a beat.
inline constexpr std::chrono::milliseconds kCopyTimeout{1500};

class ReplicatedRendezvous : public EventMachine {
 public:
  // The first host, of term 1. Agents 1 to plan.standbys() get copies as they join.
  ReplicatedRendezvous(v1::JobPlan plan, TimePoint now);
  // The standby that dlaunch has chosen.
  ReplicatedRendezvous(StandbyCopy copy, const v1::TakeOver& order, TimePoint now);

  std::vector<Action> Handle(Event event, TimePoint now) override;
  std::vector<Action> Tick(TimePoint now) override;
  TimePoint NextTick() const override;
  bool finished() const { return copy_.finished(); }

 private:
  struct Standby {
    std::optional<ConnectionId> connection;  // once it is there
    uint64_t received = 0;
    uint64_t applied = 0;
    bool needed = false;       // nothing is acted on that it does not have
    uint64_t since_entry = 0;  // from this one on nothing is acted on before dlaunch has noted that it may take over
    uint64_t wanted = 0;       // the number of the first message by which dlaunch was told that it may
    bool noted = false;        // dlaunch has noted it
    uint64_t dropped = 0;      // the number of the message by which dlaunch was asked to do without it
    TimePoint since;           // the latest acknowledgement, or the first entry after all were acknowledged
  };

  // Before all else: a host that was itself stopped blames no standby for that.
  void Begin(TimePoint now);
  void On(const Received& event);
  void On(const Disconnected& event);
  void On(const AgentEnded& event);
  void On(const StandbysNoted& event);
  void OnJoin(const Received& event);
  // False: it is not let in, or not yet.
  bool OnResume(ConnectionId from, const v1::NodeOffer& offer);
  void OnAck(ConnectionId from, const v1::LogAck& ack);
  void ReadmitStandby(ConnectionId from, const v1::NodeOffer& offer);
  void Attach(Standby* standby, ConnectionId connection, uint64_t applied);
  void DropLate();
  void Drop(Standby* standby);
  uint64_t TellWanted();

  void Append(v1::LogEntry entry);
  void AppendLauncher(v1::ToNode message);
  void SendPage(const Standby& standby, uint64_t after);
  void Commit();
  // The connections that agents have now, in place of those that the log knows.
  void Act(std::vector<Action> actions);
  std::optional<ConnectionId> HereOf(ConnectionId logged) const;
  ConnectionId LoggedOf(ConnectionId here) const;

  TimePoint LogTime() const { return now_ + clock_ahead_; }

  const uint64_t term_;
  std::chrono::nanoseconds clock_ahead_{0};  // of the log, ahead of ours
  RendezvousCopy copy_;
  std::deque<v1::LogEntry> entries_;  // up to end_; what everyone has carried out is forgotten
  uint64_t end_ = 0;
  uint64_t committed_ = 0;
  uint64_t inherited_ = 0;                          // entries up to this one are of hosts before
  TimePoint remember_until_;                        // what standbys lack that were not in sync when we took over
  TimePoint log_time_;                              // of the last entry
  uint64_t tick_ = 0;                               // the number of the latest tick
  uint64_t wishes_ = 0;                             // messages to dlaunch of who is wanted
  std::map<uint32_t, Standby> standbys_;            // by agent
  std::map<ConnectionId, ConnectionId> here_of_;    // by what the log knows: agents that have moved to this host
  std::map<ConnectionId, ConnectionId> logged_of_;  // and back
  std::map<uint64_t, ConnectionId> arriving_;       // by the number of the entry that they resume with
  struct Early {
    ConnectionId from;
    v1::NodeOffer offer;
    std::optional<v1::FromAgent> beat;  // the latest: answered in the end, it renews a lease that is nearly over
  };
  std::vector<Early> early_;  // until all that is inherited is carried out
  TimePoint now_;
  TimePoint promised_;
  std::vector<Action> actions_;
};

// The rendezvous of a job as its first host runs it: with standbys a ReplicatedRendezvous, else a plain one.
std::unique_ptr<EventMachine> FirstHost(v1::JobPlan plan, TimePoint now);

}  // namespace cohort::launcher
