// The waits of a node's ranks as their segment shows them (runtime/segment/wait_state.h): which have not moved for a
// while, for the rendezvous, and all of them, for watchers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "cohort/runtime/segment/segment.h"
#include "cohort/v1/rendezvous.pb.h"

namespace cohort::launcher {

class RankWaits {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kLookInterval{50};
  static constexpr std::chrono::milliseconds kUnmovedFor{200};  // a wait of this age is told

  // Both outlive it.
  RankWaits(runtime::Segment* segment, const v1::Assignment* assignment);

  // A rank says who belongs to a group in which it waits.
  void NoteGroup(const v1::StallReport& stall);
  // Waits that have come to the age above, each once, and only those that nothing but their calls end.
  std::optional<v1::NodeWaits> Look(TimePoint now);
  v1::NodeWaits Answer(const v1::WaitQuestion& question) const;
  v1::CallState LatestCallOf(int local_rank) const;
  // The wait of a rank, of whatever age; with number 0 it does not wait. With how far it has come in any case.
  v1::RankWait Describe(int local_rank) const;
  // Members of the groups in which ranks have waited.
  google::protobuf::RepeatedPtrField<v1::WaitedGroup> Groups() const;

 private:
  static constexpr size_t kMaxGroups = 256;  // the latest
  static constexpr std::chrono::seconds kGroupsComeWithin{2};

  struct Seen {
    uint64_t number = 0;
    TimePoint since;
    bool told = false;
  };

  bool KnowsGroupsOf(const v1::RankWait& wait) const;

  runtime::Segment* const segment_;
  const v1::Assignment* const assignment_;
  std::vector<Seen> seen_;  // by local rank
  std::deque<v1::WaitedGroup> groups_;
};

}  // namespace cohort::launcher
