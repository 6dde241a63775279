// The part of a tape that belongs to one group: what its calls give this rank is recorded, or comes from the tape.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "cohort/comm/provider/provider.h"

namespace cohort::comm {

// By the engine's owner.
class GroupTape {
 public:
  // Null: the group's runtime has no tape. `group` is complete and outlives it.
  static std::unique_ptr<GroupTape> Of(const GroupContext& group);
  virtual ~GroupTape() = default;

  // The provider that serves the group's calls in place of `real`. The tape outlives it.
  virtual std::unique_ptr<Provider> Around(std::unique_ptr<Provider> real) = 0;
  // The group has failed, or its runtime is finalized.
  virtual void OnFailure(const absl::Status& status) = 0;
};

}  // namespace cohort::comm
