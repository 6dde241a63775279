// Finds ranks that wait for each other, over all groups, and fails their groups. Agents report waits that have not
// moved for a while (agent/rank/rank_waits.h). Where the graph of waits has a cycle, the agents of its ranks are asked
// twice whether these are still in the same waits, and have looked at everything meanwhile. Then it is a deadlock, for
// sure: a rank that is in the same wait at two moments has made no call in between.
//
//   idle ── a wait ──► gathering ── cycle ──► first question ── same waits ──► pausing ──► second question
//    ▲                  │   ▲                    │                               ▲            │    │    │
//    └──── no cycle ────┘   └────── changed ─────┴────────────── changed ────────┼────────────┘    │    │
//                                                                                └── not looked ───┘    │
//                                                      groups fail ◄── all have looked at everything ───┘
//
// A rank counts as having looked when it has looked at everything twice since the first answers. If other waits are
// reported meanwhile, the search begins again, but what is known of unchanged cycles stays.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_set>
#include <vector>

#include "cohort/launcher/control/failed_groups.h"
#include "cohort/launcher/control/membership.h"
#include "cohort/launcher/control/outbox.h"
#include "cohort/launcher/control/parts/job_time.h"
#include "cohort/launcher/control/roster.h"
#include "cohort/launcher/control/stall_inquiries.h"
#include "cohort/runtime/segment/wait_graph.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class Deadlocks {
 public:
  static constexpr std::chrono::milliseconds kGather{20};  // waits of several nodes come at about the same time
  static constexpr std::chrono::milliseconds kReplyTimeout{300};
  // Between the questions; a rank that sleeps in a wait looks at everything every 50 ms.
  static constexpr std::chrono::milliseconds kPause{120};
  static constexpr std::chrono::milliseconds kLongestPause{1000};
  static constexpr uint64_t kLooks = 2;  // the first may have begun before the first question

  Deadlocks(const Roster& roster, const Membership& members, const JobTime& time, FailedGroups* failed,
            StallInquiries* stalls, Outbox* outbox)
      : roster_(roster), members_(members), time_(time), failed_(failed), stalls_(stalls), outbox_(outbox) {}

  // A report, or the answer to a question. What is said of ranks of other nodes is ignored.
  void OnWaits(ConnectionId from, uint32_t node, const v1::NodeWaits& waits);
  // The rank has ended, or left the epoch.
  void ForgetRank(uint32_t rank) { waits_.erase(rank); }
  // The connection will not answer any more.
  void Forget(ConnectionId connection) { awaited_.erase(connection); }
  void Clear();

  // Goes from state to state as far as that is due. With `late_ones_too` also where an answer's time is up.
  void Continue(bool late_ones_too);
  std::optional<TimePoint> NextDue() const;

 private:
  enum class State { kIdle, kGathering, kFirstQuestion, kPausing, kSecondQuestion };
  // The first answer that counts for a wait: at that time all ranks of its cycle were in their waits.
  struct FirstAnswer {
    uint64_t request = 0;
    uint64_t looks = 0;
  };
  struct Known {
    runtime::RankWait wait;
    uint64_t number = 0;
    std::optional<FirstAnswer> first;
  };
  struct Answer {
    uint64_t number = 0;
    uint64_t looks = 0;
  };
  static constexpr size_t kMaxGroups = 16 << 10;

  void OnReport(uint32_t node, const v1::NodeWaits& waits);
  void GatherSoon();
  std::vector<runtime::Deadlock> Find(const std::vector<uint32_t>& ranks) const;
  void Search();
  bool ShareFirstAnswer(const runtime::Deadlock& deadlock) const;
  bool HasLookedSince(uint32_t rank) const;
  void Ask(State state);
  void OnFirstAnswers();
  void OnSecondAnswers();
  // The suspects that are in the same wait. Forgets the waits of the others.
  std::vector<uint32_t> StillWaiting();
  void Declare(const runtime::Deadlock& deadlock);

  const Roster& roster_;
  const Membership& members_;
  const JobTime& time_;
  FailedGroups* const failed_;
  StallInquiries* const stalls_;
  Outbox* const outbox_;

  std::map<uint32_t, Known> waits_;  // the latest of each rank that was told
  runtime::GroupMembers groups_;
  State state_ = State::kIdle;
  TimePoint due_;
  std::chrono::milliseconds pause_ = kPause;
  bool news_ = false;  // waits were told during the questions
  std::vector<uint32_t> suspects_;
  uint64_t request_ = 0;  // of the latest question
  std::unordered_set<ConnectionId> awaited_;
  std::map<uint32_t, Answer> answers_;
};

}  // namespace cohort::launcher
