// Which stalled operations are being asked about, and when to ask (again). Equal reports are one question; a question
// whose answer leaves someone absent is put again at growing intervals, since the absent may yet call something else
// and never stall themselves.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

// One operation of a group.
struct OperationId {
  uint64_t group = 0;
  uint64_t epoch = 0;
  uint64_t sequence = 0;
  bool watched = false;  // a call of another library (StallReport::watched)
  auto operator<=>(const OperationId&) const = default;
};

class Inspections {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using ConnectionId = uint64_t;

  static constexpr std::chrono::milliseconds kReplyTimeout{200};
  // The same for a call whose time is over, where the answers are a verdict: an agent that is silent for longer is
  // lost.
  static constexpr std::chrono::milliseconds kVerdictReplyTimeout{3400};
  static constexpr std::chrono::milliseconds kMinInterval{100};  // between two rounds of one operation
  static constexpr std::chrono::milliseconds kMaxInterval{800};
  static constexpr size_t kMaxOperations = 4096;  // further ones wait until they are reported again

  // A round that is over: everyone asked has answered, or the time is up. `expired`: the operation's time is over as
  // well, and nobody's answer was cut short for a question that was less urgent.
  struct Round {
    OperationId operation;
    std::vector<uint32_t> members;
    bool expired = false;
    std::unordered_map<uint32_t, v1::CallState> calls;  // by world rank
  };

  // A rank reports a stall; `members` are the group's world ranks.
  void Report(const OperationId& operation, std::vector<uint32_t> members, bool expired, TimePoint now);

  // The operations whose next round is due; each must be answered by Begin.
  std::vector<OperationId> Due(TimePoint now) const;
  const std::vector<uint32_t>& MembersOf(const OperationId& operation) const;
  // Whether it is still being asked about: a group that has failed is not.
  bool Knows(const OperationId& operation) const { return inquiries_.contains(operation); }
  // Starts a round that asks `asked`; returns the request number to send.
  uint64_t Begin(const OperationId& operation, std::unordered_set<ConnectionId> asked, TimePoint now);

  void Reply(ConnectionId from, const v1::InspectReply& reply);
  // The rank has ended: what was answered for it before is not what it ended with.
  void ForgetAnswers(uint32_t rank);
  // The connection will not answer any more.
  void Forget(ConnectionId connection);

  std::vector<Round> TakeFinished(TimePoint now);
  // After a finished round: ask again later, or drop the operation until it is reported again.
  void AskAgain(const OperationId& operation, TimePoint now);
  void Drop(const OperationId& operation);
  // Drops everything; what is still answered will be ignored.
  void Clear();
  // The group has failed: no more questions about it.
  void DropGroup(uint64_t group, uint64_t epoch);
  // No more questions about the group's other operations.
  void DropAllBut(const OperationId& operation);

  std::optional<TimePoint> NextDue() const;

 private:
  struct Inquiry {
    std::vector<uint32_t> members;
    bool expired = false;
    bool patient = false;         // the round began after the operation's time was over
    bool reported_again = false;  // during the round
    uint64_t request = 0;         // of the round under way, 0 between rounds
    TimePoint due;                // of the next round, or of the end of this one
    TimePoint last_start;
    std::chrono::milliseconds interval = kMinInterval;
    std::unordered_set<ConnectionId> awaited;
    std::unordered_map<uint32_t, v1::CallState> calls;
  };

  // The only way by which an inquiry goes. A later answer finds none.
  std::map<OperationId, Inquiry>::iterator Erase(std::map<OperationId, Inquiry>::iterator at);
  void DropGroupBut(uint64_t group, uint64_t epoch, std::optional<uint64_t> kept_sequence);

  std::map<OperationId, Inquiry> inquiries_;
  std::unordered_map<uint64_t, OperationId> by_request_;  // of the rounds under way
  uint64_t next_request_ = 1;
};

}  // namespace cohort::launcher
