// The rendezvous together with all that its host must not lose: carried out entry by entry from a log, so that a host
// with the same log has the same rendezvous (see replicated_rendezvous.h for the whole picture).
//
// A message to an agent is numbered by its place in the agent's stream and kept until the agent has taken it. Messages
// of the agent are counted. Both tell a host that takes over which messages must be sent again. Beats, `resumed` and
// messages about the log itself don't count: nobody misses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/launcher/control/rendezvous.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// Whether a message takes a number in its stream.
bool Counts(const v1::FromAgent& message);
bool Counts(const v1::ToAgent& message);

// The time of an entry, and the other way round.
TimePoint TimeOf(const v1::LogEntry& entry);
int64_t NanosecondsOf(TimePoint time);

class RendezvousCopy {
 public:
  // Carries out the next entry. What comes back is to be acted on by the host alone.
  std::vector<Action> Apply(const v1::LogEntry& entry);

  // The number of the latest entry that was applied, and its time.
  uint64_t applied() const { return applied_; }
  TimePoint now() const { return now_; }
  // By the log's clock; before the first entry: never.
  TimePoint NextTick() const { return machine_ ? machine_->NextTick() : TimePoint::max(); }
  bool finished() const { return machine_ && machine_->finished(); }

  // The connection of an agent that has joined.
  std::optional<ConnectionId> ConnectionOf(uint32_t agent) const;
  // JobPlan.standbys.
  uint32_t standbys() const { return standbys_; }
  // Whether the agent of this connection was let go: it may come back only for the job's report.
  bool Closed(ConnectionId connection) const;
  // The news for dlaunch, from this number on.
  std::vector<Action> ToldSince(uint64_t number) const;

 private:
  struct Session {
    uint32_t agent = 0;
    uint64_t taken = 0;  // of the agent's messages
    uint64_t first = 1;  // the number of the first that is kept
    std::deque<std::shared_ptr<const v1::ToAgent>> kept;
    bool closed = false;
  };

  std::vector<Action> ApplyReceived(ConnectionId from, const v1::FromAgent& message);
  std::vector<Action> ApplyResumed(ConnectionId from, uint64_t taken);
  std::vector<Action> ApplyLauncher(const v1::ToNode& message);
  static void Forget(uint64_t taken, Session* session);
  // Numbers, keeps and counts what is said.
  std::vector<Action> Note(std::vector<Action> actions);

  std::unique_ptr<Rendezvous> machine_;
  uint32_t standbys_ = 0;
  std::map<ConnectionId, Session> sessions_;
  std::vector<Action> told_;  // to dlaunch: a few in each epoch
  uint64_t launcher_messages_ = 0;
  uint64_t applied_ = 0;
  TimePoint now_;
};

}  // namespace cohort::launcher
