// The waits of a node's ranks as their segment shows them (runtime/segment/wait_state.h): which have not moved for a
// while, for the rendezvous, and all of them, for watchers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "cohort/runtime/segment/segment.h"
#include "cohort/runtime/segment/wait_state.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RankWaits {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kLookInterval{50};
  static constexpr std::chrono::milliseconds kUnmovedFor{200};  // a wait of this age is told

  // `segment_of` gives the segment that a local rank uses. Both outlive it.
  RankWaits(std::function<runtime::Segment&(int local_rank)> segment_of, const v1::Assignment* assignment);

  // A rank says who belongs to a group in which it waits.
  void NoteGroup(const v1::StallReport& stall);
  // Waits that have come to the age above, each once, and only those that nothing but their calls end.
  std::optional<v1::NodeWaits> Look(TimePoint now);
  v1::NodeWaits Answer(const v1::WaitQuestion& question) const;
  v1::CallState LatestCallOf(int local_rank) const;
  // Whether the rank sleeps in a call now.
  bool IsWaiting(int local_rank) const {
    return runtime::ReadWaitNumber(segment_of_(local_rank).control(local_rank)).number != 0;
  }
  // The segment that a local rank uses, or used last.
  runtime::Segment& SegmentOf(int local_rank) const { return segment_of_(local_rank); }
  // Adds the waits of the ranks, of whatever age, to what watchers are told of them: with number 0 a rank does not
  // wait. In any case with how far it has come in the groups and with the peers of its latest calls. Adds the members
  // of the groups in which ranks wait now. `view` has all ranks of the node, by local rank.
  void Add(v1::NodeView* view) const;

 private:
  static constexpr size_t kMaxGroups = 256;  // the latest
  static constexpr std::chrono::seconds kGroupsComeWithin{2};
  static constexpr size_t kProgressForWatchers = 64;  // groups and peers of a rank, about 20 bytes each

  struct Seen {
    const runtime::Segment* segment = nullptr;  // numbers begin again in each
    uint64_t number = 0;
    TimePoint since;
    bool told = false;
  };

  bool KnowsGroupsOf(const v1::RankWait& wait) const;
  v1::RankWait Describe(int local_rank, size_t most_progress) const;
  // The groups in which one of these waits.
  template <typename Waits>
  google::protobuf::RepeatedPtrField<v1::WaitedGroup> GroupsOf(const Waits& waits) const;

  const std::function<runtime::Segment&(int local_rank)> segment_of_;
  const v1::Assignment* const assignment_;
  std::vector<Seen> seen_;  // by local rank
  std::deque<v1::WaitedGroup> groups_;
};

}  // namespace cohort::launcher
