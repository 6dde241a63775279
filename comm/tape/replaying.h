// Replays the calls of a group: their results come from the tape, and no peer is there.
#pragma once

#include <memory>
#include <vector>

#include "cohort/comm/provider/provider.h"
#include "cohort/comm/tape/group_tape.h"
#include "cohort/runtime/tape/tape_player.h"

namespace cohort::comm {

// Calls are compared with those of the tape. The first that differs fails the group with kFailedPrecondition, which
// names both calls and both call sites. A call that the recorded rank got no result of stays pending, as it did there;
// where the whole tape has been handed out and the program still waits for it, it fails with kOutOfRange.
class GroupReplay final : public GroupTape, private runtime::ReplayedGroup {
 public:
  // Both outlive it.
  GroupReplay(const GroupContext& group, runtime::TapePlayer& player);
  ~GroupReplay() override;
  std::unique_ptr<Provider> Around(std::unique_ptr<Provider> real) override;
  void OnFailure(const absl::Status&) override {}

 private:
  void OnTapedFailure(const absl::Status& status) override;

  const GroupContext& group_;
  runtime::TapePlayer& player_;
};

}  // namespace cohort::comm
